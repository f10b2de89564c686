"""A stream with Kinesis's limits in simulated time: its seconds pass in a moment, on any machine the same."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from penstock.async_sink import AsyncSinkConfig, EntryFailure, KinesisRequestEntry, RateLimitingStrategy, ResultHandler
from penstock.async_sink._kinesis._writer import KinesisEntryWriter
from penstock.async_sink.testing import FakeClock

RECORDS_PER_SECOND = 1_000.0
_ROUND_TRIP_SECONDS = 0.02
_SPACE = 2**128


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

    def entry_for(self, shard: int, number: int) -> KinesisRequestEntry:
        """A record for a shard."""
        width = _SPACE // self.shards
        return KinesisRequestEntry(b"x", f"key-{number}", str(shard * width + number % 997 * (width // 997)))


class SimulatedWriter(KinesisEntryWriter):
    """A writer to such a stream."""

    def __init__(
        self, stream: SimulatedStream, strategy: Callable[[AsyncSinkConfig], RateLimitingStrategy], **limits: int
    ) -> None:
        config = AsyncSinkConfig(**limits)
        super().__init__(config, destination="simulated", strategy=strategy(config), clock=stream.clock)
        self._stream = stream

    async def submit_request_entries(
        self, entries: Sequence[KinesisRequestEntry], result_handler: ResultHandler[KinesisRequestEntry]
    ) -> None:
        """Put the records into the stream."""
        await self._stream.put(entries, result_handler)
