"""Random loops over a consumer, left and entered in any way, with kills, restarts, reshards and aggregates.

In one context each record is finished once; after a restart nothing is missing; positions are exact to the record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Protocol

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kpl_aggregates import aggregate

from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    CheckpointClaim,
    Consumer,
    ConsumerBatch,
    ConsumerRecord,
    FleetShardReader,
    LocalShardReader,
    ReaderConfig,
    ShardReader,
    StreamPositions,
)
from penstock.efo_consumer.testing import FakeKinesis

NOWHERE = emulator_options("http://127.0.0.1:1")
INDICES = st.integers(0, 10**6)
NOW = timedelta(0)
INTERVALS = {"records with checkpoints": NOW, "records at an interval": timedelta(hours=1)}
KINDS = st.sampled_from(["records", *INTERVALS, "batches", "saved batches"])
LEAVING = st.sampled_from(["dropped", "closed", "kept", "cancelled while asking", "stopped"])
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True, order=True)
class Written:
    """A user record, and where it is."""

    stream: str
    shard: str
    number: int
    place: int


class Streams(Protocol):
    """What a test writes to and reshards."""

    parents: dict[tuple[str, str], list[str]]
    """Parents of each shard that was made by a reshard, by stream and id."""

    def open_shards(self) -> list[tuple[str, str]]:
        """Those that can be written to."""

    def put(self, stream: str, shard: str, users: int | None) -> int:
        """Write a record, or an aggregate of so many user records; give its sequence number."""

    def reshard(self, stream: str, shards: list[str]) -> None:
        """Split a shard, or merge two."""


class InMemory:
    """Two streams of a `FakeKinesis`."""

    def __init__(self, shards: int, event_records: int) -> None:
        self.kinesis = FakeKinesis(event_records=event_records)
        self.parents: dict[tuple[str, str], list[str]] = {}
        for stream in ("s", "t"):
            self.kinesis.create_stream(stream, shards)
        start = {**self.kinesis.trim_horizon("s").streams, **self.kinesis.trim_horizon("t").streams}
        self.start = StreamPositions(start)

    def open_shards(self) -> list[tuple[str, str]]:
        """See `Streams`."""
        return [key for key, shard in self.kinesis.shards.items() if not shard.children]

    def put(self, stream: str, shard: str, users: int | None) -> int:
        """See `Streams`."""
        (number,) = self.kinesis.put(stream, shard)
        if users:
            first, _ = self.kinesis.shards[stream, shard].hash_keys
            keys = [f"{number}/{user}" for user in range(users)]
            self.kinesis.shards[stream, shard].data[-1] = aggregate(keys, explicit=str(first))
        return number

    def reshard(self, stream: str, shards: list[str]) -> None:
        """See `Streams`."""
        for child in self.kinesis.reshard(stream, shards, 2 if len(shards) == 1 else 1):
            self.parents[stream, child] = shards


class MemoryStore:
    """A checkpoint that outlives its consumers."""

    def __init__(self) -> None:
        self.positions: StreamPositions | None = None
        self._newest = 0

    async def load(self, name: str) -> StreamPositions | None:
        """See `CheckpointStore.load`."""
        return self.positions

    async def claim(self, name: str, streams: Collection[str], owner: str) -> CheckpointClaim:
        """See `CheckpointStore.claim`."""
        self._newest += 1
        return CheckpointClaim(name, owner, dict.fromkeys(streams, self._newest), self.positions)

    async def save(self, claim: CheckpointClaim, positions: StreamPositions) -> None:
        """See `CheckpointStore.save`."""
        assert {*claim.numbers.values()} == {self._newest}
        await asyncio.sleep(0)
        # As it is kept: as text.
        self.positions = StreamPositions.from_json(positions.to_json())

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class History:
    """What was written, and what the consumers of one name have finished of it."""

    streams: Streams
    store: MemoryStore = field(default_factory=MemoryStore)
    written: list[Written] = field(default_factory=list)
    finished: set[Written] = field(default_factory=set)

    def write(self, index: int, count: int, users: int | None) -> None:
        """Write to an open shard."""
        shards = self.streams.open_shards()
        stream, shard = shards[index % len(shards)]
        for _ in range(count):
            number = self.streams.put(stream, shard, users)
            self.written += [Written(stream, shard, number, place) for place in range(users or 1)]

    def reshard(self, index: int, *, is_merge: bool) -> None:
        """Split a shard, or merge two neighbours."""
        shards = self.streams.open_shards()
        stream, shard = shards[index % len(shards)]
        others = [other for name, other in shards if name == stream]
        at = others.index(shard)
        self.streams.reshard(stream, others[at : at + 2] if is_merge and at + 1 < len(others) else [shard])

    def covered(self, positions: StreamPositions | None) -> set[Written]:
        """The records that lie before these positions; none without positions."""
        if positions is None:
            return set()
        return {one for one in self.written if self._is_covered(positions, one.stream, one.shard, one.number)}

    def _is_covered(self, positions: StreamPositions, stream: str, shard: str, number: int) -> bool:
        position = positions.get(stream, shard)
        if position is not None:
            return position.is_shard_end or position.rank >= (1, number)
        return self._is_passed(positions, stream, shard)

    def _is_passed(self, positions: StreamPositions, stream: str, shard: str) -> bool:
        children = [child for (name, child), of in self.streams.parents.items() if name == stream and shard in of]
        return any(
            positions.get(stream, child) is not None or self._is_passed(positions, stream, child) for child in children
        )

    def complete(self, records: set[Written]) -> set[Written]:
        """Without the user records of aggregates that are not there as a whole."""
        whole = Counter(replace(one, place=0) for one in self.written)
        found = Counter(replace(one, place=0) for one in records)
        return {one for one in records if found[replace(one, place=0)] == whole[replace(one, place=0)]}


class Life:
    """A consumer from its entry to its end, and what it has finished."""

    def __init__(self, history: History, consumer: Consumer) -> None:
        self.history, self.consumer = history, consumer
        self.begun = history.covered(history.store.positions)
        self.finished: set[Written] = set()
        self.is_stopped = False
        self.is_saved = True
        """Whether all that is finished is to be in the checkpoint at the end of the context."""
        self._kept: list[Any] = []
        """Loops that were left and not closed."""

    @property
    def left(self) -> int:
        """Records that are written and not finished."""
        return len(self.history.written) - len(self.begun) - len(self.finished)

    def check_handed_out(self, records: list[Written]) -> None:
        """New to this life, in order in each shard, and after all records of its parents."""
        assert self.finished.isdisjoint(records)
        assert self.begun.isdisjoint(records)
        assert len({*records}) == len(records)
        known = self.begun | self.finished
        for record in records:
            for other in self.history.written:
                is_before = (other.stream, other.shard) == (record.stream, record.shard) and other < record
                of = self.history.streams.parents.get((record.stream, record.shard), [])
                is_of_a_parent = other.stream == record.stream and other.shard in of
                assert other in known or not (is_before or is_of_a_parent), (record, other)
            known.add(record)

    def finish(self, records: Collection[Written]) -> None:
        """Note what the caller is done with."""
        self.finished.update(records)
        self.history.finished.update(records)

    def check_positions(self) -> None:
        """They are exact, and the checkpoint has nothing that was never finished."""
        positions = StreamPositions.from_json(self.consumer.positions.to_json())
        assert self.history.covered(positions) == self.history.complete(self.begun | self.finished)
        kept = self.history.covered(self.history.store.positions)
        assert kept <= self.history.finished
        assert kept >= self.begun

    async def loop(self, kind: str, leaving: str, count: int, turns: int) -> None:
        """Enter a loop, take so many records or batches while there are any, and leave it with the last one in hand."""
        if self.is_stopped or not self.left:
            return
        consumer, interval = self.consumer, INTERVALS.get(kind)
        is_by_record = kind.startswith("records")
        steps: Any = consumer.records(checkpoint_interval=interval) if is_by_record else aiter(consumer)
        in_hand: list[Written] = []
        finished_before = len(self.finished)
        for _ in range(count):
            if self.left == len(in_hand):
                break
            handed = await anext(steps)
            self.finish(in_hand)
            in_hand = identities(handed)
            self.check_handed_out(in_hand)
            self.check_positions()
            if kind == "saved batches":
                await consumer.checkpoint(handed)
                self.finish(in_hand)
                in_hand = []
            if (kind == "saved batches" or interval == NOW) and len(self.finished) > finished_before:
                self.check_saved()
        if leaving == "stopped":
            consumer.stop()
            self.is_stopped = True
            assert await anext(steps, None) is None
            self.finish(in_hand)
        elif leaving == "cancelled while asking":
            asking = asyncio.ensure_future(anext(steps, None))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            self.finish(in_hand)
            with suppress(asyncio.CancelledError):
                # It was faster.
                self.check_handed_out(identities(await asking))
        elif leaving == "closed":
            await steps.aclose()
        elif leaving == "kept":
            self._kept.append(steps)
        del steps
        self.check_positions()
        if len(self.finished) > finished_before:
            self.is_saved = interval is not None or kind == "saved batches"

    def check_saved(self) -> None:
        """The checkpoint has all that is finished."""
        kept = self.history.covered(self.history.store.positions)
        assert kept == self.history.complete(self.begun | self.finished)


def identities(handed: ConsumerRecord | ConsumerBatch | None) -> list[Written]:
    """What was handed out, in order."""
    assert handed is not None
    if isinstance(handed, ConsumerRecord):
        number, place = int(handed.sequence_number), handed.sub_sequence_number
        return [Written(handed.stream_name, handed.shard_id, number, place)]
    names = ("streamName", "shardId", "sequenceNumber", "subSequenceNumber")
    rows = zip(*(handed.records.column(name).to_pylist() for name in names), strict=True)
    return [Written(stream, shard, int(number), place) for stream, shard, number, place in rows]


async def live(history: History, consumer: Consumer, draw: Draw, steps: int) -> Consumer | None:
    """Let a consumer live from its entry to its end; give it if it is killed before its end."""
    await consumer.__aenter__()
    life = Life(history, consumer)
    for _ in range(steps):
        what = draw(st.sampled_from(["loop"] * 6 + ["write", "write", "aggregate", "split", "merge"]))
        if what == "loop":
            kind, leaving = draw(KINDS), draw(LEAVING)
            await life.loop(kind, leaving, draw(st.integers(1, 12)), draw(st.integers(1, 4)))
        else:
            change(history, draw, what)
    if draw(st.booleans()):
        return consumer
    await consumer.__aexit__(None, None, None)
    assert history.covered(history.store.positions) <= history.finished
    if life.is_saved:
        life.check_saved()
    return None


async def live_to_the_end(history: History, consumer: Consumer) -> None:
    """Read all that is left."""
    async with consumer:
        life = Life(history, consumer)
        if not life.left:
            consumer.stop()
        async for record in consumer.records(checkpoint_interval=INTERVALS["records at an interval"]):
            life.check_handed_out(identities(record))
            life.finish(identities(record))
            if not life.left:
                consumer.stop()
    assert history.finished == {*history.written}
    assert history.covered(history.store.positions) == {*history.written}


def change(history: History, draw: Draw, what: str) -> None:
    """Write to the streams, or reshard them."""
    index = draw(INDICES)
    if what in ("split", "merge"):
        history.reshard(index, is_merge=what == "merge")
    else:
        history.write(index, draw(st.integers(1, 8)), draw(st.integers(2, 4)) if what == "aggregate" else None)


@asynccontextmanager
async def reader_of(kinesis: FakeKinesis, draw: Draw) -> AsyncIterator[ShardReader]:
    """One reader, or a fleet of two, with small buffers."""
    segments = draw(st.integers(2, 6))
    config = ReaderConfig(buffer_bytes_per_shard=segments * 4200, buffer_bytes=segments * 4200 * 3)
    async with AsyncExitStack() as exits:
        if draw(st.booleans()):
            yield await exits.enter_async_context(LocalShardReader(kinesis, config))
            return
        members = {name: await exits.enter_async_context(LocalShardReader(kinesis, config)) for name in ("a:1", "b:1")}
        fleet = FleetShardReader([*members], connect=lambda endpoint, _: members[endpoint])
        exits.push_async_callback(fleet.aclose)
        yield fleet


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_no_loop_skips_or_repeats_a_record(data: st.DataObject) -> None:
    """Over streams in memory, by one reader and by a fleet."""

    async def scenario() -> None:
        streams = InMemory(data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 3, 50])))
        history = History(streams)
        history.write(0, 5, None)
        options: dict[str, Any] = {"start": streams.start, "checkpoints": history.store, "aws": NOWHERE}

        def consumer(reader: ShardReader) -> Consumer:
            limit = data.draw(st.sampled_from([0, 1, 4, 10_000]))
            return Consumer(["s", "t"], name="c", reader=reader, max_records=limit, **options)

        async with asyncio.timeout(60):
            for _ in range(data.draw(st.integers(1, 4))):
                async with reader_of(streams.kinesis, data.draw) as reader:
                    await live(history, consumer(reader), data.draw, data.draw(st.integers(1, 10)))
            async with reader_of(streams.kinesis, data.draw) as reader:
                await live_to_the_end(history, consumer(reader))

    asyncio.run(scenario())
