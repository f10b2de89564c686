"""Aggregates of the Kinesis Producer Library in ranges: each user record once, whoever asks."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from aws_kinesis_agg.aggregator import AggRecord
from fleet_in_memory import in_skipped_time
from kpl_aggregates import aggregate

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    Shard,
    ShardFailedError,
    ShardPosition,
    ShardRange,
    ranges_between,
)
from penstock.efo_consumer.testing import FakeKinesis
from penstock.emulator.testing import UserRecord, partition_keys_in
from penstock.emulator.testing import aggregate as packed

KEYS = [f"key-{number}" for number in range(40)]


def put(kinesis: FakeKinesis, shard: str, data: bytes) -> int:
    (number,) = kinesis.put("s", shard)
    kinesis.shards["s", shard].data[-1] = data
    return number


async def rows(reader: LocalShardReader, ranges: list[ShardRange]) -> list[tuple[str, int, str | None, bytes]]:
    found = []
    async for batch in reader.read_range("q", ranges, with_encryption_type=True):
        names = ("sequenceNumber", "subSequenceNumber", "explicitHashKey", "data")
        found += list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))
    return found


async def test_a_range_gives_user_records_the_same_from_the_buffer_and_read_again() -> None:
    """Positions count records of Kinesis; an aggregate is never divided between two ranges."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    numbers = [
        put(kinesis, shard, aggregate(["a", "b", "c"])),
        put(kinesis, shard, b"plain"),
        put(kinesis, shard, aggregate(["d"], explicit="7")),
    ]
    async with LocalShardReader(kinesis) as reader, LocalShardReader(kinesis) as other:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        first = await reader.positions("q", epoch, start, max_records=1, wait_seconds=5)
        assert first.records == 1
        rest = await reader.positions("q", epoch, first.positions, wait_seconds=5)
        ranges = ranges_between(start, first.positions) + ranges_between(first.positions, rest.positions)
        expected = [
            (str(numbers[0]), 0, None, b"a"),
            (str(numbers[0]), 1, None, b"b"),
            (str(numbers[0]), 2, None, b"c"),
            (str(numbers[1]), 0, None, b"plain"),
            (str(numbers[2]), 0, "7", b"d"),
        ]
        assert await rows(reader, ranges) == expected
        assert await rows(other, ranges) == expected
        assert await rows(other, ranges[:1]) == expected[:3]


async def test_what_aggregates_become_counts_against_the_buffers_limit() -> None:
    """While many user records of few bytes are given out, their shard is read no further; then it is, without loss."""
    kinesis = FakeKinesis(event_records=4)
    (shard,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    # A key is in an aggregate once, and comes with each of its records.
    few_bytes = aggregate(["k" * 256] * 1_500)
    for _ in range(4):
        put(kinesis, shard, few_bytes)
    limit = 2**21
    async with LocalShardReader(kinesis, ReaderConfig(buffer_bytes_per_shard=limit, buffer_bytes=limit)) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        reached = await reader.positions("q", epoch, start, wait_seconds=5)
        assert reached.records == 4
        assert reader.buffered_bytes < limit
        batches = reader.read_range("q", ranges_between(start, reached.positions), max_batch_bytes=limit // 8)
        found = (await anext(batches)).num_rows
        assert reader.buffered_bytes > limit
        taken = kinesis.events_taken
        later = kinesis.put("s", shard, 40)
        for _ in range(300):
            await asyncio.sleep(0)
        # The one that was being waited for.
        assert kinesis.events_taken <= taken + 1
        found += sum([batch.num_rows async for batch in batches])
        assert found == 4 * 1_500
        assert reader.buffered_bytes < limit
        position = reached.positions
        plain: list[int] = []
        while len(plain) < len(later):
            reached = await reader.positions("q", epoch, position, wait_seconds=5)
            plain += [int(number) for number, *_ in await rows(reader, ranges_between(position, reached.positions))]
            position = reached.positions
        assert plain == later


async def test_an_answer_of_large_aggregates_is_taken_apart_bit_by_bit() -> None:
    """Memory holds what one large aggregate becomes, not what ten MiB of them do."""
    kinesis = FakeKinesis(event_records=4)
    (shard,) = kinesis.create_stream("s")
    record = AggRecord()
    for _ in range(8):
        assert record.add_user_record("k", b"d" * 100_000)
    upto = [put(kinesis, shard, bytes(record.get_contents()[2])) for _ in range(4)][-1]
    whole = ShardRange("s", shard, ShardPosition.trim_horizon(), ShardPosition.after(str(upto)))
    async with LocalShardReader(kinesis) as reader:
        held = [reader.buffered_bytes async for _ in reader.read_range("q", [whole])]
        assert 800_000 < max(held) < 1_600_000
        assert reader.buffered_bytes == 0


def whole(shard: str, upto: int) -> ShardRange:
    return ShardRange("s", shard, ShardPosition.trim_horizon(), ShardPosition.after(str(upto)))


@pytest.mark.parametrize("created", [{}, {"s": 1}], ids=["without its creation time", "with it"])
async def test_a_stream_that_was_made_anew_has_shards_of_its_own(created: dict[str, int]) -> None:
    """A reader outlives a stream: shards of the next one of its name have the same ids, and take other keys."""
    kinesis = FakeKinesis()
    given: list[list[bytes]] = []
    async with LocalShardReader(kinesis) as reader:
        for shards in (1, 3):
            kinesis.shards.clear()
            kinesis.created = {stream: millis * shards for stream, millis in created.items()}
            parent, *children = kinesis.create_stream("s", shards)
            if not children:
                children = kinesis.reshard("s", [parent], 2)
            upto = put(kinesis, children[0], aggregate(KEYS))
            epoch = await reader.open(OpenRequest(session_id="q", positions=kinesis.trim_horizon("s")))
            given.append(await data_of(reader, whole(children[0], upto)))
            await reader.close_session("q", epoch)
    assert 0 < len(given[0]) < len(KEYS)
    assert given[1] == [key.encode() for key in KEYS]


def told(caplog: pytest.LogCaptureFixture, stream: str) -> list[str]:
    """The cures in the warnings about the aggregates of a stream."""
    cures = ("deaggregate=all", "correct their producer", "delivered unchanged")
    mine = [one.getMessage() for one in caplog.records if isinstance(one.args, tuple) and stream in one.args[:1]]
    return [cure for message in mine for cure in cures if cure in message]


async def test_user_records_that_a_split_explains_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """An aggregate has keys of the shard, of its sibling and of a cousin. A producer sends the sibling's again."""
    kinesis = FakeKinesis()
    parent, _ = kinesis.create_stream("split", 2)
    start = kinesis.trim_horizon("split")
    child, _ = kinesis.reshard("split", [parent], 2)
    kinesis.put("split", child)
    of = [(0, 2**126 - 1), (2**126, 2**127 - 1), (2**127, 2**128 - 1)]
    own, of_sibling, of_cousin = (partition_keys_in(*keys, 3 + number) for number, keys in enumerate(of))
    keys = [*of_sibling, *own, *of_cousin]
    kinesis.shards["split", child].data[-1] = packed(UserRecord(key.encode(), key) for key in keys)
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        found: list[tuple[str, int, str | None, bytes]] = []
        position = start
        while not found:
            reached = await reader.positions("q", epoch, position, wait_seconds=5)
            found = await rows(reader, ranges_between(position, reached.positions))
            position = reached.positions
        stats = {one.shard_id: one for one in await reader.stats("q")}[child]
    assert [(number, data) for _, number, _, data in found] == [
        (number, key.encode()) for number, key in enumerate(keys) if key not in of_sibling
    ]
    assert (stats.user_records_of_siblings, stats.user_records_outside_shard) == (4, 5)
    assert told(caplog, "split") == ["deaggregate=all"] * 2


async def test_rows_stay_the_same_when_the_parent_leaves_the_list() -> None:
    """The other child proves the parent's keys to a new process. Once both have expired, user records come twice."""
    kinesis = FakeKinesis()
    (parent,) = kinesis.create_stream("s")
    child, sibling = kinesis.reshard("s", [parent], 2)
    one = whole(child, put(kinesis, child, aggregate(KEYS)))
    async with LocalShardReader(kinesis) as reader:
        first = await data_of(reader, one)
        assert 0 < len(first) < len(KEYS)
        kinesis.shards["s", parent].unlisted = True
        async with LocalShardReader(kinesis) as other:
            assert await data_of(other, one) == first
        kinesis.shards["s", sibling].unlisted = True
        assert await data_of(reader, one) == first
        async with LocalShardReader(kinesis) as other:
            assert await data_of(other, one) == [key.encode() for key in KEYS]


class LateList(FakeKinesis):
    """A stream that was split, and whose children ListShards shows only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = 0
        (parent,) = self.create_stream("s")
        self.children = self.reshard("s", [parent], 2)
        self.keys = KEYS
        data = aggregate(KEYS)
        self.ranges = [
            ShardRange("s", child, ShardPosition.trim_horizon(), ShardPosition.after(str(put(self, child, data))))
            for child in self.children
        ]
        self.show(is_listed=False)

    def show(self, *, is_listed: bool) -> None:
        for child in self.children:
            self.shards["s", child].unlisted = not is_listed

    async def list_shards(self, stream_name: str) -> list[Shard]:
        self.lists += 1
        return await super().list_shards(stream_name)


async def data_of(reader: LocalShardReader, shard_range: ShardRange) -> list[bytes]:
    return [data for *_, data in await rows(reader, [shard_range])]


def test_user_records_come_once_where_the_list_shows_children_late() -> None:
    """The reader did not see the parent's end: one call lists the shards again, and other streams do not wait."""

    async def scenario() -> None:
        kinesis = LateList()
        (other,) = kinesis.create_stream("t")
        (upto,) = kinesis.put("t", other)
        kinesis.shards["t", other].data[-1] = aggregate(["a"])
        whole = ShardRange("t", other, ShardPosition.trim_horizon(), ShardPosition.after(str(upto)))
        async with LocalShardReader(kinesis) as reader:
            waiting = [asyncio.create_task(data_of(reader, one)) for one in kinesis.ranges]
            await asyncio.sleep(5)
            began = asyncio.get_running_loop().time()
            assert await data_of(reader, whole) == [b"a"]
            assert asyncio.get_running_loop().time() == began
            assert not any(one.done() for one in waiting)
            kinesis.show(is_listed=True)
            found = await asyncio.gather(*waiting)
            assert Counter(data for part in found for data in part) == Counter(key.encode() for key in kinesis.keys)
            assert [await data_of(reader, one) for one in kinesis.ranges] == found
            # At 0, 2, 4 and 6 s, and of the other stream.
            assert kinesis.lists == 5

    in_skipped_time(scenario)


def test_a_shard_that_is_there_and_not_listed_is_an_error_and_no_doubled_rows() -> None:
    """Its records are young, so it cannot have expired; once it is listed, the range gives what is its own."""

    async def scenario() -> None:
        kinesis = LateList()
        async with LocalShardReader(kinesis) as reader:
            for child, one in zip(kinesis.children, kinesis.ranges, strict=True):
                with pytest.raises(ShardFailedError, match="ListShards has not shown the shard, whose records") as told:
                    await data_of(reader, one)
                assert (told.value.shard_id, told.value.code) == (child, "ShardNotListed")
            assert asyncio.get_running_loop().time() == 2 * 60
            kinesis.show(is_listed=True)
            found = [data for one in kinesis.ranges for data in await data_of(reader, one)]
            assert Counter(found) == Counter(key.encode() for key in kinesis.keys)

    in_skipped_time(scenario)
