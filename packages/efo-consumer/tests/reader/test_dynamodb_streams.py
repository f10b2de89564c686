"""Streams of DynamoDB by the same reader, over the emulator: exactly all changes, or an error that says why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from zlib import crc32

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    CHANGE_SCHEMA,
    DYNAMODB_STREAMS,
    TIP_SECONDS,
    DataLossError,
    InitialPositionError,
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherType,
    Shard,
    ShardEvent,
    ShardPosition,
    ShardRange,
    ShardState,
    StreamIdentity,
    StreamPositions,
    StreamRecreatedError,
    list_shards,
    ranges_between,
    resolve_initial_positions,
    stream_client,
    to_change_batch,
)
from penstock.efo_consumer._start import initial
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator

TABLE = "orders"
DAY = 24 * 3600.0
CONFIG = ReaderConfig(deaggregate=False, idle_offset_interval=timedelta(milliseconds=10))
TTL = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}


class World:
    """A table's stream, and what was put into it."""

    def __init__(self, emulator: RunningEmulator, clock: OtherClock) -> None:
        self.emulator, self.clock, self.streams = emulator, clock, emulator.dynamodb_streams
        self.arn = self.enable()
        self.session = AwsSession(replace(emulator_options(emulator.endpoint_url), stream_service=DYNAMODB_STREAMS))
        self.put_ids: list[str] = []

    def enable(self, shards: int = 1) -> str:
        return self.emulator.call(lambda: self.streams.enable(TABLE, shards=shards))

    def disable(self) -> None:
        self.emulator.call(lambda: self.streams.disable(TABLE))

    def put(self, count: int) -> list[str]:
        """Insert items; give their ids."""
        ids = [str(number) for number in range(len(self.put_ids), len(self.put_ids) + count)]
        for one in ids:
            keys = {"id": {"S": one}}
            self.emulator.call(partial(self.streams.change, TABLE, keys, new=keys))
        self.put_ids += ids
        return ids

    def split(self, shard: str | None = None, children: int = 2, age: float = 11) -> list[str]:
        """Let children follow a shard; lists are complete once they are some seconds old."""
        found = self.emulator.call(lambda: self.streams.split(TABLE, shard, children=children))
        self.clock.advance(age)
        return found

    def start(self, position: str = "TRIM_HORIZON") -> StreamPositions:
        return resolve_initial_positions(self.session, [self.arn], position)


@pytest.fixture
def world() -> Iterator[World]:
    clock = OtherClock(0)
    with running_emulator(tls=False, clock=clock) as emulator:
        yield World(emulator, clock)


class Query:
    """What Spark does: positions, then the range up to them."""

    def __init__(self, world: World, start: StreamPositions, *, fail: bool = True) -> None:
        self.world, self.position, self.fail = world, start, fail
        self.reader = LocalShardReader(KinesisBackend(world.session), CONFIG)
        self.ids: list[str] = []
        self.shards: list[str] = []
        self.ranges: list[ShardRange] = []

    async def __aenter__(self) -> Query:
        await self.reader.__aenter__()
        request = OpenRequest(
            session_id="q",
            positions=self.position,
            record_publisher=RecordPublisherType.POLLING,
            fail_on_data_loss=self.fail,
        )
        self.epoch = await self.reader.open(request)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.reader.aclose()

    async def step(self, **limits: Any) -> None:
        found = await self.reader.positions("q", self.epoch, self.position, wait_seconds=1, **limits)
        ranges = ranges_between(self.position, found.positions)
        ids, shards = await read(self.reader, ranges)
        self.ids, self.shards, self.ranges = self.ids + ids, self.shards + shards, self.ranges + ranges
        self.position = StreamPositions.from_json(json.loads(json.dumps(found.positions.to_json())))

    async def until(self, count: int, **limits: Any) -> None:
        async with asyncio.timeout(60):
            while len(self.ids) < count:
                await self.step(**limits)

    async def until_condition(self, state: ShardState) -> None:
        async with asyncio.timeout(60):
            while all(one.condition.state is not state for one in await self.reader.stats("q")):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)


async def read(reader: LocalShardReader, ranges: list[ShardRange]) -> tuple[list[str], list[str]]:
    """The ids and the shards of the changes of ranges."""
    ids: list[str] = []
    shards: list[str] = []
    async with aclosing(reader.read_range("q", ranges)) as batches:
        async for batch in batches:
            changes = to_change_batch(batch)
            ids += [json.loads(keys)["id"]["S"] for keys in changes.column("keys").to_pylist()]
            shards += changes.column("shardId").to_pylist()
    return ids, shards


async def shards_of(world: World) -> list[Shard]:
    async with stream_client(world.session) as client:
        return await list_shards(client, StreamIdentity(TABLE, world.arn))


async def test_shards_that_split_and_roll_over_are_read_parents_first_and_once(world: World) -> None:
    """Through two restarts from offsets; each range that was logged gives the same changes again, by another reader."""
    ranges: list[ShardRange] = []
    seen: list[str] = []
    shards: list[str] = []
    position = world.start()
    for children in (2, 1):
        world.put(20)
        async with Query(world, position) as query:
            await query.until(10, max_records=5)
            world.split(children=children)
            world.put(20)
            await query.until(len(world.put_ids) - len(seen))
            position, ranges, seen, shards = (
                query.position,
                ranges + query.ranges,
                seen + query.ids,
                shards + query.shards,
            )
    assert sorted(seen, key=int) == world.put_ids
    parents = {one.shard_id: one.parent_shard_ids for one in await shards_of(world)}
    assert len(parents) == 4
    for child, of in parents.items():
        for parent in of:
            last = max(row for row, shard in enumerate(shards) if shard == parent)
            assert last < min((row for row, shard in enumerate(shards) if shard == child), default=last + 1)
    async with LocalShardReader(KinesisBackend(world.session), CONFIG) as other:
        assert (await read(other, ranges))[0] == seen


@pytest.mark.parametrize("limits", [{}, {"max_records": 60}, {"max_records_per_shard": 15}])
async def test_answers_keep_shards_together_in_time(limits: dict[str, int]) -> None:
    """One shard has most of the load, one has none, and children follow: nothing comes a minute late."""
    clock = OtherClock(-3600, rate=60)
    with running_emulator(tls=False, clock=clock) as emulator:
        world, times = World(emulator, clock), dict[str, float]()
        world.split(children=3)
        for minute in range(40):
            ids = [f"{minute}-{number}" for number in range(60)]
            # Each of three shards takes a third of all keys.
            parts = [[one for one in ids if crc32(f'{{"id":{{"S":"{one}"}}}}'.encode()) % 3 == part] for part in (0, 1)]
            for one in parts[0] + parts[1][:1]:
                keys = {"id": {"S": one}}
                emulator.call(partial(world.streams.change, TABLE, keys, new=keys))
                times[one] = clock.time()
            if minute == 25:
                world.split(children=2)
            clock.advance(60)
        latest, late = 0.0, 0.0
        async with Query(world, world.start()) as query, asyncio.timeout(120):
            while (came := len(query.ids)) < len(times):
                await query.step(max_shard_skew_seconds=60, **limits)
                found = [times[one] for one in query.ids[came:]]
                late = max(late, latest - min(found, default=latest))
                latest = max([latest, *found])
        assert sorted(query.ids) == sorted(times)
        # The service gives whole seconds.
        assert late <= 62


def test_latest_begins_in_a_shard_that_takes_over_while_the_table_is_listed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the later of two lists alone: what it came of is behind it, and a day of changes does not come."""
    for _ in range(2):
        world.put(1)
        world.clock.advance(4 * 3600)
        (youngest,) = world.split(children=1)
    taken_over: list[str] = []

    async def list_and_split(*arguments: Any, **options: Any) -> list[Shard]:
        found = await list_shards(*arguments, **options)
        if not taken_over:
            taken_over.extend(await asyncio.to_thread(world.split, children=1))
        return found

    monkeypatch.setattr(initial, "list_shards", list_and_split)
    assert {*world.start("LATEST").streams[world.arn]} <= {youngest, *taken_over}


async def test_latest_is_in_the_newest_shards(world: World) -> None:
    """A closed shard whose children no list shows yet is one of them: they follow it."""
    world.put(3)
    [first, second] = world.split()
    assert set(world.start("LATEST").streams[world.arn]) == {first, second}
    world.streams.list_delay = 3600
    world.clock.advance(7200)
    [hidden] = world.split(first, children=1)
    assert set(world.start("LATEST").streams[world.arn]) == {first, second}
    world.clock.advance(3600)
    assert set(world.start("LATEST").streams[world.arn]) == {hidden, second}


async def test_changes_that_expired_unread_are_an_error_that_names_them(world: World) -> None:
    """The shard, and where reading stood; without failOnDataLoss what is left is read."""
    world.put(2)
    start = world.start()
    async with Query(world, start) as query:
        await query.until(2)
        position = query.position
    [(shard, after)] = position.streams[world.arn].items()
    world.put(2)
    world.clock.advance(DAY + 60)
    left = world.put(2)
    with pytest.raises(DataLossError) as caught:
        async with Query(world, position) as query:
            await query.until(1)
    assert caught.value.shard_id == shard
    assert str(after.sequence_number) in str(caught.value)
    assert world.arn in str(caught.value)
    async with Query(world, position, fail=False) as query:
        await query.until(2)
        assert query.ids == left


def behave(world: World, **fields: Any) -> None:
    world.emulator.behaviour = replace(world.emulator.behaviour, **fields)


async def read_to_the_end(world: World, shard: str, advance: float) -> tuple[int, list[ShardEvent]]:
    """Read a shard up to where the read ends; give the number of changes, and the answers.

    The clock is moved by so many seconds with each empty answer.
    """
    backend = KinesisBackend(world.session)
    told: list[ShardEvent] = []
    async with aclosing(backend.read_once(world.arn, shard, ShardPosition.trim_horizon())) as events:
        async for event in events:
            told.append(event)
            if not event.records.num_rows:
                world.clock.advance(advance)
    await backend.aclose()
    return sum(event.records.num_rows for event in told), told


async def test_an_open_shard_ends_after_a_minute_of_empty_answers(world: World) -> None:
    """Twenty of them before the records, within the minute, are no end; nor is the lag of 0 that they have."""
    ids = world.put(2)
    [shard] = world.start().streams[world.arn]
    behave(world, empty_answers=20)
    rows, told = await read_to_the_end(world, shard, 2.5)
    assert rows == len(ids)
    lags = [event.millis_behind_latest for event in told]
    assert lags[:9] == [None] * 9
    assert lags[9:20] == [0] * 11
    quiet = [event.quiet_seconds for event in told]
    assert quiet[20] is None
    assert max(seconds for seconds in quiet[:-1] if seconds is not None) < TIP_SECONDS <= (quiet[-1] or 0)
    # What is a guess proves nothing.
    assert [event.caught_up_millis for event in told[:-1]] == [None] * (len(told) - 1)
    assert told[-1].caught_up_millis is not None


async def test_a_closed_shard_ends_by_its_children_alone(world: World) -> None:
    """Ten minutes of empty answers come before the records and before the end."""
    ids = world.put(2)
    [shard] = world.start().streams[world.arn]
    children = world.split()
    behave(world, empty_answers=20)
    rows, told = await read_to_the_end(world, shard, 30)
    assert rows == len(ids)
    assert {child.shard_id for child in told[-1].child_shards} == set(children)


async def test_a_closed_shard_that_gives_nothing_is_no_tip(world: World) -> None:
    """While it is followed: a guess until a list shows it closed, and stuck from then on."""
    world.put(2)
    async with Query(world, world.start()) as query:
        await query.until(2)
        await query.until_condition(ShardState.CAUGHT_UP)
        assert [one.condition.is_guess for one in await query.reader.stats("q")] == [True]
        behave(world, empty_answers=10_000)
        world.split()
        world.put(10)
        # The iterator that is open gives the end at once, and the next one does not.
        world.clock.advance(1000)
        await query.until_condition(ShardState.STUCK)
        assert query.ids == world.put_ids[:2]
        behave(world, empty_answers=0)
        world.clock.advance(1000)
        await query.until(12)
    assert sorted(query.ids, key=int) == world.put_ids


async def test_children_that_lists_show_late_are_all_read(world: World) -> None:
    """One child after the other: the second one is not forgotten over the first."""
    world.put(1)
    world.streams.list_delay = 4.0
    async with Query(world, world.start()) as query:
        await query.until(1)
        # The first one is shown now, the second one in a second.
        world.split(age=7)
        world.put(30)
        await query.until(31)
        assert len(set(query.shards)) == 3
    assert sorted(query.ids, key=int) == world.put_ids


async def test_the_last_changes_of_a_shard_do_not_wait_until_its_children_are_believed(world: World) -> None:
    """They are given without the shard's end, and no call waits for it: each keeps room for an answer."""
    world.put(3)
    [parent] = world.start().streams[world.arn]
    children = world.split(age=0)
    async with stream_client(world.session) as client:

        async def records(iterator: str) -> dict[str, Any]:
            return dict(await client.call("GetRecords", {"StreamARN": world.arn, "ShardIterator": iterator}))

        request = {"StreamARN": world.arn, "ShardId": parent, "ShardIteratorType": "TRIM_HORIZON"}
        last = await records((await client.call("GetShardIterator", request))["ShardIterator"])
        assert len(last["Records"]) == 3
        assert "ChildShards" not in last
        young = await records(last["NextShardIterator"])
        assert young["Records"] == []
        assert "ChildShards" not in young
        # Behind what was read, and not at a tip: a bounded read continues.
        assert young["MillisBehindLatest"] > 0
        world.clock.advance(11)
        await client.call("ListShards", {"StreamARN": world.arn, "MaxResults": 1})
        end = await records(young["NextShardIterator"])
    assert sorted(one["ShardId"] for one in end["ChildShards"]) == sorted(children)
    assert "NextShardIterator" not in end


@pytest.mark.parametrize("start", ["LATEST", "at the end of the parent"])
async def test_both_children_are_read_though_a_list_shows_one_of_them(world: World, start: str) -> None:
    """The list in which a query finds where it begins, or what comes after the shard that it had read to its end."""
    [parent] = world.start().streams[world.arn]
    world.streams.list_delay = 4.0
    # The first one is shown now, the second one in a second.
    world.split(age=7)
    if start == "LATEST":
        position = await asyncio.to_thread(world.start, start)
    else:
        position = StreamPositions({world.arn: {parent: ShardPosition.shard_end()}})
    world.put(30)
    async with Query(world, position) as query:
        await query.until(30)
    assert sorted(query.ids, key=int) == world.put_ids
    assert len(set(query.shards)) == 2


async def test_a_disabled_stream_is_read_to_its_end_and_rests_there(world: World) -> None:
    """Its last shards have no children: nothing is missing, and nothing fails."""
    world.put(3)
    async with Query(world, world.start()) as query:
        await query.until(2, max_records=2)
        world.disable()
        await query.until(3)
        await query.until_condition(ShardState.CAUGHT_UP)
        await query.step()
        assert query.ids == world.put_ids


async def test_the_next_stream_of_a_table_is_another_one(world: World) -> None:
    """Offsets that go by the table's name say when their stream was made."""
    world.put(1)
    start = world.start()
    world.disable()
    world.clock.advance(5)
    again = world.enable()
    [shard] = resolve_initial_positions(world.session, [again], "TRIM_HORIZON").streams[again]
    moved = StreamPositions({again: {shard: ShardPosition.after("1")}}, {again: start.created[world.arn]})
    with pytest.raises(StreamRecreatedError):
        async with Query(world, moved) as query:
            await query.step()


async def test_what_is_not_allowed_is_named(world: World) -> None:
    """By the action that DynamoDB knows."""
    start = world.start()
    world.emulator.faults.add("error", operation="DescribeStream", code="AccessDeniedException")
    with pytest.raises(InitialPositionError, match="allow dynamodb:DescribeStream"):
        await asyncio.to_thread(world.start)
    world.emulator.faults.clear()
    world.emulator.faults.add("error", operation="GetRecords", code="AccessDeniedException")
    [shard] = start.streams[world.arn]
    backend = KinesisBackend(world.session)
    with pytest.raises(RecordPublisherFatalError, match="need dynamodb:GetRecords"):
        await anext(backend.read_once(world.arn, shard, ShardPosition.trim_horizon()))
    await backend.aclose()


async def test_changes_become_columns(world: World) -> None:
    """Keys and images are DynamoDB's JSON; who deletes by TTL is named."""
    keys = {"id": {"S": "ä"}}
    item = {**keys, "n": {"N": "12345678901234567890.5"}, "b": {"B": "AAE="}}

    def put() -> None:
        world.streams.change(TABLE, keys, new=item)
        world.streams.change(TABLE, keys, old=item, user_identity=TTL)

    world.emulator.call(put)
    async with Query(world, world.start()) as query:
        found = await query.reader.positions("q", query.epoch, query.position, wait_seconds=5)
        ranges = ranges_between(query.position, found.positions)
        [batch] = [to_change_batch(one) async for one in query.reader.read_range("q", ranges)]
    assert batch.schema == CHANGE_SCHEMA
    first, second = batch.to_pylist()
    assert (first["eventName"], second["eventName"]) == ("INSERT", "REMOVE")
    assert json.loads(first["newImage"]) == json.loads(second["oldImage"]) == item
    assert first["oldImage"] is second["newImage"] is first["userIdentity"] is None
    assert second["userIdentity"] == {"principalId": "dynamodb.amazonaws.com", "type": "Service"}
    assert first["streamArn"] == world.arn
    assert first["approximateCreationDateTime"].microsecond == 0
    assert first["sizeBytes"] > 0
