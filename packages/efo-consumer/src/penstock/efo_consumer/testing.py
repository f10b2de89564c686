"""Kinesis without I/O, for tests of what reads shards: streams in memory that a test writes and reshards."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.efo_consumer._continuity.rule import OldestRecord, StreamFacts
from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions
from penstock.efo_consumer._model.shards import WIRE_SCHEMA, Shard, ShardEvent, StreamIdentity
from penstock.efo_consumer._publish.condition import NoteSign, unnoted
from penstock.efo_consumer._publish.publisher import RecordPublisher, RecordPublisherType, Room, unbounded
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.rpc import Signal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from penstock.efo_consumer._reader.config import SessionSettings

_MILLIS_PER_RECORD = 10


def arrival_micros(sequence_number: int) -> int:
    """When a fake record arrives, in microseconds since the epoch: ten milliseconds per unit of its number."""
    return sequence_number % (1 << 40) * _MILLIS_PER_RECORD * 1000


def wire_records(sequence_numbers: Sequence[int], data: Sequence[bytes] | None = None) -> pa.RecordBatch:
    """Make wire records; without `data` each holds its sequence number's digits."""
    payload = [str(number).encode() for number in sequence_numbers] if data is None else list(data)
    rows = len(sequence_numbers)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(payload, pa.binary()),
            pa.array([f"key-{number}" for number in sequence_numbers], pa.string()),
            pa.array([str(number) for number in sequence_numbers], pa.string()),
            pa.array([arrival_micros(number) for number in sequence_numbers], pa.timestamp("us", tz="UTC")),
            pa.nulls(rows, pa.string()),
        ],
        schema=WIRE_SCHEMA,
    )


def shard_event(
    records: pa.RecordBatch,
    continuation: int | None,
    *,
    child_shards: tuple[Shard, ...] = (),
    millis_behind_latest: int = 0,
    caught_up_millis: int | None = None,
    read_millis: int | None = None,
) -> ShardEvent:
    """Make an event; its byte count is the truth."""
    nbytes = sum(len(value.as_py()) for name in ("data", "partitionKey") for value in records.column(name))
    return ShardEvent(
        records=records,
        continuation=None if continuation is None else str(continuation),
        millis_behind_latest=millis_behind_latest,
        child_shards=child_shards,
        nbytes=nbytes,
        caught_up_millis=caught_up_millis,
        read_millis=read_millis,
    )


@dataclass
class FakeShard:
    """A shard: its records by sequence number, and what became of it."""

    shard_id: str
    parent_shard_ids: tuple[str, ...] = ()
    sequence_numbers: list[int] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    children: tuple[Shard, ...] = ()
    trimmed: int = 0
    gone: bool = False
    unlisted: bool = False
    hash_keys: tuple[int, int] = (0, 2**128 - 1)

    def listed(self) -> Shard:
        """As ListShards shows it."""
        first, last = self.hash_keys
        return Shard(self.shard_id, self.parent_shard_ids, str(first), str(last))


class FakeKinesis:
    """Streams in memory: a `ReaderBackend` for one event loop.

    A record's arrival time is ten milliseconds per unit of its sequence number. Sequence numbers are drawn from one
    counter, which is the service's clock too. Streams keep records for a day, which passes whenever some expire.

    Args:
        event_records: records of one event at most.
    """

    def __init__(self, *, event_records: int = 4) -> None:
        self.shards: dict[tuple[str, str], FakeShard] = {}
        self.tip = 1000
        self.subscriptions: list[tuple[str, str, ShardPosition]] = []
        self.events_taken = 0
        self.polls = 0
        self.closed = False
        self.created: dict[str, int] = {}
        """When each stream was created, in milliseconds since the epoch; nothing is known of others."""
        self.failures: dict[tuple[str, str], Exception] = {}
        self._event_records = event_records
        self._changed = Signal()

    def create_stream(self, stream: str, shards: int = 1) -> list[str]:
        """Add a stream; give its shards' ids."""
        return [self._add_shard(stream, (), keys) for keys in _split((0, 2**128 - 1), shards)]

    def put(self, stream: str, shard_id: str, count: int = 1, *, size: int = 0) -> list[int]:
        """Write records; give their sequence numbers. Each holds its number's digits, padded to `size` bytes."""
        shard = self.shards[stream, shard_id]
        assert not shard.children, f"{shard_id} is closed"
        written = []
        for _ in range(count):
            self.tip += 3
            shard.sequence_numbers.append(self.tip)
            shard.data.append(str(self.tip).encode().ljust(size, b"."))
            written.append(self.tip)
        self._changed.notify()
        return written

    def idle(self) -> None:
        """Let time pass: each followed shard that has nothing else gets an event without records."""
        self.tip += 1
        self._changed.notify()

    def reshard(self, stream: str, parents: Sequence[str], count: int) -> list[str]:
        """Close the parents and open `count` children of all of them: two of one is a split, one of two a merge."""
        keys = [key for parent in parents for key in self.shards[stream, parent].hash_keys]
        parts = _split((min(keys), max(keys)), count)
        ids = [self._add_shard(stream, tuple(parents), part) for part in parts]
        children = tuple(
            Shard(shard_id, tuple(parents), str(first), str(last))
            for shard_id, (first, last) in zip(ids, parts, strict=True)
        )
        for parent in parents:
            self.shards[stream, parent].children = children
        self._changed.notify()
        return ids

    def trim(self, stream: str, shard_id: str, upto: int) -> None:
        """Let a day pass, and the records up to a sequence number expire."""
        self.pass_day()
        self.shards[stream, shard_id].trimmed = upto

    def pass_day(self) -> None:
        """Let a day and an hour pass."""
        self.tip += 25 * 3600 * 1000 // _MILLIS_PER_RECORD

    def expire(self, stream: str, shard_id: str) -> None:
        """Let a day pass, and a closed shard disappear."""
        self.pass_day()
        self.shards[stream, shard_id].gone = True

    def fail(self, stream: str, shard_id: str, error: Exception) -> None:
        """Let every follower of the shard meet the error, once each."""
        self.failures[stream, shard_id] = error
        self._changed.notify()

    def trim_horizon(self, stream: str) -> StreamPositions:
        """Give the positions of a reader that begins with everything."""
        roots = {
            shard.shard_id: ShardPosition.trim_horizon()
            for (name, _), shard in self.shards.items()
            if name == stream and not shard.parent_shard_ids
        }
        return StreamPositions({stream: roots})

    def record_publisher(
        self, record_publisher: RecordPublisherType, consumer_arns: Mapping[str, str]
    ) -> RecordPublisher:
        """See `ReaderBackend.record_publisher`."""
        return FakePublisher(self.follow)

    async def list_shards(self, stream_name: str) -> list[Shard]:
        """See `ReaderBackend.list_shards`."""
        await asyncio.sleep(0)
        return [
            shard.listed()
            for (name, _), shard in self.shards.items()
            if name == stream_name and not (shard.gone or shard.unlisted)
        ]

    @property
    def retry_patience(self) -> timedelta:
        """See `ReaderBackend.retry_patience`."""
        return timedelta(minutes=10)

    def with_settings(self, settings: SessionSettings) -> FakeKinesis:
        """See `ReaderBackend.with_settings`; nothing here is retried or paced."""
        return self

    def with_patience(self, retry_patience: timedelta) -> FakeKinesis:
        """See `ReaderBackend.with_patience`; nothing here fails for a while."""
        return self

    async def read_once(
        self,
        stream_name: str,
        shard_id: str,
        after: ShardPosition,
        *,
        note: NoteSign = unnoted,
        is_open: bool | None = None,
    ) -> AsyncGenerator[ShardEvent, None]:
        """See `ReaderBackend.read_once`; a trimmed position is refused."""
        shard = self.shards[stream_name, shard_id]
        at = self._first_after(shard, after)
        await asyncio.sleep(0)
        if shard.gone or (after.sequence_number is not None and int(after.sequence_number) < shard.trimmed):
            code = "ResourceNotFoundException" if shard.gone else "InvalidArgumentException"
            raise RecordPublisherFatalError("expired", stream=stream_name, shard_id=shard_id, code=code)
        position = int(after.sequence_number or 0)
        while True:
            await asyncio.sleep(0)
            self.polls += 1
            event = self._take(shard, at, position)
            position = int(event.continuation or 0)
            at += event.records.num_rows
            yield event
            if event.continuation is None or at == len(shard.sequence_numbers):
                return

    def service_millis(self) -> int:
        """See `ContinuitySource.service_millis`: what a record that is put now would arrive at."""
        return self.tip % (1 << 40) * _MILLIS_PER_RECORD

    async def stream_facts(self, stream_name: str, *, is_fresh: bool = False) -> StreamFacts:
        """See `ContinuitySource.stream_facts`: records are kept for a day."""
        return StreamFacts(86_400_000, self.created.get(stream_name))

    async def oldest_record(self, stream_name: str, shard_id: str) -> OldestRecord | None:
        """See `ContinuitySource.oldest_record`; a shard that is gone is refused."""
        shard = self.shards.get((stream_name, shard_id))
        if shard is None or shard.gone:
            code = "ResourceNotFoundException"
            raise RecordPublisherFatalError("expired", stream=stream_name, shard_id=shard_id, code=code)
        left = [number for number in shard.sequence_numbers if number > shard.trimmed]
        return OldestRecord(left[0], arrival_micros(left[0]) // 1000) if left else None

    async def aclose(self) -> None:
        """See `ReaderBackend.aclose`."""
        self.closed = True

    async def follow(self, stream: str, shard_id: str, position: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        """Publish a shard as `RecordPublisher.publish` does; continuations are after the last record."""
        shard = self.shards[stream, shard_id]
        self.subscriptions.append((stream, shard_id, position))
        at, seen = self._first_after(shard, position), 0
        while True:
            if (stream, shard_id) in self.failures:
                raise self.failures.pop((stream, shard_id))
            if at == len(shard.sequence_numbers) and not shard.children and self.tip == seen:
                await self._changed.wait(3600)
                continue
            seen = self.tip
            event = self._take(shard, at, self.tip)
            at += event.records.num_rows
            self.events_taken += 1
            yield event
            if event.continuation is None:
                return

    def _take(self, shard: FakeShard, at: int, idle: int) -> ShardEvent:
        numbers = shard.sequence_numbers[at : at + self._event_records]
        records = wire_records(numbers, shard.data[at : at + self._event_records])
        left = len(shard.sequence_numbers) - at - len(numbers)
        if not left and shard.children:
            return shard_event(records, None, child_shards=shard.children)
        continuation = numbers[-1] + 1 if numbers else idle
        now = self.service_millis()
        return shard_event(
            records,
            continuation,
            millis_behind_latest=left * _MILLIS_PER_RECORD,
            caught_up_millis=None if left else now,
            read_millis=arrival_micros(shard.sequence_numbers[at + len(numbers)]) // 1000 if left else now,
        )

    def _first_after(self, shard: FakeShard, position: ShardPosition) -> int:
        after = shard.trimmed
        if position.sequence_number is not None:
            after = max(after, int(position.sequence_number))
        elif position.timestamp_millis is not None:
            after = max(after, -(-position.timestamp_millis // _MILLIS_PER_RECORD) - 1)
        return bisect_right(shard.sequence_numbers, after)

    def _add_shard(self, stream: str, parents: tuple[str, ...], hash_keys: tuple[int, int]) -> str:
        count = sum(name == stream for name, _ in self.shards)
        shard_id = f"shardId-{count:012d}"
        self.shards[stream, shard_id] = FakeShard(shard_id, parents, hash_keys=hash_keys)
        return shard_id


def _split(keys: tuple[int, int], count: int) -> list[tuple[int, int]]:
    first, last = keys
    step = (last - first + 1) // count
    return [(first + n * step, last if n == count - 1 else first + (n + 1) * step - 1) for n in range(count)]


class FakePublisher:
    """A `RecordPublisher`.

    Args:
        follow: publishes a shard of a stream from a position.
    """

    def __init__(self, follow: Callable[[str, str, ShardPosition], AsyncGenerator[ShardEvent, None]]) -> None:
        self._follow = follow

    def publish(
        self,
        stream: StreamIdentity,
        shard_id: str,
        position: ShardPosition,
        *,
        note: NoteSign = unnoted,
        room: Room = unbounded,
    ) -> AsyncGenerator[ShardEvent, None]:
        """See `RecordPublisher.publish`."""
        return self._follow(stream.name, shard_id, position)

    @property
    def interval_seconds(self) -> float:
        """See `RecordPublisher.interval_seconds`."""
        return 0.0

    def waits_since(self, stream: StreamIdentity, shard_id: str) -> float | None:
        """See `RecordPublisher.waits_since`."""
        return None

    def is_taken_over(self, stream: StreamIdentity, shard_id: str) -> bool:
        """See `RecordPublisher.is_taken_over`."""
        return False

    async def close(self) -> None:
        """See `RecordPublisher.close`."""
