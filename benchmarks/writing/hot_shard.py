"""One shard gets most of the records: what becomes of the others (in simulated time)."""

import asyncio
import itertools
from collections.abc import Iterator

from benchmarks._harness import Case
from benchmarks.writing.simulated_stream import LimitedStream, SimulatedStream, Strategy
from penstock.async_sink import aimd_strategy, kinesis_strategy
from penstock.async_sink.testing import FakeClock

SHARDS = 8
_OFFERED_PER_SECOND = 8_000
_SECONDS = 20.0
# The hot shard is offered 4,000 records/s and takes 1,000: 60,000 of them wait after 20 seconds.
_BUFFER = 100_000

_RATES = (3_000, 300, 300, 300)
"""Records per second that one source has for each of four shards, which take 1,000."""
_MINUTE = 60.0
_AT_A_TIME = 100


async def share_of_the_others(stream: LimitedStream, strategy: Strategy, seed: int) -> float:
    """What the other shards accept of what they are offered."""
    async with stream.writer(strategy, max_buffered_requests=_BUFFER) as writer:
        began = stream.now()

        async def write() -> None:
            for number in itertools.count(seed):
                # A writer that is full holds its caller up, and the caller is late from then on.
                while writer.records_written > (stream.now() - began) * _OFFERED_PER_SECOND:
                    await stream.pause()
                shard = 0 if number % 2 else 1 + number // 2 % (stream.shards - 1)
                await writer.write(stream.entry_for(shard, number))

        writing = asyncio.create_task(write(), name="write")
        await stream.spend(_SECONDS)
        seconds = stream.now() - began
        accepted = sum(stream.accepted.values()) - stream.accepted[0]
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await writer.close()
    return accepted / (_OFFERED_PER_SECOND * seconds / 2)


async def share_of_one_source(stream: LimitedStream, strategy: Strategy, seed: int) -> float:
    """What the other shards accept of what one source offers them for a minute, with the default buffer.

    The source asks whether there is room, and keeps the records of a full shard back.
    """
    async with stream.writer(strategy) as writer:
        began, offered = stream.now(), [0] * len(_RATES)

        async def source() -> None:
            while True:
                now = stream.now()
                for shard, rate in enumerate(_RATES):
                    due = range(offered[shard], int((now - began) * rate))[:_AT_A_TIME]
                    offered[shard] += writer.write_nowait([stream.entry_for(shard, seed + number) for number in due])
                while stream.now() == now:
                    await stream.pause()

        writing = asyncio.create_task(source(), name="source")
        await stream.spend(_MINUTE)
        seconds = stream.now() - began
        accepted = sum(stream.accepted.values()) - stream.accepted[0]
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await writer.close()
    return accepted / (sum(_RATES[1:]) * seconds)


def simulated(strategy: Strategy, seed: int) -> float:
    """The same over a simulated stream."""

    async def simulate() -> float:
        return await share_of_the_others(SimulatedStream(FakeClock(), SHARDS), strategy, seed)

    return asyncio.run(simulate())


def simulated_source(strategy: Strategy, seed: int) -> float:
    """One source over a simulated stream."""

    async def simulate() -> float:
        return await share_of_one_source(SimulatedStream(FakeClock(), len(_RATES)), strategy, seed)

    return asyncio.run(simulate())


def run(rounds: int) -> Iterator[Case]:
    """The others' rate against what they were offered: while the buffer lasts, and by one source for a minute."""
    ours = [simulated(kinesis_strategy, seed) for seed in range(rounds)]
    theirs = [simulated(aimd_strategy, seed) for seed in range(rounds)]
    yield Case(name="others-over-their-share", peer_name="their share", unit="", ours=ours, peers=[1.0] * rounds)
    yield Case(name="over-aimd-half", peer_name="AIMD x0.5", unit="", ours=ours, peers=theirs)
    source = [simulated_source(kinesis_strategy, seed) for seed in range(rounds)]
    yield Case(name="one-source-over-its-rate", peer_name="its rate", unit="", ours=source, peers=[1.0] * rounds)
