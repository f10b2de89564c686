"""Which shards a fleet reads after a shard, and what it knows of the shards that enter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
from fleet_in_memory import Connection, Member, SkippingLoop
from reader_homes import read

from penstock.efo_consumer import (
    FleetShardReader,
    OpenRequest,
    ReaderConfig,
    ShardPosition,
    StreamPositions,
)
from penstock.efo_consumer._remote.resume import owner_of
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis

BEGIN = ShardPosition.trim_horizon()


def endpoints_apart(alone: str, others: Sequence[str]) -> list[str]:
    """Two endpoints, of which one owns a shard and the other one some others."""
    for number in range(1000):
        pair = (f"a{number}:1", f"b{number}:1")
        owners = {owner_of(pair, "s", shard) for shard in others}
        if len(owners) == 1 and owner_of(pair, "s", alone) not in owners:
            return [*pair]
    raise AssertionError("no such pair")


class World:
    """A fleet of two, and what its caller reads."""

    def __init__(self, loop: SkippingLoop, kinesis: FakeKinesis, endpoints: Sequence[str]) -> None:
        self.members = {one: Member(one, kinesis, ReaderConfig(), loop.time) for one in endpoints}
        self.fleet = FleetShardReader(
            endpoints,
            clock=loop.time,
            connect=lambda endpoint, _: Connection(self.members[endpoint]),  # type: ignore[arg-type, return-value]  # by its methods
        )
        self.rows: list[int] = []
        self.at = StreamPositions({})

    async def read(self, start: Mapping[str, ShardPosition]) -> None:
        """Read from here until nothing comes for a while."""
        self.at = StreamPositions({"s": start}, {"s": 7})
        epoch = await self.fleet.open(OpenRequest(session_id="q", positions=self.at, fail_on_data_loss=False))
        quiet = 0
        while quiet < 3:
            found = await self.fleet.positions("q", epoch, self.at, wait_seconds=5)
            self.rows += await read(self.fleet, self.at, found.positions)
            quiet = quiet + 1 if found.positions == self.at else 0
            self.at = found.positions
            await self.fleet.commit("q", epoch, self.at)

    def standing(self) -> dict[str, ShardPosition]:
        """Positions of shards that have not ended."""
        return {shard_id: position for shard_id, position in self.at.streams["s"].items() if not position.is_shard_end}

    async def aclose(self) -> None:
        await self.fleet.aclose()
        for member in self.members.values():
            await member.local.aclose()


def run(kinesis: FakeKinesis, endpoints: Sequence[str], test: Callable[[World], Awaitable[None]]) -> None:
    loop = SkippingLoop()

    async def with_world() -> None:
        world = World(loop, kinesis, endpoints)
        try:
            await test(world)
        finally:
            await world.aclose()

    try:
        loop.run_until_complete(with_world())
    finally:
        loop.close()


def check(
    kinesis: FakeKinesis,
    endpoints: Sequence[str],
    start: Mapping[str, ShardPosition],
    rows: list[int],
    standing: set[str],
) -> None:
    """Read from here, and compare the rows, and the shards that still have positions short of their end."""

    async def test(world: World) -> None:
        await world.read(start)
        assert sorted(world.rows) == sorted(rows)
        assert set(world.standing()) == standing

    run(kinesis, endpoints, test)


@pytest.mark.parametrize("is_read", [True, False], ids=["grandchild is read", "grandchild is unread"])
def test_after_a_shard_that_is_gone_a_fleet_reads_what_none_of_its_readers_reads(is_read: bool) -> None:
    """Every record that is left comes once, and nothing again that others read, or that had been read before."""
    kinesis = FakeKinesis()
    gone, before = kinesis.create_stream("s", 2)
    read = kinesis.put("s", gone, 3)
    kinesis.put("s", before, 2)
    children = kinesis.reshard("s", [before], 2)
    kept = [number for child in children for number in kinesis.put("s", child, 2)]
    (child,) = kinesis.reshard("s", [gone], 1)
    kinesis.put("s", child, 2)
    (grandchild,) = kinesis.reshard("s", [child], 1)
    kept += kinesis.put("s", grandchild, 3)
    for expired in (gone, child):
        kinesis.shards["s", expired].gone = True
    refusal = RecordPublisherFatalError("gone", stream="s", shard_id=gone, code="ResourceNotFoundException")
    kinesis.fail("s", gone, refusal)
    start = {gone: ShardPosition.after(str(read[0])), **dict.fromkeys(children, BEGIN)}
    if is_read:
        start[grandchild] = BEGIN
    check(kinesis, endpoints_apart(gone, [*children, grandchild]), start, kept, {*children, grandchild})


def test_a_child_that_is_gone_too_leaves_its_own_children() -> None:
    """Beside the child that is left, though that one alone names the shard as its parent."""
    kinesis = FakeKinesis()
    gone, other = kinesis.create_stream("s", 2)
    children = kinesis.reshard("s", [gone], 2)
    kinesis.put("s", children[0], 2)
    grandchildren = kinesis.reshard("s", children[:1], 2)
    left = [children[1], *grandchildren]
    kept = [number for shard in (other, *left) for number in kinesis.put("s", shard, 2)]
    for expired in (gone, children[0]):
        kinesis.shards["s", expired].gone = True
    refusal = RecordPublisherFatalError("gone", stream="s", shard_id=gone, code="ResourceNotFoundException")
    kinesis.fail("s", gone, refusal)
    start = {gone: ShardPosition.after("1"), other: BEGIN}
    check(kinesis, endpoints_apart(gone, [other]), start, kept, {other, *left})


def test_a_shard_that_was_read_to_its_end_and_expired_with_its_children_has_successors() -> None:
    """A query that was stopped for longer than the retention continues with what is left, also with many readers."""
    kinesis = FakeKinesis()
    gone, other = kinesis.create_stream("s", 2)
    children = kinesis.reshard("s", [gone], 2)
    grandchildren = [shard for child in children for shard in kinesis.reshard("s", [child], 1)]
    kept = [number for shard in (other, *grandchildren) for number in kinesis.put("s", shard, 2)]
    for expired in (gone, *children):
        kinesis.shards["s", expired].gone = True
    start = {gone: ShardPosition.shard_end(), other: BEGIN}
    check(kinesis, endpoints_apart(gone, [other]), start, kept, {other, *grandchildren})


@pytest.mark.parametrize("at_end", [True, False], ids=["was read to its end", "is found gone"])
def test_a_merged_shard_after_one_that_is_gone_waits_for_a_parent_that_is_not_listed_yet(at_end: bool) -> None:
    """What ListShards does not show has not expired by that: its parent is still being read."""
    kinesis = FakeKinesis()
    gone, other = kinesis.create_stream("s", 2)
    late, beside = kinesis.reshard("s", [other], 2)
    (merged,) = kinesis.reshard("s", [gone, late], 1)
    kept = [number for shard in (beside, merged) for number in kinesis.put("s", shard, 2)]
    held = kinesis.shards["s", late]
    held.sequence_numbers, held.data = [kinesis.tip + 1, kinesis.tip + 2], [b"1", b"2"]
    kinesis.shards["s", gone].gone = held.unlisted = True
    refusal = RecordPublisherFatalError("gone", stream="s", shard_id=gone, code="ResourceNotFoundException")
    kinesis.fail("s", gone, refusal)
    start = {gone: ShardPosition.shard_end() if at_end else ShardPosition.after("1"), beside: BEGIN}

    async def test(world: World) -> None:
        await world.read(start)
        assert merged not in world.at.streams["s"]
        held.unlisted = False
        world.rows.clear()
        await world.read({**world.at.streams["s"], late: BEGIN})
        assert sorted(world.rows) == sorted([*kept[2:], *held.sequence_numbers])

    run(kinesis, endpoints_apart(gone, [beside, late]), test)


def test_a_merged_shard_enters_after_the_parent_that_is_read_where_the_other_had_ended_before() -> None:
    """A query that begins right after a merge at LATEST reads a parent that holds records since, and that one alone."""
    kinesis = FakeKinesis()
    over, parent, beside = kinesis.create_stream("s", 3)
    kinesis.put("s", over, 2)
    kept = kinesis.put("s", parent, 2)
    (merged,) = kinesis.reshard("s", [over, parent], 1)
    kept += kinesis.put("s", merged, 3)
    check(kinesis, endpoints_apart(parent, [beside]), {parent: BEGIN, beside: BEGIN}, kept, {merged, beside})


def test_a_child_enters_with_what_is_known_of_its_parents() -> None:
    """All of its records arrived after its parents were closed; and the stream's creation time stays."""
    kinesis = FakeKinesis()
    shards = kinesis.create_stream("s", 2)
    start = {
        shard: ShardPosition(ShardPosition.after("1").type, sequence_number="1", record="1", arrived_millis=millis)
        for shard, millis in zip(shards, (5000, 9000), strict=True)
    }
    (child,) = kinesis.reshard("s", shards, 1)

    async def test(world: World) -> None:
        await world.read(start)
        ((shard_id, position),) = world.standing().items()
        assert (shard_id, position) == (child, BEGIN)
        assert (position.known_millis or 0) >= 9000
        assert world.at.created == {"s": 7}

    run(kinesis, endpoints_apart(shards[0], [shards[1]]), test)
