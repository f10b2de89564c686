"""One shard gets half of the records: what becomes of the others (in simulated time)."""

import asyncio
import itertools
from collections.abc import Callable, Iterator

from benchmarks._harness import Case
from benchmarks.simulated_stream import SimulatedStream, SimulatedWriter
from penstock.async_sink import AsyncSinkConfig, RateLimitingStrategy, aimd_strategy, kinesis_strategy
from penstock.async_sink.testing import FakeClock, settle

_SHARDS = 8
_OFFERED_PER_SECOND = 8_000
_SECONDS = 20.0
_STEP_SECONDS = 0.02
# The hot shard is offered 4,000 records/s and takes 1,000: 60,000 of them wait after 20 seconds.
_BUFFER = 100_000
Strategy = Callable[[AsyncSinkConfig], RateLimitingStrategy]


async def _share_of_the_others(strategy: Strategy, seed: int) -> float:
    clock = FakeClock()
    stream = SimulatedStream(clock, _SHARDS)
    async with SimulatedWriter(stream, strategy, max_buffered_requests=_BUFFER) as writer:
        began = clock.now()

        async def write() -> None:
            for number in itertools.count(seed):
                # A writer that is full holds its caller up, and the caller is late from then on.
                while writer.records_written > (clock.now() - began) * _OFFERED_PER_SECOND:
                    await settle(1)
                shard = 0 if number % 2 else 1 + number // 2 % (_SHARDS - 1)
                await writer.write(stream.entry_for(shard, number))

        writing = asyncio.create_task(write(), name="write")
        while clock.now() < began + _SECONDS:
            await clock.advance(_STEP_SECONDS)
        accepted = stream.accepted.total() - stream.accepted[0]
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await writer.close()
    return accepted / (_OFFERED_PER_SECOND * _SECONDS / 2)


def run(rounds: int) -> Iterator[Case]:
    """The others' rate against what they were offered, while the buffer lasts."""
    ours = [asyncio.run(_share_of_the_others(kinesis_strategy, seed)) for seed in range(rounds)]
    theirs = [asyncio.run(_share_of_the_others(aimd_strategy, seed)) for seed in range(rounds)]
    yield Case(name="others-over-their-share", peer_name="their share", unit="", ours=ours, peers=[1.0] * rounds)
    yield Case(name="over-aimd-half", peer_name="AIMD x0.5", unit="", ours=ours, peers=theirs)
