"""How soon a writer is back: the stream at a tenth of its limit for 20 seconds, then whole (in simulated time)."""

import asyncio
import itertools
from collections.abc import Callable, Iterator

from benchmarks._harness import Case
from benchmarks.simulated_stream import RECORDS_PER_SECOND, SimulatedStream, SimulatedWriter
from penstock.async_sink import AsyncSinkConfig, RateLimitingStrategy, aimd_strategy, kinesis_strategy
from penstock.async_sink.testing import FakeClock

_SHARDS = 4
_OUTAGE_SECONDS = 20.0
_WINDOW_SECONDS = 0.5
_STEP_SECONDS = 0.02
_GIVE_UP_SECONDS = 60.0
Strategy = Callable[[AsyncSinkConfig], RateLimitingStrategy]


async def _seconds_to_recover(strategy: Strategy, warm_up_seconds: float) -> float:
    clock = FakeClock()
    stream = SimulatedStream(clock, _SHARDS)
    # What the stream has let through beyond its own rate right after the outage does not count as recovered.
    target = 0.9 * _SHARDS * RECORDS_PER_SECOND * _WINDOW_SECONDS
    async with SimulatedWriter(stream, strategy) as writer:

        async def write() -> None:
            for number in itertools.count():
                await writer.write(stream.entry_for(number % _SHARDS, number))

        async def spend(seconds: float) -> None:
            until = clock.now() + seconds
            while clock.now() < until:
                await clock.advance(_STEP_SECONDS)

        writing = asyncio.create_task(write(), name="write")
        await spend(warm_up_seconds)
        stream.share = 0.1
        await spend(_OUTAGE_SECONDS)
        stream.share = 1.0
        began = clock.now()
        windows = [stream.accepted.total()]
        while clock.now() - began < _GIVE_UP_SECONDS:
            await clock.advance(_STEP_SECONDS)
            windows.append(stream.accepted.total())
            steps = int(_WINDOW_SECONDS / _STEP_SECONDS)
            if len(windows) > steps and windows[-1] - windows[-1 - steps] >= target:
                break
        seconds = clock.now() - began
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await writer.close()
    return seconds


def run(rounds: int) -> Iterator[Case]:
    """Seconds until 90 % of the limit flow again; each round begins the outage at another moment of the pace."""
    ours, theirs = [], []
    for number in range(rounds):
        warm_up = 5.0 + 0.37 * number
        ours.append(asyncio.run(_seconds_to_recover(kinesis_strategy, warm_up)))
        theirs.append(asyncio.run(_seconds_to_recover(aimd_strategy, warm_up)))
    yield Case(name="seconds-to-90-percent", peer_name="nobody", unit="s", ours=ours, peers=[1.0] * rounds)
    yield Case(name="over-aimd-half", peer_name="AIMD x0.5", unit="s", ours=ours, peers=theirs)
