"""A model of a stream, its readers and a caller like Spark: every record comes once and in time, or a loss is named.

The world is an emulator whose clock runs with real time and can be moved on by hours. The caller keeps a log of offsets
as JSON, asks how far it may go, writes that down, and reads the ranges in between, once or again, by one way of reading
or another. What it is given is compared with what was written.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Self, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from penstock.aws import AwsError, AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    SERVICE_NAME,
    DataLossError,
    EfoConsumerError,
    FleetShardReader,
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherConfig,
    RecordPublisherType,
    ShardPosition,
    ShardRange,
    ShardReader,
    ShardReaderServicer,
    StreamConsumer,
    StreamPositions,
    StreamRecreatedError,
    ranges_between,
    resolve_initial_positions,
)
from penstock.emulator import Behaviour
from penstock.emulator.testing import ManualClock, RunningEmulator, UserRecord, aggregate, running_emulator
from penstock.rpc import GrpcServer, ServerSettings

T = TypeVar("T")

STREAM = "orders"
HOUR = 3600.0
RETENTIONS = [24, 24, 48, 72]
"""Hours for which a stream keeps its records; they change while it is read."""
SLACK = 3.0
"""Seconds around an expiry in which a record may be there or not."""
PROOF_SLACK = 60.0
"""Seconds before the end of the retention in which nothing has to be proved."""
SHORTEST_SECONDS = 24 * HOUR
"""For which any stream keeps its records."""
FACTS_SECONDS = HOUR + 30.0
"""How old the facts of a shard may be that is followed all the time: the reader tells them once an hour."""
PATIENCE_SECONDS = 25.0
"""Real seconds until records that are there have to come."""
MAX_SHARDS = 8
PAGE_SPAN = timedelta(hours=8)
SKEW_SECONDS = 60.0
"""How much older than the latest record of an earlier batch a record may be."""
WAITS = [60.0, 600.0, HOUR, 11 * HOUR, 23 * HOUR, 23.5 * HOUR, 25 * HOUR]
INDICES = st.integers(0, 1000)
Row = tuple[str, tuple[int, int], bytes]
"""Shard, sequence number with the number within an aggregate, and data."""


class ViolationError(AssertionError):
    """The reader broke its promise."""


@dataclass(frozen=True, slots=True)
class Written:
    """A record, or a user record of an aggregate, that Kinesis acknowledged, and when by the emulator's clock."""

    generation: int
    shard: str
    number: int
    name: bytes
    put_at: float
    is_sent_again: bool = False
    """Whether its producer has put it into another shard as well, under another name."""


class Loop:
    """An event loop on a thread of its own: readers keep running while the caller does nothing."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="readers", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, T], seconds: float = 90.0) -> T:
        """Give a call's result.

        Raises:
            TimeoutError: no result came within some real seconds.
        """
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(seconds)

    def close(self) -> None:
        """End the loop and its tasks."""

        async def cancel() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with suppress(TimeoutError):
            self.run(cancel(), 10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class RunningClock(ManualClock):
    """Runs with real time, as readers expect of a service, and can be moved on besides."""

    def __init__(self) -> None:
        super().__init__(time.time())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emulator clock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(0.02):
            now = time.monotonic()
            self.advance(now - before)
            before = now


class Losses(logging.Handler):
    """Losses that were counted instead of raised: each is logged once where it is counted."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.new: list[DataLossError] = []
        self.doubted: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the losses among the warnings, and the shards of which nothing is proved."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        if "if the retention period was never shorter" in str(record.msg):
            self.doubted.add(str(arguments[1]))
        self.new += [argument for argument in arguments if isinstance(argument, DataLossError)]

    def __enter__(self) -> Self:
        logging.getLogger("penstock.efo_consumer").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("penstock.efo_consumer").removeHandler(self)


class World:
    """The stream, and what was written to it."""

    def __init__(self, emulator: RunningEmulator, clock: ManualClock) -> None:
        self.emulator = emulator
        self.clock = clock
        self.client = emulator.client()
        self.generation = 0
        self.records: list[Written] = []
        self.retentions: list[tuple[float, float]] = []
        """Since when the stream keeps records for how long, in seconds."""
        self.parents: dict[str, tuple[str, ...]] = {}
        self._count = 0
        self._hash_keys: dict[str, tuple[int, int]] = {}

    def create(self, shards: int) -> None:
        """Make the stream, which keeps its records for a day."""
        self.generation += 1
        self.client.create_stream(StreamName=STREAM, ShardCount=shards)
        self.retentions = [(0.0, 24 * HOUR)]
        self._look()

    def retain(self, hours: int) -> None:
        """Keep records for another time; what has expired does not come back."""
        before = self.retentions[-1][1]
        if before == hours * HOUR:
            return
        is_longer = hours * HOUR > before
        client = self.client
        change = client.increase_stream_retention_period if is_longer else client.decrease_stream_retention_period
        change(StreamName=STREAM, RetentionPeriodHours=hours)
        self.retentions.append((self.clock.time(), hours * HOUR))

    def recreate(self, shards: int) -> None:
        """Delete the stream, and make another one of the same name."""
        self.client.delete_stream(StreamName=STREAM, EnforceConsumerDeletion=True)
        self.create(shards)

    def open_shards(self) -> list[Any]:
        """Give the shards that can be written to, by hash key."""
        stream = self.emulator.kinesis.streams[STREAM]
        return self.emulator.call(lambda: [shard for shard in stream.shards if shard.is_open])

    def put(self, index: int, count: int) -> str:
        """Write records to an open shard, and give its id."""
        shards = self.open_shards()
        shard = shards[index % len(shards)]
        for _ in range(count):
            name = self._name()
            self._put(name, shard.hash_keys.start, {name: False})
        return str(shard.id)

    def put_aggregate(self, index: int, count: int, *, faulty: bool) -> str:
        """Write an aggregate to an open shard: of one user record of the shard, and of others with keys of any shard.

        Those of the other child of the shard's parent are put there again, as a producer does that has not seen the
        split. All others are written once.

        Args:
            index: of the shard.
            count: of user records with any key.
            faulty: whether there is one more, without a key.
        """
        shards = self.open_shards()
        # Only the children of splits have siblings, and there are few of them.
        children = [shard for shard in shards if len(self.parents[shard.id]) == 1]
        chosen = children if children and index % 2 else shards
        shard = chosen[index // 2 % len(chosen)]
        parents = self.parents[shard.id]
        first, last = self._hash_keys[parents[0]] if len(parents) == 1 else (0, -1)
        packed = [UserRecord(self._name(), "key", str(shard.hash_keys.start))]
        packed += [UserRecord(self._name(), None)] if faulty else []
        again: list[UserRecord] = []
        names = {record.data: False for record in packed}
        for _ in range(count):
            name = self._name()
            record = UserRecord(name, name.decode())
            is_sent_again = record.hash_key not in shard.hash_keys and first <= record.hash_key <= last
            if is_sent_again:
                again.append(record)
                record = replace(record, data=name + b" in the wrong shard")
            packed.append(record)
            names[record.data] = is_sent_again
        self._put(aggregate(packed), shard.hash_keys.start, names)
        for record in again:
            self._put(record.data, record.hash_key, {record.data: False})
        return f"{shard.id}: {len(names)} user records, {len(again)} of them of a sibling"

    def _name(self) -> bytes:
        self._count += 1
        return f"{self.generation}-{self._count}".encode()

    def _put(self, data: bytes, hash_key: int, names: dict[bytes, bool]) -> None:
        """Put a record, and note what a reader finds in it: names, and whether they come again."""
        answer = self.client.put_record(StreamName=STREAM, Data=data, PartitionKey="key", ExplicitHashKey=str(hash_key))
        at, number = self.clock.time(), int(answer["SequenceNumber"])
        self.records += [
            Written(self.generation, answer["ShardId"], number, name, at, again) for name, again in names.items()
        ]

    def explains(self, shard: str) -> bool:
        """Tell whether a list shows what a shard was split from: its parent, or the other child of that."""
        listed = {one["ShardId"] for one in self.client.list_shards(StreamName=STREAM)["Shards"]}
        parents = self.parents.get(shard, ())
        return any(
            one in listed for one, of in self.parents.items() if one in parents or (one != shard and of == parents)
        )

    def split(self, index: int) -> str | None:
        """Split an open shard, if there are not too many."""
        shards = self.open_shards()
        if len(self.parents) >= MAX_SHARDS:
            return None
        shard = shards[index % len(shards)]
        middle = (shard.hash_keys.start + shard.hash_keys.end) // 2
        self.client.split_shard(StreamName=STREAM, ShardToSplit=shard.id, NewStartingHashKey=str(middle))
        self._look()
        return str(shard.id)

    def merge(self, index: int) -> str | None:
        """Merge two open neighbours, if there are any."""
        shards = sorted(self.open_shards(), key=lambda shard: shard.hash_keys.start)
        if len(shards) < 2 or len(self.parents) >= MAX_SHARDS:
            return None
        first, second = shards[index % (len(shards) - 1) :][:2]
        self.client.merge_shards(StreamName=STREAM, ShardToMerge=first.id, AdjacentShardToMerge=second.id)
        self._look()
        return f"{first.id} {second.id}"

    def throttle(self, index: int, calls: int) -> str:
        """Refuse some calls that read an open shard, and give its id."""
        shards = self.open_shards()
        shard = str(shards[index % len(shards)].id)
        for operation in ("GetShardIterator", "GetRecords", "SubscribeToShard"):
            self.emulator.faults.add("throttle", operation=operation, shard=shard, count=calls)
        return shard

    def family(self, shard: str) -> set[str]:
        """Give a shard and all that came of it."""
        found, size = {shard}, 0
        while size < len(found):
            size = len(found)
            found |= {child for child, parents in self.parents.items() if found.intersection(parents)}
        return found

    def may_be_expired(self, record: Written, now: float) -> bool:
        """Tell whether the stream may hold a record no more."""
        ends = [since for since, _ in self.retentions[1:]] + [now]
        return any(
            since <= now and record.put_at + seconds < min(end, now) + SLACK
            for (since, seconds), end in zip(self.retentions, ends, strict=True)
        )

    def shortest_retention(self, since: float) -> float:
        """Give the shortest time, in seconds, for which the stream has kept its records since then."""
        ends = [begun for begun, _ in self.retentions[1:]] + [math.inf]
        return min(seconds for (_, seconds), end in zip(self.retentions, ends, strict=True) if end >= since - SLACK)

    def was_raised(self, since: float) -> bool:
        """Tell whether records are kept for longer than they were at some time since then."""
        return self.shortest_retention(since) < self.retentions[-1][1]

    def consumers(self, name: str) -> tuple[StreamConsumer, ...]:
        """Give the stream's consumer of this name, registered now if it is not."""
        stream = self.client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]
        arn = stream["StreamARN"]
        with suppress(self.client.exceptions.ResourceInUseException):
            self.client.register_stream_consumer(StreamARN=arn, ConsumerName=name)
        found = self.client.describe_stream_consumer(StreamARN=arn, ConsumerName=name)["ConsumerDescription"]
        return (StreamConsumer(STREAM, found["ConsumerARN"], 1),)

    def aws(self) -> AwsSession:
        """Give a session of a process that knows nothing of the service's clock yet."""
        return AwsSession(emulator_options(self.emulator.endpoint_url))

    def _look(self) -> None:
        stream = self.emulator.kinesis.streams[STREAM]
        self.parents, self._hash_keys = self.emulator.call(
            lambda: (
                {shard.id: tuple(parent.id for parent in shard.parents) for shard in stream.shards},
                {shard.id: (shard.hash_keys.start, shard.hash_keys.end) for shard in stream.shards},
            )
        )


class Home:
    """Where shards are read: in the caller's process, or by a fleet of two services."""

    def __init__(self, world: World, kind: str, *, tiny: bool) -> None:
        self._world = world
        self.kind = kind
        publisher = RecordPublisherConfig(resubscribe_interval=timedelta(0))
        # Without space, all planned records are dropped and read again.
        room = {"buffer_bytes_per_shard": 1, "buffer_bytes": 1, "promise_grace": timedelta(0)} if tiny else {}
        self._config = ReaderConfig(
            idle_offset_interval=timedelta(0),
            discovery_interval=timedelta(seconds=0.5),
            publisher=publisher,
            **room,  # type: ignore[arg-type]  # of mixed types
        )
        self._processes = AsyncExitStack()
        self._addresses: list[str] = []
        self.reader: ShardReader | None = None

    async def start(self) -> None:
        """Start the processes, if they are not running, and a reader for one caller."""
        if self.kind == "local":
            if self.reader is None:
                self.reader = await self._processes.enter_async_context(self._local())
            return
        while len(self._addresses) < 2:
            local = await self._processes.enter_async_context(self._local())
            server = GrpcServer(
                ServerSettings(drain_seconds=0),
                register=[ShardReaderServicer(local).add_to],
                service_names=[SERVICE_NAME],
            )
            await self._processes.enter_async_context(server)
            self._addresses.append(server.address)
        if self.reader is not None:
            await self.reader.aclose()
        self.reader = FleetShardReader(self._addresses)

    def _local(self) -> LocalShardReader:
        return LocalShardReader(KinesisBackend(self._world.aws(), self._config.publisher), self._config)

    async def kill(self) -> None:
        """Lose all buffers."""
        if self.kind != "local" and self.reader is not None:
            await self.reader.aclose()
        self.reader = None
        self._addresses = []
        await self._processes.aclose()

    async def read_alone(self, ranges: Sequence[ShardRange], *, fail: bool) -> list[Row]:
        """Read ranges as a bounded read does: without a session, from Kinesis."""
        async with self._local() as reader:
            return await fetch(reader, "", ranges, fail=fail)


async def fetch(reader: ShardReader, session: str, ranges: Sequence[ShardRange], *, fail: bool) -> list[Row]:
    """Give the records of ranges, and the user records of their aggregates."""
    rows: list[Row] = []
    names = ("shardId", "sequenceNumber", "subSequenceNumber", "data")
    async for batch in reader.read_range(session, ranges, fail_on_data_loss=fail):
        columns = (batch.column(name).to_pylist() for name in names)
        rows += [(shard, (int(number), sub), data) for shard, number, sub, data in zip(*columns, strict=True)]
    return rows


class Query:
    """A caller with a checkpoint: the log of its offsets, and what its batches held."""

    def __init__(self, world: World, name: str, *, fail: bool, start: str) -> None:
        self.world = world
        self.name = name
        self.fail = fail
        self.generation = world.generation
        self.over: str | None = None
        self.losses: dict[str, int] = {}
        self.doubted: set[str] = set()
        """Shards of which nothing proves that they are complete, as a warning said."""
        self.delivered: set[bytes] = set()
        self.skipped: set[bytes] = set()
        self.batches: list[dict[str, list[bytes]]] = []
        self.latest = 0.0
        """When the latest record of all batches was put."""
        self.leaves_behind = False
        """Whether a shard was left behind, whose records may be late."""
        positions = resolve_initial_positions(world.aws(), [STREAM], start)
        self.began_at = world.clock.time()
        self.wants_all = start == "TRIM_HORIZON"
        self.log = [json.dumps(positions.to_json())]
        self.logged_at = [self.began_at]
        self.failures = 0

    def offsets(self, index: int) -> StreamPositions:
        """Give what was logged."""
        return StreamPositions.from_json(json.loads(self.log[index]))

    @property
    def is_pending(self) -> bool:
        """Whether a batch was logged and did not succeed yet."""
        return len(self.batches) < len(self.log) - 1

    def ranges(self, index: int) -> list[ShardRange]:
        """Give the ranges of a batch."""
        return ranges_between(self.offsets(index), self.offsets(index + 1))

    def note(self, positions: StreamPositions) -> bool:
        """Log offsets if they differ from the last ones, as text."""
        text = json.dumps(positions.to_json())
        if text == self.log[-1]:
            return False
        self.log.append(text)
        self.logged_at.append(self.world.clock.time())
        return True

    def records_of(self, shard_range: ShardRange) -> list[Written]:
        """Give what was written within a range."""
        after, upto = shard_range.after.sequence_number, shard_range.upto.sequence_number
        return [
            record
            for record in self.world.records
            if record.generation == self.generation
            and record.shard == shard_range.shard_id
            and (after is None or record.number > int(after))
            and (upto is None or record.number <= int(upto))
        ]

    def wants(self, record: Written) -> bool:
        """Tell whether the query has to deliver a record that did not expire."""
        if record.generation != self.generation or record.is_sent_again:
            return False
        return record.put_at > self.began_at or (
            self.wants_all and not self.world.may_be_expired(record, self.began_at)
        )

    def take(self, index: int, rows: Sequence[Row]) -> int:
        """Compare the rows of a batch with what was written, and with what it held before; give how many are new."""
        now = self.world.clock.time()
        found: dict[str, list[bytes]] = {}
        numbers: dict[str, list[tuple[int, int]]] = {}
        for shard, number, name in rows:
            found.setdefault(shard, []).append(name)
            numbers.setdefault(shard, []).append(number)
        ranges = self.ranges(index)
        is_again = index < len(self.batches)
        if extra := found.keys() - {shard_range.shard_id for shard_range in ranges}:
            raise ViolationError(f"batch {index} has rows of {sorted(extra)}, which are not in its ranges")
        for shard_range in ranges:
            shard = shard_range.shard_id
            held = self.records_of(shard_range)
            names = found.get(shard, [])
            known = {record.name for record in held}
            if strange := [name for name in names if name not in known]:
                raise ViolationError(f"batch {index}: {strange} are not of {shard_range} of stream {self.generation}")
            if any(one >= two for one, two in zip(numbers.get(shard, []), numbers.get(shard, [])[1:], strict=False)):
                raise ViolationError(f"batch {index}: records of {shard} out of order or twice: {names}")
            wrong = {record.name for record in held if record.is_sent_again}
            is_same = self.generation == self.world.generation
            if wrong.intersection(names) and is_same and self.world.explains(shard):
                raise ViolationError(f"batch {index}: {wrong.intersection(names)} of {shard} come again elsewhere")
            if is_again:
                self._compare(index, shard_range, names, wrong, now)
                continue
            if twice := self.delivered.intersection(names):
                raise ViolationError(f"batch {index}: {twice} of {shard} were delivered before")
            missing = [record for record in held if self.wants(record) and record.name not in names]
            # A reader that starts at TRIM_HORIZON, without a range yet, expects the records as of its first range.
            if shard_range.after.known_millis is None and self.offsets(0).get(STREAM, shard) is not None:
                logged_at = self.logged_at[index + 1]
                missing = [record for record in missing if not self.world.may_be_expired(record, logged_at)]
            self._excuse(f"batch {index} of {shard_range}", missing, now)
        if is_again:
            return 0
        self._check_order(index, {name for _, _, name in rows})
        self.batches.append(found)
        self.delivered.update(name for _, _, name in rows)
        return len(rows)

    def _check_order(self, index: int, names: set[bytes]) -> None:
        new = [record for record in self.world.records if record.name in names]
        late = [record for record in new if record.put_at < self.latest - SKEW_SECONDS - SLACK]
        if late and not self.leaves_behind:
            raise ViolationError(f"batch {index}: an earlier batch had records of {self.latest}, and now come {late}")
        self.latest = max([self.latest, *(record.put_at for record in new)])

    def _compare(self, index: int, shard_range: ShardRange, names: list[bytes], wrong: set[bytes], now: float) -> None:
        # Where a list shows neither the parent nor the sibling, a reader drops what it remembers of them alone.
        first = [name for name in self.batches[index].get(shard_range.shard_id, []) if name not in wrong]
        names = [name for name in names if name not in wrong]
        if [name for name in first if name in names] != names:
            raise ViolationError(f"batch {index} held {first} of {shard_range}, and holds {names} now")
        missing = [record for record in self.records_of(shard_range) if record.name in set(first) - set(names)]
        self._excuse(f"batch {index} of {shard_range}, which is read again", missing, now)

    def _excuse(self, what: str, missing: Sequence[Written], now: float) -> None:
        if not missing:
            return
        left = [record for record in missing if not self.world.may_be_expired(record, now)]
        if left:
            raise ViolationError(f"{what}: records that have not expired are missing: {left}")
        missing = [record for record in missing if not self._is_doubted(record)]
        if not missing:
            return
        if self.fail:
            raise ViolationError(f"{what}: records are missing without an error: {missing}")
        self.skipped.update(record.name for record in missing)
        if not self.is_counted(missing[0].shard):
            raise ViolationError(f"{what}: records are missing, and no loss was counted: {missing}")

    def _is_doubted(self, record: Written) -> bool:
        """Tell whether a warning said that the record's shard is complete only if records were never kept shorter."""
        is_told = any(record.shard in self.world.family(shard) for shard in self.doubted)
        return is_told and self.world.was_raised(record.put_at)

    def is_counted(self, shard: str) -> bool:
        """Tell whether a loss was counted for a shard or for one that it came of."""
        return any(shard in self.world.family(lost) for lost in self.losses)

    def check_loss(self, error: DataLossError, ranges: Sequence[ShardRange] = ()) -> None:
        """Refuse a loss that none is: nothing expired, and what was logged proves that nothing can have.

        Args:
            error: raised or counted.
            ranges: those that were read.
        """
        if error.stream != STREAM or not (error.shard_id and error.after and error.upto):
            raise ViolationError(f"a loss that does not say of what: {error!r}")
        if self.generation != self.world.generation:
            return
        now = self.world.clock.time()
        family = self.world.family(error.shard_id)
        lost = [
            record
            for record in self.world.records
            if record.shard in family
            and record.generation == self.generation
            and not record.is_sent_again
            and record.name not in self.delivered
            and self.world.may_be_expired(record, now)
        ]
        lost += [
            record
            for shard_range in ranges
            if shard_range.shard_id == error.shard_id
            for record in self.records_of(shard_range)
            if self.world.may_be_expired(record, now)
        ]
        known = self._known_millis(error.shard_id, ranges)
        if not lost and known is not None and now - known / 1000 < self._proof_seconds(known / 1000):
            hours = (now - known / 1000) / HOUR
            raise ViolationError(f"false alarm: nothing expired, and it was complete {hours:.2f} h ago: {error}")

    def _proof_seconds(self, since: float) -> float:
        shortest = self.world.shortest_retention(since)
        if self.world.was_raised(since):
            # A later observer cannot know how short it was, and assumes the shortest.
            shortest = min(shortest, SHORTEST_SECONDS)
        return shortest - PROOF_SLACK

    def _known_millis(self, shard: str, ranges: Sequence[ShardRange]) -> int | None:
        after = [one.after for one in ranges if one.shard_id == shard and one.after.known_millis is not None]
        if after:
            return min(position.known_millis or 0 for position in after)
        for positions in (self.offsets(-1), self.offsets(max(0, len(self.batches)))):
            position = positions.get(STREAM, shard)
            if position is not None and position.known_millis is not None:
                return position.known_millis
        known = [position.known_millis for position in self.offsets(-1).streams[STREAM].values()]
        return min((millis for millis in known if millis is not None), default=None)

    def missing(self) -> list[Written]:
        """Give what has to come and did not, without what may have expired."""
        now = self.world.clock.time()
        return [
            record
            for record in self.world.records
            if self.wants(record) and record.name not in self.delivered and not self.world.may_be_expired(record, now)
        ]

    def check_end(self) -> None:
        """Fail if records expired and no loss was reported."""
        gone = [
            record
            for record in self.world.records
            if self.wants(record) and record.name not in self.delivered | self.skipped
        ]
        for record in gone:
            if self._was_promised_nothing_of(record.shard) or self._is_doubted(record):
                continue
            if not self.is_counted(record.shard):
                raise ViolationError(f"{record} was never delivered, and no loss was counted")

    def _was_promised_nothing_of(self, shard: str) -> bool:
        """Tell whether the query began with the shard at TRIM_HORIZON, and it was empty whenever it was looked at."""
        at = [positions.get(STREAM, shard) for positions in map(self.offsets, range(len(self.log)))]
        if at[0] is None:
            return False
        # Once it was caught up, what came later was promised.
        return all(
            one is None
            or (one.is_shard_end and one.record == "")
            or (one == ShardPosition.trim_horizon() and one.known_millis is None)
            for one in at
        )


class ContinuityMachine(RuleBasedStateMachine):
    """Random histories of the world and of callers."""

    PROFILE: ClassVar[str] = "kind"
    failures: ClassVar[list[list[str]]] = []
    """The histories that broke a promise, in the order in which they were found."""
    is_told: ClassVar[bool] = False
    """Whether each line of a history is printed at once."""
    counts: ClassVar[dict[str, int]] = {}
    """How often what was done, over all histories."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[str] = []
        self._stack = ExitStack()
        self._query: Query | None = None
        self._home: Home | None = None
        self._failed = False

    @initialize(
        shards=st.integers(1, 3),
        seed=INDICES,
        plans=st.lists(st.tuples(st.booleans(), st.sampled_from(["LATEST", "TRIM_HORIZON"])), min_size=3, max_size=3),
        home=st.sampled_from(["local", "fleet"]),
        publisher=st.sampled_from(list(RecordPublisherType)),
        tiny=st.booleans(),
        retention=st.sampled_from(RETENTIONS),
    )
    def begin(
        self,
        shards: int,
        seed: int,
        plans: list[tuple[bool, str]],
        home: str,
        publisher: RecordPublisherType,
        tiny: bool,
        retention: int,
    ) -> None:
        """Create a stream and a first query."""
        self._began_at = time.monotonic()
        self._clock = self._stack.enter_context(RunningClock())
        self._started_at = self._clock.time()
        self._losses = self._stack.enter_context(Losses())
        behaviour = Behaviour.profile(self.PROFILE)
        if behaviour.page_span is not None:
            # A shard is read five times a second: shorter pages would take most of the time.
            behaviour = replace(behaviour, page_span=PAGE_SPAN)
        emulator = self._stack.enter_context(
            running_emulator(
                clock=self._clock,
                tls=False,
                enforce_limits=False,
                behaviour=replace(behaviour, seed=seed),
                consumer_creation_delay=timedelta(0),
                consumer_deletion_delay=timedelta(0),
                # Shorter than any move of the clock, so that none is outlived by a subscription: no service's is.
                subscription_lifetime=timedelta(seconds=30),
                resubscribe_interval=timedelta(0),
                idle_event_interval=timedelta(seconds=0.5),
            )
        )
        self._loop = Loop()
        self._stack.callback(self._loop.close)
        self.world = World(emulator, self._clock)
        self.world.create(shards)
        self.world.retain(retention)
        self._plans = plans
        self._queries = 0
        self._publisher = publisher
        self._epoch = 0
        self._home_plan = (home, tiny)
        self._tell(f"{self.PROFILE} seed {seed}: {shards} shards, queries (fail, start) {plans}")

        def first() -> None:
            self.world.put(seed, 2)
            self._ensure()
            self.world.put(seed + 1, 2)

        self._do("begin", first)

    @rule(index=INDICES, count=st.integers(1, 4))
    def put(self, index: int, count: int) -> None:
        """Somebody writes."""
        self._do(f"put {count}", lambda: self.world.put(index, count))

    @rule(index=INDICES, count=st.integers(0, 6), faulty=st.booleans(), runs=st.booleans())
    def put_aggregate(self, index: int, count: int, faulty: bool, runs: bool) -> None:
        """Somebody writes an aggregate, of keys of any shard, and the caller gets it soon, or later."""

        def put() -> str:
            told = self.world.put_aggregate(index, count, faulty=faulty)
            if runs:
                self._step(0, 0.6, 0.0, runs=True)
            return told

        self._do(f"aggregate {count}", put)

    @rule(index=INDICES, count=st.integers(1, 4), max_records=st.sampled_from([0, 2]))
    def put_and_read(self, index: int, count: int, max_records: int) -> None:
        """Somebody writes, and the caller gets it soon."""

        def put() -> str:
            shard = self.world.put(index, count)
            self._step(max_records, 0.6, 0.0, runs=True)
            return shard

        self._do(f"put {count} and step max_records={max_records}", put)

    @rule(indices=st.lists(INDICES, min_size=1, max_size=3), seconds=st.sampled_from(WAITS))
    def put_over_time(self, indices: list[int], seconds: float) -> None:
        """Write records over time while no reader reads."""

        def put() -> str:
            shards = []
            for index in indices:
                shards.append(self.world.put(index, 1))
                self._clock.advance(seconds)
            return " ".join(shards)

        self._do(f"put {len(indices)}, each {seconds / HOUR:.2f} h", put)

    @rule(seconds=st.sampled_from(WAITS))
    def wait(self, seconds: float) -> None:
        """Time passes, and the caller does nothing."""
        self._do(f"wait {seconds / HOUR:.2f} h", lambda: self._clock.advance(seconds))

    @rule(index=INDICES, calls=st.integers(1, 3))
    def throttle(self, index: int, calls: int) -> None:
        """Reading a shard is refused for a few seconds."""
        self._do(f"throttle {calls}", lambda: self.world.throttle(index, calls))

    @rule(hours=st.sampled_from(RETENTIONS))
    def retain(self, hours: int) -> None:
        """The stream keeps records for another time from now on."""
        self._do(f"retain {hours} h", lambda: self.world.retain(hours))

    @rule(index=INDICES, merges=st.booleans())
    def reshard(self, index: int, merges: bool) -> None:
        """A shard is split, or two are merged."""
        self._do("merge" if merges else "split", lambda: (self.world.merge if merges else self.world.split)(index))

    @rule(
        max_records=st.sampled_from([0, 0, 1, 3]),
        wait=st.sampled_from([0.0, 0.3, 0.6]),
        delay=st.sampled_from([0.0, 0.0, 0.0, HOUR, 25 * HOUR]),
        runs=st.sampled_from([True, True, True, False]),
    )
    def step(self, max_records: int, wait: float, delay: float, runs: bool) -> None:
        """The caller logs how far it may go, and reads that: at once, later, or not before something else happens."""
        name = f"step max_records={max_records} wait={wait} delay={delay / HOUR:g} h runs={runs}"
        self._do(name, lambda: self._step(max_records, wait, delay, runs=runs))

    @rule()
    def catch_up(self) -> None:
        """Read to the tip, until all shards are reported as complete."""
        self._do("catch up", self._catch_up)

    @rule(steps=st.sampled_from([2, 7]))
    def follow_idle(self, steps: int) -> None:
        """Time passes, and the caller follows all the while."""

        def follow() -> None:
            for _ in range(steps):
                self._clock.advance(4 * HOUR)
                self._catch_up()

        self._do(f"follow {steps * 4} h", follow)

    @rule(
        home=st.sampled_from(["local", "fleet"]),
        publisher=st.sampled_from(list(RecordPublisherType)),
        tiny=st.booleans(),
        fresh=st.sampled_from([True, True, False]),
        forgets=st.booleans(),
        puts=st.integers(0, 2),
    )
    def kill(
        self, home: str, publisher: RecordPublisherType, tiny: bool, fresh: bool, forgets: bool, puts: int
    ) -> None:
        """The caller dies; its successor reads in another way, and may have to run the last batch again."""

        def restart() -> None:
            if fresh:
                self.die()
            self._home_plan = (home, tiny)
            self._publisher = publisher
            self._epoch = 0
            self.world.put(puts, puts)
            if forgets and self._query is not None and self._query.batches and not self._query.is_pending:
                self._rerun(len(self._query.batches) - 1, alone=False)
            self._step(0, 0.3, 0.0, runs=puts < 2)

        self._do(f"kill: {home} {publisher} tiny={tiny} fresh={fresh} forgets={forgets}", restart)

    @rule(index=INDICES, alone=st.booleans())
    def rerun(self, index: int, alone: bool) -> None:
        """A batch that was logged is read again."""

        def run() -> None:
            if self._query is not None and self._query.batches:
                self._rerun(index % len(self._query.batches), alone=alone)

        self._do(f"rerun alone={alone}", run)

    @rule(shards=st.integers(1, 2), dice=st.integers(0, 2))
    def recreate(self, shards: int, dice: int) -> None:
        """The stream is deleted, and another one of the same name made; not often."""
        if not dice:
            self._do("recreate", lambda: self.world.recreate(shards))

    def teardown(self) -> None:
        """Read the rest: each record came once, or a loss was reported."""
        try:
            if hasattr(self, "world") and not self._failed:
                self._do("read to the end", self._finish)
        finally:
            if self._home is not None:
                with suppress(Exception):
                    self._loop.run(self._home.kill(), 20)
            self._stack.close()

    def die(self) -> None:
        """Lose the reader, with all that it holds; the next step opens another."""
        if self._home is not None:
            self._loop.run(self._home.kill())
        self._home = None
        self._epoch = 0

    # What the caller does.

    def _ensure(self) -> Query:
        """Give the query, a new one if the last is over, with its session open."""
        if self._query is None or self._query.over is not None:
            if self._home is not None:
                self._loop.run(self._home.kill())
                self._home = None
            fail, start = self._plans[self._queries % len(self._plans)]
            self._queries += 1
            self._query = Query(self.world, f"q{self._queries}", fail=fail, start=start)
            self._epoch = 0
            self._tell(f"  query {self._query.name}: fail={fail} start={start}")
        if self._home is not None and self._home.kind != self._home_plan[0]:
            self._loop.run(self._home.kill())
            self._home = None
        if self._home is None:
            self._home = Home(self.world, self._home_plan[0], tiny=self._home_plan[1])
        if not self._epoch:
            self._guarded(self._open)
        return self._query

    def _open(self) -> None:
        assert self._query is not None
        assert self._home is not None
        efo = self._publisher is RecordPublisherType.EFO
        request = OpenRequest(
            session_id=self._query.name,
            positions=self._query.offsets(-1),
            record_publisher=self._publisher,
            consumers=self.world.consumers("reader") if efo else (),
            fail_on_data_loss=self._query.fail,
        )
        self._loop.run(self._home.start())
        self._epoch = self._loop.run(self._reader.open(request))
        self._tell(f"  open {self._home.kind} {self._publisher} at {self._query.log[-1]}")

    @property
    def _reader(self) -> ShardReader:
        assert self._home is not None
        assert self._home.reader is not None
        return self._home.reader

    def _guarded(self, call: Callable[[], T], ranges: Sequence[ShardRange] = (), *, ends: bool = True) -> T | None:
        """Run a call of the reader, and judge its error; None after one."""
        query = self._query
        assert query is not None
        try:
            return call()
        except StreamRecreatedError as error:
            if query.generation == self.world.generation:
                raise ViolationError(f"the stream is the same, and was not made again: {error}") from error
            query.over = f"{error}"
        except DataLossError as error:
            self._tell(f"  {error}")
            if not query.fail:
                raise ViolationError(f"an error where losses are to be counted: {error}") from error
            query.check_loss(error, ranges)
            if ends:
                query.over = f"{error}"
        except (EfoConsumerError, AwsError) as error:
            self._tell(f"  {type(error).__name__}: {error}")
            query.failures += 1
            self._epoch = 0
            # The clock may be moved again each time that a reader has just got another iterator: no service's is.
            is_of_model = getattr(error, "code", "") == "ExpiredIteratorException"
            is_same = query.generation == self.world.generation
            if (is_same and not is_of_model) or query.failures > 10:
                raise ViolationError(f"cannot be read: {error!r}") from error
        if query.over is not None:
            self._count("over")
            self._tell(f"  over: {query.over}")
        return None

    def _step(self, max_records: int, wait: float, delay: float, *, runs: bool) -> bool:
        """Do a step, and return whether anything was logged or read."""
        query = self._ensure()
        if query.over is not None or not self._epoch:
            return False
        moved = False
        if not query.is_pending:
            start = query.offsets(-1)
            asked = self._guarded(
                lambda: self._loop.run(
                    self._reader.positions(
                        query.name,
                        self._epoch,
                        start,
                        max_records=max_records,
                        wait_seconds=wait,
                        max_shard_skew_seconds=SKEW_SECONDS,
                    )
                )
            )
            if asked is None:
                return False
            query.leaves_behind |= asked.skew is not None and asked.skew.left_behind > 0
            # What was counted by now was judged by what was logged before.
            self._take_losses()
            moved = query.note(asked.positions)
            if moved:
                self._tell(f"  logged {query.log[-1]}")
        if delay:
            self._clock.advance(delay)
        if not runs or not query.is_pending:
            return moved
        index = len(query.batches)
        ranges = query.ranges(index)
        rows = self._guarded(lambda: self._loop.run(fetch(self._reader, query.name, ranges, fail=query.fail)), ranges)
        self._take_losses(ranges)
        if rows is None:
            return False
        new = query.take(index, rows)
        self._count("rows", new)
        if new:
            self._tell(f"  batch {index}: {[name.decode() for _, _, name in rows]}")
        self._guarded(lambda: self._loop.run(self._reader.commit(query.name, self._epoch, query.offsets(index))))
        return True

    def _catch_up(self) -> None:
        """Read until everything came and the log says of every shard that it is complete."""
        asked_at = self._clock.time()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._step(0, 0.2, 0.0, runs=True)
            query = self._query
            assert query is not None
            if query.over is not None or query.generation != self.world.generation:
                return
            missing, old = query.missing(), self._old_facts(query, asked_at)
            if not (missing or old or query.is_pending):
                return
            if time.monotonic() > deadline:
                raise ViolationError(f"not caught up: missing {missing}, without recent facts: {old}: {query.log[-1]}")

    def _old_facts(self, query: Query, now: float) -> list[str]:
        positions = query.offsets(-1).streams[STREAM]
        return [
            shard
            for shard, position in positions.items()
            if not position.is_shard_end
            and (position.known_millis is None or position.known_millis / 1000 < now - FACTS_SECONDS)
        ]

    def _rerun(self, index: int, *, alone: bool) -> None:
        query = self._ensure()
        if query.over is not None or not self._epoch or index >= len(query.batches):
            return
        if alone and query.generation != self.world.generation:
            return
        ranges = query.ranges(index)
        assert self._home is not None
        home = self._home

        def read() -> list[Row]:
            if alone:
                return self._loop.run(home.read_alone(ranges, fail=query.fail))
            return self._loop.run(fetch(self._reader, query.name, ranges, fail=query.fail))

        # Spark would end with the batch. Here the query continues, so that it can be asked more.
        rows = self._guarded(read, ranges, ends=False)
        self._take_losses(ranges)
        if rows is not None:
            query.take(index, rows)

    def _finish(self) -> None:
        self._ensure()
        deadline = time.monotonic() + PATIENCE_SECONDS
        self._catch_up()
        query = self._query
        assert query is not None
        while query.over is None and query.generation != self.world.generation:
            if time.monotonic() > deadline:
                raise ViolationError("the stream was made again, and nothing told of it")
            self._step(0, 0.3, 0.0, runs=True)
        if query.over is None:
            query.check_end()

    def _take_losses(self, ranges: Sequence[ShardRange] = ()) -> None:
        new, self._losses.new = self._losses.new, []
        query = self._query
        if query is not None:
            query.doubted |= self._losses.doubted
        for error in new:
            assert query is not None
            self._tell(f"  counted: {error}")
            self._count("losses")
            if query.fail:
                raise ViolationError(f"counted where losses are errors: {error}")
            query.check_loss(error, ranges)
            query.losses[error.shard_id] = query.losses.get(error.shard_id, 0) + 1

    # What the history reports.

    def _do(self, name: str, call: Callable[[], object]) -> None:
        self._tell(name)
        self._count(name.split()[0])
        try:
            result = call()
            self._take_losses()
        except Exception as error:
            self._failed = True
            self._tell(f"{type(error).__name__}: {error}")
            type(self).failures.append(self.history)
            raise
        if isinstance(result, str):
            self._tell(f"  {result}")

    def _tell(self, line: str) -> None:
        moment = self._clock.time() - self._started_at
        self.history.append(f"{moment / HOUR:8.3f} h {time.monotonic() - self._began_at:6.2f} s  {line}")
        if self.is_told:
            print(self.history[-1], flush=True)

    def _count(self, name: str, by: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by


def machine(profile: str) -> type[ContinuityMachine]:
    """Make a state machine for a profile of the emulator, with failures and counts of its own."""
    name = f"{profile.title()}ContinuityMachine"
    return type(name, (ContinuityMachine,), {"PROFILE": profile, "failures": [], "counts": {}})


def try_machine(tried: type[ContinuityMachine], *, seed: int, examples: int, steps: int) -> Exception | None:
    """Try random histories that follow from a seed; give the error of the first that fails.

    Threads and sockets are in it, so a history is not shrunk: it need not fail again.
    """
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(hypothesis.seed(seed)(tried), settings=chosen)
    except Exception as error:
        return error
    return None
