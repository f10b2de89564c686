"""Whether simulated time says the truth: the scenarios of `recover` and `hot-shard` over real sockets, against it."""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

from benchmarks._harness import Case
from benchmarks.writing import hot_shard, recover
from benchmarks.writing.simulated_stream import RECORDS_PER_SECOND, Strategy, entry_for
from penstock.async_sink import (
    AsyncSinkConfig,
    AsyncSinkWriter,
    KinesisRequestEntry,
    KinesisStreamsSink,
    aimd_strategy,
    kinesis_strategy,
)
from penstock.aws.testing import emulator_options
from penstock.emulator.testing import RunningEmulator, running_emulator

_STREAM = "load"
_PAUSE_SECONDS = 0.005


class EmulatedStream:
    """A stream of the emulator, which runs on a thread of its own: a `LimitedStream` over real sockets."""

    def __init__(self, emulator: RunningEmulator, shards: int) -> None:
        self.shards = shards
        self._emulator = emulator
        self._share = 1.0
        client = emulator.client()
        client.create_stream(StreamName=_STREAM, ShardCount=shards)
        client.get_waiter("stream_exists").wait(StreamName=_STREAM, WaiterConfig={"Delay": 1})

    @property
    def accepted(self) -> Counter[int]:
        """Records by shard."""
        shards = self._emulator.kinesis.streams[_STREAM].shards
        return Counter({number: shard.tip for number, shard in enumerate(shards)})

    @property
    def share(self) -> float:
        """The share of its limits that we may use."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        self._share = share
        self._emulator.call(self._limit)

    def _limit(self) -> None:
        now = self._emulator.clock.time()
        for shard in self._emulator.kinesis.streams[_STREAM].shards:
            # A new bucket would accept the records of a second at once. A stream that recovers has no such reserve.
            bucket = type(shard._write_records)(RECORDS_PER_SECOND * self._share, now=now)
            bucket.take(bucket._capacity)
            shard._write_records = bucket

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    async def spend(self, seconds: float) -> None:
        """Let the time pass."""
        await asyncio.sleep(seconds)

    async def pause(self) -> None:
        """For who is ahead of the time: let somebody else run."""
        await asyncio.sleep(_PAUSE_SECONDS)

    def entry_for(self, shard: int, number: int) -> KinesisRequestEntry:
        """A record for a shard."""
        return entry_for(shard, self.shards, number)

    def writer(self, strategy: Strategy, **limits: Any) -> AsyncSinkWriter[Any, Any]:
        """A writer to the stream, to be entered."""
        options = emulator_options(self._emulator.endpoint_url)
        config = AsyncSinkConfig(**limits)
        return KinesisStreamsSink(options, _STREAM, config=config, strategy=strategy).create_writer()


def _recover(strategy: Strategy, warm_up_seconds: float) -> float:
    with running_emulator(tls=False) as emulator:
        stream = EmulatedStream(emulator, recover.SHARDS)
        return _run(recover.seconds_to_recover(stream, strategy, warm_up_seconds))


def _hot_shard(strategy: Strategy) -> float:
    with running_emulator(tls=False) as emulator:
        return _run(hot_shard.share_of_the_others(EmulatedStream(emulator, hot_shard.SHARDS), strategy, 0))


def _run(scenario: Coroutine[Any, Any, float]) -> float:
    return asyncio.run(scenario)


def run(rounds: int) -> Iterator[Case]:
    """What happened over sockets against what was simulated, for two strategies that differ much."""
    for slug, strategy in (("kinesis", kinesis_strategy), ("aimd-half", aimd_strategy)):
        warm_ups = [5.0 + 0.37 * number for number in range(rounds)]
        yield Case(
            name=f"recover-{slug}",
            peer_name="simulated",
            unit="s",
            ours=[_recover(strategy, warm_up) for warm_up in warm_ups],
            peers=[recover.simulated(strategy, warm_up) for warm_up in warm_ups],
        )
        yield Case(
            name=f"hot-shard-{slug}",
            peer_name="simulated",
            unit="of their share",
            ours=[_hot_shard(strategy) for _ in range(rounds)],
            peers=[hot_shard.simulated(strategy, 0)] * rounds,
        )
