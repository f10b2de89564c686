"""A stream's limits are used and kept to, in simulated time."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.async_sink import AsyncSinkConfig, EntryFailure, KinesisRequestEntry, kinesis_strategy
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeWriter, settle

RATE = 200.0


class Shards(FakeDestination):
    """Takes RATE records/s for each first letter of the partition key, and holds a second's worth; 20 ms away."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.share, self.throttled, self.sent = clock, 1.0, 0, 0
        self.by_shard: Counter[str] = Counter()
        self._tokens: dict[str, tuple[float, float]] = {}

    async def submit(self, entries: Sequence[Any], handler: Any) -> None:
        arrived = asyncio.Event()
        self.clock.call_at(self.clock.now() + 0.02, arrived.set)
        await arrived.wait()
        self.sent += len(entries)
        failures = [EntryFailure(index, "Slow") for index, entry in enumerate(entries) if not self._admit(entry)]
        self.throttled += len(failures)
        handler.retry_failures(failures, lanes=[entry.partition_key[0] for entry in entries])

    def _admit(self, entry: KinesisRequestEntry) -> bool:
        shard, now, rate = entry.partition_key[0], self.clock.now(), RATE * self.share
        tokens, updated = self._tokens.get(shard, (rate, now))
        tokens = min(rate, tokens + (now - updated) * rate)
        admitted = tokens >= 1.0
        self._tokens[shard] = (tokens - admitted, now)
        self.by_shard[shard] += admitted
        return admitted


class ShardedWriter(FakeWriter):
    def get_size_in_bytes(self, entry: KinesisRequestEntry) -> int:
        return 100


def entry(shard: int, number: int) -> KinesisRequestEntry:
    return KinesisRequestEntry(b"", "abcd"[shard], str(shard * 2**126 + number % 100 * 2**118))


async def spend(clock: FakeClock, seconds: float) -> None:
    until = clock.now() + seconds
    while clock.now() < until:
        await clock.advance(0.02)


async def run_at(clock: FakeClock, stream: Shards, hot: bool, per_second: float, seconds: float) -> None:
    """Offer so many records a second; half of them to one shard if it is hot."""
    config = AsyncSinkConfig(max_batch_size=100, max_buffered_requests=20_000)
    writer = ShardedWriter(stream, config, clock=clock, strategy=kinesis_strategy(config))
    await writer.__aenter__()
    began = clock.now()

    async def write() -> None:
        for number in itertools.count():
            while writer.records_written > (clock.now() - began) * per_second:
                await settle(1)
            shard = 0 if hot and number % 2 else number // 2 % 4
            await writer.write(entry(shard, number))

    writing = asyncio.create_task(write())
    await spend(clock, seconds)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await writer.close()


async def test_goodput_is_close_to_the_limit_and_few_records_are_throttled() -> None:
    """Offered three times what four shards take: 98 % of the limit flow, less than 5 % are refused."""
    clock = FakeClock()
    stream = Shards(clock)
    await run_at(clock, stream, False, 3 * 4 * RATE, 20.0)
    # The shards are full at the beginning: a second's worth comes on top.
    assert stream.by_shard.total() >= 0.98 * 4 * RATE * 21.0 - 0.06 * 4 * RATE
    assert stream.throttled / stream.sent < 0.05


async def test_a_hot_shard_does_not_slow_the_others_down() -> None:
    """With half of the records for one shard, the others get nine tenths of theirs, or more."""
    clock = FakeClock()
    stream = Shards(clock)
    offered = 4 * RATE
    await run_at(clock, stream, True, offered, 10.0)
    others = stream.by_shard.total() - stream.by_shard["a"]
    assert others >= 0.9 * offered * 10.0 * 3 / 8


@pytest.mark.parametrize("moment", [3.0, 3.3, 3.7])
async def test_a_writer_is_back_soon_after_an_outage(moment: float) -> None:
    """Ten seconds at a tenth of the limit, then whole: after three seconds nine tenths flow again."""
    clock = FakeClock()
    stream = Shards(clock)
    running = asyncio.create_task(run_at(clock, stream, False, 3 * 4 * RATE, moment + 14.0))
    while stream.clock.now() < 1_000.0 + moment:
        await settle(1)
    stream.share = 0.1
    while stream.clock.now() < 1_000.0 + moment + 10.0:
        await settle(1)
    stream.share = 1.0
    while stream.clock.now() < 1_000.0 + moment + 13.0:
        await settle(1)
    before = stream.by_shard.total()
    await running
    assert stream.by_shard.total() - before >= 0.9 * 4 * RATE * 0.98
