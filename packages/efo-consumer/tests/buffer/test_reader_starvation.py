"""Buffers that are full for longer than Kinesis waits: the subscription is renewed where it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    PublisherMetrics,
    ReaderConfig,
    RecordPublisherConfig,
    RecordPublisherType,
    ShardCondition,
    ShardState,
    ShardStats,
    StreamConsumer,
    SubscribeTransportType,
    ranges_between,
    resolve_initial_positions,
)
from penstock.efo_consumer._remote.client import MESSAGES
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator
from penstock.proto.shard_reader.v1.shard_reader_pb2 import ShardStats as ShardStatsMessage

# Over HTTP/1.1 the sockets hold what the window would: tens of megabytes over loopback.
RECORDS = 60
RECORD_BYTES = 900_000


def fill(emulator: RunningEmulator) -> StreamConsumer:
    client = emulator.client()
    client.create_stream(StreamName="s", ShardCount=1)
    arn = client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
    for number in range(RECORDS):
        client.put_record(StreamName="s", Data=b"%d " % number + b"." * RECORD_BYTES, PartitionKey="k")
    consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="billing")["Consumer"]
    return StreamConsumer("s", consumer["ConsumerARN"])


def test_numbers_of_a_shard_cross_the_wire_whole() -> None:
    """What a service counts is what its callers see, each number as itself."""
    numbers: dict[str, Any] = {
        one.name: place for place, one in enumerate(fields(ShardStats)) if one.type in ("int", int)
    }
    assert len(numbers) > 8
    condition = ShardCondition(ShardState.STUCK, 1_767_268_800_000, "no children")
    stats = ShardStats(stream_name="flights", shard_id="shardId-0", condition=condition, **numbers)
    sent = ShardStatsMessage.FromString(MESSAGES.to(ShardStatsMessage, stats).SerializeToString())
    assert MESSAGES.of(ShardStats, sent) == stats


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  # a buffer has no event, nor has the emulator
            await asyncio.sleep(0.01)


async def stands_still(emulator: RunningEmulator) -> None:
    """Wait until the emulator has sent nothing for a moment: windows and sockets are full too."""
    sent, since = -1, time.monotonic()
    async with asyncio.timeout(120):
        while time.monotonic() - since < 0.5:
            await asyncio.sleep(0.02)
            (subscription,) = emulator.kinesis._subscriptions.values()
            if subscription.position != sent:
                sent, since = subscription.position, time.monotonic()


@pytest.mark.parametrize("transport", [SubscribeTransportType.HTTP2, SubscribeTransportType.HTTP1])
async def test_a_subscription_that_nobody_reads_is_renewed_and_counted(
    transport: SubscribeTransportType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinesis cuts it after five minutes; once there is room again every record comes once, and no attempt is lost."""
    ended: list[str] = []
    monkeypatch.setattr(PublisherMetrics, "subscription_ended", lambda _, *, outcome, **__: ended.append(outcome))
    clock = ManualClock()
    options = {"enforce_limits": False, "consumer_creation_delay": timedelta(0)}
    publisher = RecordPublisherConfig(
        subscribe_transport=transport,
        resubscribe_interval=timedelta(seconds=0.1),
        # Shorter than the emulator's patience with a client that does not read.
        subscription_silence=timedelta(seconds=0.5),
    )
    config = ReaderConfig(buffer_bytes_per_shard=2 * RECORD_BYTES, buffer_bytes=2 * RECORD_BYTES)
    with running_emulator(clock=clock, **options) as emulator:
        consumer = await asyncio.to_thread(fill, emulator)
        url = emulator.tls_endpoint_url if transport is SubscribeTransportType.HTTP2 else emulator.endpoint_url
        session = AwsSession(emulator_options(url, str(emulator.ca_file)))
        start = await asyncio.to_thread(resolve_initial_positions, session, ["s"], "TRIM_HORIZON")
        request = OpenRequest(
            session_id="q", positions=start, record_publisher=RecordPublisherType.EFO, consumers=(consumer,)
        )
        async with asyncio.timeout(120), LocalShardReader(KinesisBackend(session, publisher), config) as reader:
            epoch = await reader.open(request)
            await until(lambda: reader.buffered_bytes >= 2 * RECORD_BYTES)
            await stands_still(emulator)
            clock.advance(timedelta(minutes=5))
            await until(lambda: not emulator.kinesis.open_subscriptions)
            assert ended == []
            rows: list[int] = []
            while len(rows) < RECORDS:
                found = await reader.positions("q", epoch, start, wait_seconds=5)
                async for batch in reader.read_range("q", ranges_between(start, found.positions)):
                    rows += [int(data.partition(b" ")[0]) for data in batch.column("data").to_pylist()]
                start = found.positions
                await reader.commit("q", epoch, start)
            assert rows == list(range(RECORDS))
            (stats,) = await reader.stats("q")
            assert (stats.replays, stats.losses) == (0, 0)
            assert stats.starved == ended.count("starved") == 1
    assert ended[0] == "starved"
    assert "connection_failed" not in ended
