"""Micro-batches keep shards together: which records enter one, by their arrival times. Without I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.efo_consumer import WIRE_SCHEMA, Shard, ShardEvent, ShardPosition, StreamPositions
from penstock.efo_consumer._buffer.buffer import ShardBuffer, ShardTime
from penstock.efo_consumer._continuity.lineage import ShardGraph, entering
from penstock.efo_consumer._reader.horizon import Horizon, delivered_millis
from penstock.efo_consumer._reader.reach import Bounds, Reach, reach

SKEW_MILLIS = 60_000
JITTER_MILLIS = 1000
TRIM_HORIZON = ShardPosition.trim_horizon()
STREAM = "s"


def event(
    rows: list[tuple[int, int]],
    *,
    continuation: int | None = None,
    read_millis: int | None = None,
    children: tuple[Shard, ...] = (),
) -> ShardEvent:
    """An event with records, each by its sequence number and its arrival time in milliseconds."""
    records = pa.RecordBatch.from_arrays(
        [
            pa.array([b"x" * 90 for _ in rows], pa.binary()),
            pa.array(["key" for _ in rows], pa.string()),
            pa.array([str(number) for number, _ in rows], pa.string()),
            pa.array([millis * 1000 for _, millis in rows], pa.timestamp("us", tz="UTC")),
            pa.nulls(len(rows), pa.string()),
        ],
        schema=WIRE_SCHEMA,
    )
    last = continuation if continuation is not None or not rows else rows[-1][0]
    return ShardEvent(
        records=records,
        continuation=None if children or last is None else str(last),
        millis_behind_latest=0,
        child_shards=children,
        nbytes=93 * len(rows),
        read_millis=read_millis,
    )


@dataclass
class History:
    """What happened to one shard: its records, when it was closed, and how far a reader has come."""

    shard_id: str
    parents: tuple[str, ...] = ()
    opened: int = 0
    closed: int | None = None
    children: tuple[str, ...] = ()
    rows: list[tuple[int, int]] = field(default_factory=list)
    read: int = 0
    clock: int = 0
    """Up to when the shard was read, by the service."""
    is_begun: bool = False
    is_stuck: bool = False
    buffer: ShardBuffer = field(default_factory=lambda: ShardBuffer(TRIM_HORIZON))


class World:
    """A stream that was written and resharded for hours, and a reader that catches up with it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.shards: dict[str, History] = {}
        self.graph = ShardGraph()
        self.horizon = Horizon(0.0)
        self._number = 100
        self._write()
        self.end = max(one.closed or 0 for one in self.shards.values())
        self.at = StreamPositions(
            {STREAM: {one.shard_id: TRIM_HORIZON for one in self.shards.values() if not one.parents}}
        )
        self.delivered: dict[str, list[tuple[int, int]]] = {name: [] for name in self.shards}
        self.latest = 0
        self.excused: set[str] = set()
        self.most_late = 0

    def _write(self) -> None:
        chance, now, hours = self.chance, 1_000_000, chance_hours(self.chance)
        names = [self._open(now, ()) for _ in range(chance.randint(1, 4))]
        loads = {name: chance.choice([0.0, 0.02, 0.2, 1.0]) for name in names}
        end = now + hours
        while now < end:
            now += chance.choice([500, 5_000, 60_000, 600_000])
            for name in [name for name in loads if chance.random() < loads[name]]:
                for _ in range(chance.choice([1, 1, 5, 30])):
                    self._number += chance.randint(1, 3)
                    jitter = chance.choice([0, 0, JITTER_MILLIS])
                    self.shards[name].rows.append((self._number, max(1_000_000, now - jitter)))
            if chance.random() < 0.05 and len(self.shards) < 12:
                parents = chance.sample(sorted(loads), min(len(loads), chance.choice([1, 1, 2])))
                count = 2 if len(parents) == 1 else 1
                for name in parents:
                    self.shards[name].closed = now
                    del loads[name]
                children = tuple(self._open(now, tuple(parents)) for _ in range(count))
                for name in parents:
                    self.shards[name].children = children
                loads |= {name: chance.choice([0.0, 0.02, 0.2, 1.0]) for name in children}
        self.tip = now

    def _open(self, now: int, parents: tuple[str, ...]) -> str:
        name = f"shard-{len(self.shards):03}"
        self.shards[name] = History(name, parents, opened=now)
        return name

    def readable(self) -> list[History]:
        """Shards of which the reader can take an event."""
        return [
            one
            for one in self.shards.values()
            if not one.is_stuck
            and not one.buffer.end.is_shard_end
            and all(self.shards[parent].buffer.end.is_shard_end for parent in one.parents)
            and (one.read < len(one.rows) or one.closed is not None or (one.buffer.time.millis or 0) < self.tip)
        ]

    def read(self, one: History) -> None:
        """Take the next event of a shard: records, hours without any, its end, or its tip."""
        if one.parents and not one.is_begun:
            origin = entering(self.shards[parent].buffer.end for parent in one.parents)
            one.buffer = ShardBuffer(origin)
        one.is_begun = True
        if one.read < len(one.rows):
            following, one.clock = one.rows[one.read][1], max(one.clock, one.opened)
            if following - one.clock > 600_000 and self.chance.random() < 0.5:
                # An answer without records leads over a part of the gap.
                one.clock += 300_000
                self._append(one, event([], continuation=self._last(one), read_millis=one.clock))
                return
            count = self.chance.choice([1, 3, 20])
            rows = one.rows[one.read : one.read + count]
            one.read += len(rows)
            one.clock = max(millis for _, millis in rows)
            more = one.rows[one.read][1] if one.read < len(one.rows) else self.tip
            # At the end of a closed shard nothing is left, and that says nothing of its children.
            self._append(one, event(rows, read_millis=more if self.chance.random() < 0.7 else None))
        elif one.closed is not None:
            children = tuple(Shard(name, self.shards[name].parents) for name in one.children)
            self._append(one, event([], children=children))
            for child in one.children:
                self._learn(child)
        else:
            one.clock = self.tip
            self._append(one, event([], continuation=self._last(one) + 1, read_millis=self.tip))

    def _learn(self, name: str) -> None:
        """Learn a shard and all that came before it, as from ListShards."""
        self.graph.add(name, self.shards[name].parents)
        for parent in self.shards[name].parents:
            self._learn(parent)

    def _last(self, one: History) -> int:
        return one.rows[one.read - 1][0] if one.read else 1

    def _append(self, one: History, taken: ShardEvent) -> None:
        one.buffer.append(taken)

    def take(self, bounds: Bounds = Bounds()) -> Reach:  # noqa: B008  # frozen
        """Ask for a micro-batch and deliver it."""
        buffers = {(STREAM, name): one.buffer for name, one in self.shards.items()}
        horizon = partial(
            self.horizon.find, skew_millis=SKEW_MILLIS, delivered_millis=delivered_millis(self.at), now=self.now
        )
        bounds = Bounds(**{**vars(bounds), "skew_millis": SKEW_MILLIS})
        found = reach(self.at, buffers, {STREAM: self.graph}, bounds, horizon=horizon)
        self.horizon.holds_back = found.holds_back
        self.excused |= {shard for _, shard in self.horizon.left_behind}
        batch: list[tuple[str, int, int]] = []
        for name, upto in found.positions.streams[STREAM].items():
            after = self.at.get(STREAM, name) or TRIM_HORIZON
            rows = [row for row in self.shards[name].rows if after.rank < (1, row[0]) <= upto.rank]
            rows = rows if not upto.is_shard_end else [r for r in self.shards[name].rows if after.rank < (1, r[0])]
            self.delivered[name] += rows
            batch += [(name, number, millis) for number, millis in rows]
        assert len(batch) == found.rows
        for name, _, millis in batch:
            if name not in self.excused:
                self.most_late = max(self.most_late, self.latest - millis)
        self.latest = max([self.latest, *(millis for _, _, millis in batch)])
        self.at = StreamPositions.from_json(found.positions.to_json())
        return found


def chance_hours(chance: random.Random) -> int:
    """How long the stream was written, in milliseconds."""
    return chance.choice([600_000, 3_600_000, 6 * 3_600_000])


def bounds_of(chance: random.Random) -> Bounds:
    """Random limits of a query."""
    return Bounds(
        max_records=chance.choice([0, 0, 3, 20]),
        max_bytes=chance.choice([0, 0, 50, 2000]),
        max_records_per_shard=chance.choice([0, 0, 2, 10]),
    )


def catch_up(world: World, bounds: Bounds, buffer_bytes: int) -> None:
    """Read and deliver until everything came; shards are read in any order while their buffers have room."""
    turns = 0
    while any(len(world.delivered[name]) < len(one.rows) for name, one in world.shards.items()):
        turns += 1
        assert turns < 20_000, "micro-batches make no progress"
        world.now += 0.01
        for _ in range(world.chance.randint(0, 6)):
            ready = [one for one in world.readable() if one.buffer.held_bytes < buffer_bytes]
            if ready:
                world.read(world.chance.choice(ready))
        found = world.take(bounds)
        for name, one in world.shards.items():
            position = found.positions.get(STREAM, name)
            if position is not None:
                one.buffer.trim(position)


@settings(phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 1 << 32))
def test_later_micro_batches_hold_nothing_older_than_earlier_ones_by_more_than_the_skew(seed: int) -> None:
    """Whatever the loads, limits, buffers and reshards are; and every record comes once, in order."""
    world = World(random.Random(seed))
    catch_up(world, bounds_of(world.chance), world.chance.choice([10_000, 100_000, 10**9]))
    assert world.most_late <= SKEW_MILLIS + JITTER_MILLIS
    assert not world.excused
    assert world.delivered == {name: one.rows for name, one in world.shards.items()}


@settings(phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 1 << 32))
def test_a_shard_without_progress_is_left_behind_after_a_minute(seed: int) -> None:
    """It holds the others back for so long, and is named; nothing else is late, and nothing is lost."""
    chance = random.Random(seed)
    world = World(chance)
    stuck = chance.choice(sorted(world.shards))
    world.shards[stuck].is_stuck = True
    while True:
        ready = world.readable()
        if ready:
            world.read(chance.choice(ready))
        found = world.take()
        held = found.holds_back
        if not ready and not found.rows:
            if not held:
                break
            world.now += 59.0 if not world.horizon.left_behind else 61.0
            if not world.take().rows:
                world.now += 1.5
    assert world.excused <= {stuck, *descendants(world, stuck)}
    assert world.most_late <= SKEW_MILLIS + JITTER_MILLIS
    world.shards[stuck].is_stuck = False
    catch_up(world, Bounds(), 10**9)
    assert world.delivered == {name: one.rows for name, one in world.shards.items()}


def descendants(world: World, name: str) -> set[str]:
    """All shards that came of one."""
    found = set(world.shards[name].children)
    for child in world.shards[name].children:
        found |= descendants(world, child)
    return found


def simple(rows: dict[str, list[int]], times: dict[str, int | None], bounds: Bounds = Bounds()) -> dict[str, int]:  # noqa: B008  # frozen
    """How many records of each shard enter a micro-batch, of shards that hold records with some arrival times."""
    buffers = {(STREAM, name): ShardBuffer(TRIM_HORIZON) for name in rows}
    for name, millis in rows.items():
        for number, one in enumerate(millis, 1):
            buffers[STREAM, name].append(event([(number, one)]))
        buffers[STREAM, name].time.millis = times[name]
    start = StreamPositions({STREAM: dict.fromkeys(rows, TRIM_HORIZON)})
    find = Horizon(0.0).find
    found = reach(
        start,
        buffers,
        {},
        Bounds(**{**vars(bounds), "skew_millis": 100}),
        horizon=partial(find, skew_millis=100, delivered_millis=None, now=0.0),
    )
    return {name: found.positions.streams[STREAM][name].rank[1] for name in rows}


@pytest.mark.parametrize(
    ("rows", "times", "expected"),
    [
        pytest.param({"a": [10, 20], "b": [15]}, {"a": 20, "b": 15}, {"a": 2, "b": 1}, id="all are near"),
        pytest.param({"a": [10, 150, 90], "b": [15]}, {"a": 150, "b": 15}, {"a": 1, "b": 1}, id="a row is cut"),
        pytest.param({"a": [10, 200], "b": []}, {"a": 200, "b": None}, {"a": 0, "b": 0}, id="one has not answered"),
        pytest.param({"a": [10, 200], "b": []}, {"a": 200, "b": 90}, {"a": 1, "b": 0}, id="an empty one is behind"),
        pytest.param({"a": [10, 190], "b": []}, {"a": 190, "b": 90}, {"a": 2, "b": 0}, id="an empty one is near"),
    ],
)
def test_the_horizon_is_the_slowest_shards_time_and_the_skew(
    rows: dict[str, list[int]], times: dict[str, int | None], expected: dict[str, int]
) -> None:
    """Whether the slowest shard has records or not."""
    assert simple(rows, times) == expected


def test_a_shard_that_is_cut_by_its_own_limit_holds_the_others_back() -> None:
    """What is left of it comes later: nothing of the others may be further ahead than the skew."""
    rows = {"a": [10, 20, 30, 40], "b": [15, 125, 135]}
    times: dict[str, int | None] = {"a": 200, "b": 200}
    assert simple(rows, times, Bounds(max_records_per_shard=2)) == {"a": 2, "b": 2}


def test_a_limit_takes_what_arrived_first() -> None:
    """Of several shards, and of one whose arrival times go back in order of sequence numbers."""
    rows = {"a": [10, 30, 25, 40], "b": [20, 28, 50]}
    times: dict[str, int | None] = {"a": 60, "b": 60}
    counts = [simple(rows, times, Bounds(max_records=count)) for count in range(1, 8)]
    assert counts == [
        {"a": 1, "b": 0},
        {"a": 1, "b": 1},
        {"a": 1, "b": 2},
        {"a": 2, "b": 2},
        {"a": 3, "b": 2},
        {"a": 4, "b": 2},
        {"a": 4, "b": 3},
    ]


def test_an_answer_at_the_tip_counts_once_the_shard_has_gone_on() -> None:
    """A closed shard is at its tip, too, before it says that it has ended: its children hold old records."""
    time = ShardTime(None)
    time.take(event([(5, 1000)], read_millis=90_000))
    assert time.millis == 1000
    time.take(event([], children=(Shard("child", ("parent",)),)))
    assert time.millis == 1000
    time = ShardTime(None)
    time.take(event([(5, 1000)], read_millis=90_000))
    time.take(event([], continuation=6, read_millis=95_000))
    assert time.millis == 90_000


def test_answers_that_show_no_time_prove_nothing() -> None:
    """Like answers of a subscription that stands still, which may be the end of a closed shard."""
    time = ShardTime(500)
    time.take(event([(5, 1000)], read_millis=90_000))
    for _ in range(3):
        time.take(event([], continuation=5))
    assert time.millis == 1000
