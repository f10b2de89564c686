"""Tasks that take their time with what they read, on a loop whose time is moved."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from fleet_in_memory import SkippingLoop

from penstock.efo_consumer import LocalShardReader, ShardPosition, ShardRange
from penstock.efo_consumer.testing import FakeKinesis


def test_a_task_that_is_slow_is_no_range_that_does_not_come() -> None:
    """The deadline is for reading from Kinesis again, not for what the task does between two batches."""
    loop = SkippingLoop()

    async def run() -> list[int]:
        kinesis = FakeKinesis(event_records=1)
        (shard,) = kinesis.create_stream("s")
        numbers = kinesis.put("s", shard, 4, size=2000)
        whole = ShardRange("s", shard, ShardPosition.trim_horizon(), ShardPosition.after(str(numbers[-1])))
        read: list[int] = []
        async with (
            LocalShardReader(kinesis) as reader,
            aclosing(reader.read_range("q", [whole], max_batch_bytes=1)) as batches,
        ):
            async for batch in batches:
                read += [int(number) for number in batch.column("sequenceNumber").to_pylist()]
                await asyncio.sleep(90)
        assert read == numbers
        return read

    try:
        assert len(loop.run_until_complete(run())) == 4
    finally:
        loop.close()
