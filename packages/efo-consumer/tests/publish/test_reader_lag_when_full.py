"""How far behind a shard is while full buffers keep it from being read: it grows from the last proof."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from reader_homes import read, until

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherConfig,
    RecordPublisherType,
    ShardPosition,
    StreamConsumer,
    StreamPositions,
    SubscribeTransportType,
)
from penstock.efo_consumer._publish.metrics import _followed
from penstock.efo_consumer.testing import FakeKinesis
from penstock.emulator.testing import running_emulator

SHARD = "shardId-000000000000"


async def test_what_was_behind_already_grows_older() -> None:
    """By the time for which nothing is taken; in the numbers of the shard, in answers and in the metric."""
    kinesis, now = FakeKinesis(event_records=1), [0.0]
    (shard,) = kinesis.create_stream("grows older")
    start = kinesis.trim_horizon("grows older")
    kinesis.put("grows older", shard, 10, size=5000)
    config = ReaderConfig(buffer_bytes_per_shard=15_000, buffer_bytes=15_000)
    async with LocalShardReader(kinesis, config, clock=lambda: now[0]) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        await until(lambda: reader.buffered_bytes >= 15_000)
        (before,) = await reader.stats("q")
        assert before.millis_behind_latest == (10 - before.records) * 10
        now[0] = 60.0
        (after,) = await reader.stats("q")
        assert after.millis_behind_latest == before.millis_behind_latest + 60_000
        assert str(after.condition).startswith("starved since ")
        assert [one.millis_behind_latest for one in _followed["grows older", shard]] == [after.millis_behind_latest]
        position, records = start, 0
        while records < 10:
            found = await reader.positions("q", epoch, position, wait_seconds=5)
            records += len(await read(reader, position, found.positions))
            position = found.positions
        assert [one.millis_behind_latest for one in await reader.stats("q")] == [0]
    assert ("grows older", shard) not in _followed


@pytest.mark.parametrize("transport", [SubscribeTransportType.HTTP2, SubscribeTransportType.HTTP1])
async def test_a_record_that_came_and_was_not_taken_counts(transport: SubscribeTransportType) -> None:
    """A shard that was read to its tip is behind from the next record on, though there is no room for it."""
    options: dict[str, Any] = {"enforce_limits": False, "consumer_creation_delay": timedelta(0)}
    config = ReaderConfig(buffer_bytes_per_shard=100, buffer_bytes=100)
    publisher = RecordPublisherConfig(subscribe_transport=transport)
    start = StreamPositions({"s": {SHARD: ShardPosition.trim_horizon()}})
    with running_emulator(**options) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="s", ShardCount=1)
        arn = client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
        consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="billing")["Consumer"]
        url = emulator.tls_endpoint_url if transport is SubscribeTransportType.HTTP2 else emulator.endpoint_url
        session = AwsSession(emulator_options(url, str(emulator.ca_file)))
        request = OpenRequest(
            session_id="q",
            positions=start,
            record_publisher=RecordPublisherType.EFO,
            consumers=(StreamConsumer("s", consumer["ConsumerARN"]),),
        )

        def put(data: bytes) -> None:
            client.put_record(StreamName="s", Data=data, PartitionKey="k")

        async with asyncio.timeout(120), LocalShardReader(KinesisBackend(session, publisher), config) as reader:
            epoch = await reader.open(request)

            async def behind() -> int:
                (stats,) = await reader.stats("q")
                return stats.millis_behind_latest

            await asyncio.to_thread(put, b"taken")
            while not (await reader.stats("q"))[0].records:  # noqa: ASYNC110  # the reader has no event for it
                await asyncio.sleep(0.01)
            # Nothing is taken any more, so nothing proves that nothing waits.
            await asyncio.to_thread(put, b"waits")
            for least in (1, 50):
                while await behind() < least:  # noqa: ASYNC110  # the reader has no event for it, and time passes
                    await asyncio.sleep(0.01)
            position, records = start, 0
            while records < 2:
                found = await reader.positions("q", epoch, position, wait_seconds=5)
                records += len(await read(reader, position, found.positions))
                position = found.positions
            await reader.commit("q", epoch, position)
            while await behind():  # noqa: ASYNC110  # the reader has no event for it
                await asyncio.sleep(0.01)
