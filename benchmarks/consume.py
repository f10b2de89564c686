"""A whole client: one subscription from a server that sends prebuilt frames over TLS, against boto3.

Rates are records per second of one core: the client is kept to one, and the time of all its threads counts. What it
waits for the server, or for other processes of the machine, does not.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._frame_clients import CONSUMER_ARN, frame_server, one_core
from benchmarks._frame_server import records_in_block
from benchmarks._harness import Case, interleave
from penstock.efo_consumer import (
    RecordPublisherConfig,
    RecordPublisherFactory,
    RecordPublisherType,
    ShardPosition,
    StreamIdentity,
    SubscribeTransportType,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.aws import AwsSession

# About a second for each: the connection is made within the time that is measured.
_BLOCKS = {100: (20, 2), 1_000: (100, 20)}


def _shard_id(record_bytes: int, blocks: int) -> str:
    return f"shardId-{record_bytes:06}{blocks:06}"


async def _read(session: AwsSession, transport: SubscribeTransportType, shard_id: str) -> int:
    config = RecordPublisherConfig(record_publisher=RecordPublisherType.EFO, subscribe_transport=transport)
    publisher = RecordPublisherFactory().build_record_publisher(config, session, {"flights": CONSUMER_ARN})
    rows = 0
    try:
        events = publisher.publish(StreamIdentity("flights"), shard_id, ShardPosition.trim_horizon())
        async with aclosing(events):
            async for event in events:
                rows += event.records.num_rows
    finally:
        await publisher.close()
    return rows


def _penstock(session: AwsSession, transport: SubscribeTransportType, record_bytes: int) -> float:
    blocks = _BLOCKS[record_bytes][0]
    start = time.process_time()
    rows = asyncio.run(_read(session, transport, _shard_id(record_bytes, blocks)))
    return _rate(rows, blocks * records_in_block(record_bytes), start)


def _boto3(session: AwsSession, record_bytes: int) -> float:
    blocks = _BLOCKS[record_bytes][1]
    client = session.client("kinesis")
    start = time.process_time()
    answer = client.subscribe_to_shard(
        ConsumerARN=CONSUMER_ARN,
        ShardId=_shard_id(record_bytes, blocks),
        StartingPosition={"Type": "TRIM_HORIZON"},
    )
    rows = sum(len(event["SubscribeToShardEvent"]["Records"]) for event in answer["EventStream"])
    return _rate(rows, blocks * records_in_block(record_bytes), start)


def _rate(rows: int, expected: int, start: float) -> float:
    seconds = time.process_time() - start
    if rows != expected:
        raise RuntimeError(f"{rows} rows of {expected}")
    return rows / seconds


def run(rounds: int) -> Iterator[Case]:
    """HTTP/2 and HTTP/1.1, small and large records; boto3 has HTTP/1.1 only."""
    with frame_server() as server, one_core(server.pid):
        for transport in (SubscribeTransportType.HTTP2, SubscribeTransportType.HTTP1):
            for name, record_bytes in (("100B", 100), ("1kB", 1_000)):
                yield interleave(
                    f"{transport.value}-{name}",
                    partial(_penstock, server.session, transport, record_bytes),
                    partial(_boto3, server.session, record_bytes),
                    peer_name="boto3",
                    unit="records/s",
                    rounds=rounds,
                )
