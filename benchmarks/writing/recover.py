"""How soon a writer is back: the stream at a tenth of its limit for 20 seconds, then whole (in simulated time)."""

import asyncio
import itertools
from collections.abc import Iterator

from benchmarks._harness import Case
from benchmarks.writing.simulated_stream import RECORDS_PER_SECOND, LimitedStream, SimulatedStream, Strategy
from penstock.async_sink import aimd_strategy, kinesis_strategy
from penstock.async_sink.testing import FakeClock

SHARDS = 4
_OUTAGE_SECONDS = 20.0
_WINDOW_SECONDS = 0.5
_STEP_SECONDS = 0.02
_GIVE_UP_SECONDS = 60.0


async def seconds_to_recover(stream: LimitedStream, strategy: Strategy, warm_up_seconds: float) -> float:
    """From the end of an outage until nine tenths of the limit flow again."""
    # What the stream has let through beyond its own rate right after the outage does not count as recovered.
    target = 0.9 * stream.shards * RECORDS_PER_SECOND * _WINDOW_SECONDS
    async with stream.writer(strategy) as writer:

        async def write() -> None:
            for number in itertools.count():
                await writer.write(stream.entry_for(number % stream.shards, number))

        writing = asyncio.create_task(write(), name="write")
        await stream.spend(warm_up_seconds)
        stream.share = 0.1
        await stream.spend(_OUTAGE_SECONDS)
        stream.share = 1.0
        began = stream.now()
        totals = [(began, sum(stream.accepted.values()))]
        while stream.now() - began < _GIVE_UP_SECONDS:
            await stream.spend(_STEP_SECONDS)
            now, total = stream.now(), sum(stream.accepted.values())
            totals.append((now, total))
            # The youngest that is a whole window old.
            old = next((each for each in reversed(totals) if each[0] <= now - _WINDOW_SECONDS + 1e-9), None)
            if old is not None and total - old[1] >= target * (now - old[0]) / _WINDOW_SECONDS:
                break
        seconds = stream.now() - began
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await writer.close()
    return seconds


def simulated(strategy: Strategy, warm_up_seconds: float) -> float:
    """The same over a simulated stream."""

    async def simulate() -> float:
        return await seconds_to_recover(SimulatedStream(FakeClock(), SHARDS), strategy, warm_up_seconds)

    return asyncio.run(simulate())


def run(rounds: int) -> Iterator[Case]:
    """Seconds until 90 % of the limit flow again; each round begins the outage at another moment of the pace."""
    ours, theirs = [], []
    for number in range(rounds):
        warm_up = 5.0 + 0.37 * number
        ours.append(simulated(kinesis_strategy, warm_up))
        theirs.append(simulated(aimd_strategy, warm_up))
    yield Case(name="seconds-to-90-percent", peer_name="none", unit="s", ours=ours, peers=[1.0] * rounds)
    yield Case(name="over-aimd-half", peer_name="AIMD x0.5", unit="s", ours=ours, peers=theirs)
