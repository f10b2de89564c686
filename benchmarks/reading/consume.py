"""A whole client: one subscription from a server that sends prebuilt frames over TLS, against boto3 and aiobotocore.

Rates are records per second of one core: the client is kept to one, and the time of all its threads counts. What it
waits for the server, or for other processes of the machine, does not. aiobotocore runs in a
process of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._harness import Case, interleave
from benchmarks.reading._frame_clients import CONSUMER_ARN, frame_server, one_core
from benchmarks.reading._frame_server import records_in_block
from penstock.efo_consumer import (
    RecordPublisherConfig,
    RecordPublisherFactory,
    RecordPublisherType,
    ShardPosition,
    StreamIdentity,
    SubscribeTransportType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.aws import AwsSession

# About a second for each: the connection is made within the time that is measured.
_BLOCKS = {100: (60, 4), 1_000: (200, 30)}

_AIOBOTOCORE_CLIENT = Path(__file__).with_name("_aiobotocore_consume.py")
_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


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


def _aiobotocore(session: AwsSession, record_bytes: int) -> float:
    blocks = _BLOCKS[record_bytes][1]
    arguments = [session.endpoint_url(), session.ca_bundle or "", CONSUMER_ARN, _shard_id(record_bytes, blocks)]
    ended = subprocess.run(
        [sys.executable, str(_AIOBOTOCORE_CLIENT), *arguments],
        env={**os.environ, **_KEYS},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    rows, seconds = ended.stdout.split()
    return _records_per_second(int(rows), blocks * records_in_block(record_bytes), float(seconds))


def _rate(rows: int, expected: int, start: float) -> float:
    return _records_per_second(rows, expected, time.process_time() - start)


def _records_per_second(rows: int, expected: int, seconds: float) -> float:
    if rows != expected:
        raise RuntimeError(f"{rows} rows of {expected}")
    return rows / seconds


def run(rounds: int) -> Iterator[Case]:
    """HTTP/2 and HTTP/1.1, small and large records; the peers have HTTP/1.1 only."""
    with frame_server() as server, one_core(server.pid):
        peers: dict[str, Callable[[int], float]] = {
            "boto3": partial(_boto3, server.session),
            "aiobotocore": partial(_aiobotocore, server.session),
        }
        for peer_name, peer in peers.items():
            for transport in (SubscribeTransportType.HTTP2, SubscribeTransportType.HTTP1):
                for size, record_bytes in (("100B", 100), ("1kB", 1_000)):
                    name = f"{transport.value}-{size}"
                    yield interleave(
                        name if peer_name == "boto3" else f"{name}-{peer_name}",
                        partial(_penstock, server.session, transport, record_bytes),
                        partial(peer, record_bytes),
                        peer_name=peer_name,
                        unit="records/s",
                        rounds=rounds,
                    )
