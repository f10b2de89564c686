"""If a range is buffered in part, only the rest is read from Kinesis again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from reader_homes import read

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    ShardEvent,
    ShardPosition,
)
from penstock.efo_consumer.testing import FakeKinesis

BIG = 100_000


class Watched(FakeKinesis):
    """Remembers from where it was read again."""

    def __init__(self) -> None:
        super().__init__(event_records=1)
        self.reads: list[ShardPosition] = []

    async def read_once(
        self, stream_name: str, shard_id: str, after: ShardPosition, **options: Any
    ) -> AsyncGenerator[ShardEvent, None]:
        self.reads.append(after)
        async for event in super().read_once(stream_name, shard_id, after, **options):
            yield event


async def stands_still(kinesis: FakeKinesis) -> None:
    """Wait until the reader takes nothing more."""
    taken = -1
    async with asyncio.timeout(10):
        while taken != kinesis.events_taken:
            taken = kinesis.events_taken
            await asyncio.sleep(0.1)


async def test_of_a_range_that_is_held_in_part_only_the_rest_is_read_again() -> None:
    """Evicted segments at its beginning cost one read up to the first one that is held."""
    kinesis = Watched()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    numbers = kinesis.put("s", shard, 3, size=BIG)
    options = ReaderConfig(buffer_bytes_per_shard=3 * BIG, buffer_bytes=3 * BIG, promise_grace=timedelta(0))
    async with LocalShardReader(kinesis, options) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        await stands_still(kinesis)
        await reader.positions("q", epoch, start, wait_seconds=5)
        numbers += kinesis.put("s", shard, 2, size=BIG)
        await stands_still(kinesis)
        end = (await reader.positions("q", epoch, start, wait_seconds=5)).positions
        polls = kinesis.polls
        assert await read(reader, start, end) == numbers
        assert kinesis.reads == [ShardPosition.trim_horizon()]
        assert kinesis.polls - polls < len(numbers)
