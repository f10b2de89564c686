"""A stream's limits are used and kept to, in simulated time."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from penstock.async_sink import AsyncSinkConfig, EntryFailure, KinesisRequestEntry, kinesis_strategy
from penstock.async_sink.errors import BufferFullError
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
    async with open_writer(clock, stream, max_buffered_requests=20_000) as writer:
        began = clock.now()

        async def write() -> None:
            for number in itertools.count():
                while writer.records_written > (clock.now() - began) * per_second:
                    await settle(1)
                shard = 0 if hot and number % 2 else number // 2 % 4
                await writer.write(entry(shard, number))

        await spend_with(clock, seconds, write())


@asynccontextmanager
async def open_writer(clock: FakeClock, stream: Shards, **limits: Any) -> AsyncIterator[ShardedWriter]:
    """A writer in batches of 100 that is closed without a flush."""
    config = AsyncSinkConfig(max_batch_size=100, **limits)
    writer = ShardedWriter(stream, config, clock=clock, strategy=kinesis_strategy(config))
    await writer.__aenter__()
    yield writer
    await writer.close()


async def spend_with(clock: FakeClock, seconds: float, *sources: Any) -> None:
    """Let the time pass while sources write, then stop them."""
    writing = [asyncio.create_task(source) for source in sources]
    await spend(clock, seconds)
    for task in writing:
        task.cancel()
    for ended in await asyncio.gather(*writing, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError)


async def test_goodput_is_close_to_the_limit_and_few_records_are_throttled() -> None:
    """At three times the capacity of four shards, 98 % of the limit is written and less than 5 % refused."""
    clock = FakeClock()
    stream = Shards(clock)
    await run_at(clock, stream, False, 3 * 4 * RATE, 20.0)
    # The shards are full at the beginning: a second's worth comes on top.
    assert stream.by_shard.total() >= 0.98 * 4 * RATE * 21.0 - 0.06 * 4 * RATE
    assert stream.throttled / stream.sent < 0.05


async def test_a_hot_shard_does_not_slow_the_others_down() -> None:
    """With half of the records for one shard, the others get at least nine tenths of their rate."""
    clock = FakeClock()
    stream = Shards(clock)
    offered = 4 * RATE
    await run_at(clock, stream, True, offered, 10.0)
    others = stream.by_shard.total() - stream.by_shard["a"]
    assert others >= 0.9 * offered * 10.0 * 3 / 8


PER_SECOND = (3.0 * RATE, 0.3 * RATE, 0.3 * RATE, 0.3 * RATE)
"""Records of a source for each of four shards: the first shard accepts a third of them."""
BUFFER = 600


async def without_waiting(writer: ShardedWriter, each: KinesisRequestEntry) -> bool:
    return writer.write_nowait([each]) == 1


async def by_the_error(writer: ShardedWriter, each: KinesisRequestEntry) -> bool:
    try:
        await writer.write(each)
    except BufferFullError as full:
        if full.lane != "a":
            raise
        return False
    return True


@pytest.mark.parametrize("offer", [without_waiting, by_the_error])
async def test_one_source_that_learns_of_a_full_shard_serves_the_others_at_their_rate(
    offer: Callable[[ShardedWriter, KinesisRequestEntry], Awaitable[bool]],
) -> None:
    """It keeps back what has no room. The others get 95 % of their rate or more, and the hot shard all that it takes;
    records of a shard arrive in their order, none is lost, and the buffer keeps within its bound."""
    clock = FakeClock()
    stream = Shards(clock)
    async with open_writer(clock, stream, max_buffered_requests=BUFFER, max_block_time=timedelta(0)) as writer:
        began, offered, most = clock.now(), [0] * 4, 0

        async def source() -> None:
            nonlocal most
            for shard in itertools.cycle(range(4)):
                due = (clock.now() - began) * PER_SECOND[shard]
                while offered[shard] < due and await offer(writer, entry(shard, offered[shard])):
                    offered[shard] += 1
                most = max(most, writer.buffered_entries)
                if shard == 3:
                    await settle(1)

        await spend_with(clock, 20.0, source())
        others = stream.by_shard.total() - stream.by_shard["a"]
        assert others >= 0.95 * 20.0 * sum(PER_SECOND[1:])
        assert stream.by_shard["a"] >= 0.95 * 20.0 * RATE
        assert most <= BUFFER
        while writer.write_nowait([entry(0, offered[0])]):
            offered[0] += 1
        # Its shard is a guess: no answer has named the shard of a hash key above it.
        assert writer.write_nowait([KinesisRequestEntry(b"", "b", str(100 * 2**118))]) == 1
        offered[1] += 1
        await clock.advance(0.1)
        assert stream.by_shard.total() + len(writer.snapshot_state()[0].entries) == sum(offered)


async def test_tasks_that_write_wait_each_for_its_own_shard() -> None:
    """A task that waits for the hot shard delays no other task: the others write at 95 % of their rate or more."""
    clock = FakeClock()
    stream = Shards(clock)
    async with open_writer(clock, stream, max_buffered_requests=BUFFER) as writer:
        began = clock.now()

        async def source(shard: int) -> None:
            for number in itertools.count():
                while number >= (clock.now() - began) * PER_SECOND[shard]:
                    await settle(1)
                await writer.write(entry(shard, number))

        await spend_with(clock, 20.0, *map(source, range(4)))
        others = stream.by_shard.total() - stream.by_shard["a"]
        assert others >= 0.95 * 20.0 * sum(PER_SECOND[1:])
        assert "buffer_records" not in writer.metrics.blocked_seconds


@pytest.mark.parametrize("moment", [3.0, 3.3, 3.7])
async def test_a_writer_is_back_soon_after_an_outage(moment: float) -> None:
    """After ten seconds at a tenth of the limit, nine tenths are reached again within three seconds."""
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
