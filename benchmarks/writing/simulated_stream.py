"""A stream with Kinesis's limits in simulated time: its seconds pass in a moment, on any machine the same."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.async_sink import (
    AsyncSinkConfig,
    AsyncSinkWriter,
    EntryFailure,
    KinesisRequestEntry,
    RateLimitingStrategy,
    ResultHandler,
)
from penstock.async_sink.testing import FakeClock, FakeKinesisWriter, settle

RECORDS_PER_SECOND = 1_000.0
_ROUND_TRIP_SECONDS = 0.02
_STEP_SECONDS = 0.02
_SPACE = 2**128
Strategy = Callable[[AsyncSinkConfig], RateLimitingStrategy]


class LimitedStream(Protocol):
    """What the scenarios need of a stream, a simulated or a real one."""

    shards: int
    share: float
    """The share of its limits that we may use."""

    @property
    def accepted(self) -> Mapping[int, int]:
        """Records by shard."""

    def now(self) -> float:
        """Seconds."""

    async def spend(self, seconds: float) -> None:
        """Let the time pass."""

    async def pause(self) -> None:
        """For who is ahead of the time: let somebody else run."""

    def entry_for(self, shard: int, number: int) -> KinesisRequestEntry:
        """A record for a shard."""

    def writer(self, strategy: Strategy, **limits: Any) -> AsyncSinkWriter[Any, Any]:
        """A writer to the stream, to be entered."""


class SimulatedStream:
    """Shards that take 1,000 records/s each, and hold a second's worth of it; `share` of that is left to us."""

    def __init__(self, clock: FakeClock, shards: int) -> None:
        self.clock = clock
        self.shards = shards
        self.share = 1.0
        self.accepted: Counter[int] = Counter()
        """Records by shard."""
        self.throttled = 0
        self._tokens = [RECORDS_PER_SECOND] * shards
        self._updated = clock.now()

    async def put(self, entries: Sequence[KinesisRequestEntry], handler: ResultHandler[KinesisRequestEntry]) -> None:
        """Answer PutRecords as the service does, half a round trip later each way."""
        await self._pass(_ROUND_TRIP_SECONDS / 2)
        failures, lanes = self._admit(entries)
        await self._pass(_ROUND_TRIP_SECONDS / 2)
        handler.retry_failures(failures, lanes=lanes)

    async def _pass(self, seconds: float) -> None:
        passed = asyncio.Event()
        self.clock.call_at(self.clock.now() + seconds, passed.set)
        await passed.wait()

    def _admit(self, entries: Sequence[KinesisRequestEntry]) -> tuple[list[EntryFailure], list[str]]:
        now = self.clock.now()
        rate = RECORDS_PER_SECOND * self.share
        self._tokens = [min(rate, tokens + (now - self._updated) * rate) for tokens in self._tokens]
        self._updated = now
        failures, lanes = [], []
        for index, entry in enumerate(entries):
            shard = int(entry.explicit_hash_key or 0) * self.shards // _SPACE
            lanes.append(f"shardId-{shard:012}")
            if self._tokens[shard] >= 1.0:
                self._tokens[shard] -= 1.0
                self.accepted[shard] += 1
            else:
                self.throttled += 1
                failures.append(EntryFailure(index, "ProvisionedThroughputExceededException"))
        return failures, lanes

    def now(self) -> float:
        """Seconds."""
        return self.clock.now()

    async def spend(self, seconds: float) -> None:
        """Let the time pass."""
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            await self.clock.advance(_STEP_SECONDS)

    async def pause(self) -> None:
        """For who is ahead of the time: somebody else lets it pass."""
        await settle(1)

    def entry_for(self, shard: int, number: int) -> KinesisRequestEntry:
        """A record for a shard."""
        return entry_for(shard, self.shards, number)

    def writer(self, strategy: Strategy, **limits: Any) -> FakeKinesisWriter:
        """A writer to the stream, to be entered."""
        config = AsyncSinkConfig(**limits)
        return FakeKinesisWriter(self.put, config, strategy=strategy(config), clock=self.clock)


def entry_for(shard: int, shards: int, number: int) -> KinesisRequestEntry:
    """A record for a shard of so many."""
    width = _SPACE // shards
    return KinesisRequestEntry(b"x", f"key-{number}", str(shard * width + number % 997 * (width // 997)))
