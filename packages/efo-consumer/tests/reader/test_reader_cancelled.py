"""Calls that are cancelled in the middle leave nothing open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import pytest

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    RecordPublisher,
    RecordPublisherType,
    ShardEvent,
    ShardPosition,
)
from penstock.efo_consumer.testing import FakeKinesis


class SlowToEnd(FakeKinesis):
    """Its subscriptions take their time to end; it remembers which publishers were closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ending, self.may_end = asyncio.Event(), asyncio.Event()
        self.made: list[RecordPublisherType] = []
        self.closed_publishers: list[RecordPublisherType] = []

    def record_publisher(
        self, record_publisher: RecordPublisherType, consumer_arns: Mapping[str, str]
    ) -> RecordPublisher:
        publisher = super().record_publisher(record_publisher, consumer_arns)
        self.made.append(record_publisher)

        async def close() -> None:
            self.closed_publishers.append(record_publisher)

        publisher.close = close  # type: ignore[method-assign]  # of this one
        return publisher

    async def follow(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        try:
            async for event in super().follow(stream, shard_id, position):
                yield event
        finally:
            self.is_ending.set()
            await self.may_end.wait()


async def test_a_caller_that_gives_up_while_publishers_change_leaves_none_open() -> None:
    """The previous one is closed anyway, and the next open continues with the new one."""
    kinesis = SlowToEnd()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    efo, polling = RecordPublisherType.EFO, RecordPublisherType.POLLING
    async with asyncio.timeout(10), LocalShardReader(kinesis) as reader:
        await reader.open(OpenRequest(session_id="q", positions=start, record_publisher=efo))
        while not kinesis.subscriptions:  # noqa: ASYNC110  # what is awaited is in the reader's inner state
            await asyncio.sleep(0)
        opening = asyncio.ensure_future(
            reader.open(OpenRequest(session_id="q", positions=start, record_publisher=polling))
        )
        await kinesis.is_ending.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert kinesis.closed_publishers == [efo]
        kinesis.may_end.set()
        kinesis.put("s", shard, 3)
        epoch = await reader.open(OpenRequest(session_id="q", positions=start, record_publisher=polling))
        assert (await reader.positions("q", epoch, start, wait_seconds=5)).records == 3
        assert kinesis.made == [efo, polling]
    assert kinesis.closed_publishers == [efo, polling]
