"""Aggregates of the Kinesis Producer Library in ranges: each user record once, whoever asks."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter

import pytest
from aws_kinesis_agg.aggregator import AggRecord
from fleet_in_memory import in_skipped_time
from kpl_aggregates import aggregate

from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherConfig,
    Shard,
    ShardFailedError,
    ShardPosition,
    ShardRange,
    ranges_between,
)
from penstock.efo_consumer.testing import FakeKinesis


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


async def test_empty_records_after_a_large_one_are_not_left_out() -> None:
    """Where an answer is divided, a rest without any bytes is a part as well."""
    kinesis = FakeKinesis(event_records=4)
    (shard,) = kinesis.create_stream("s")
    larger = b"x" * (1024 * 1024 + 1)
    upto = [put(kinesis, shard, data) for data in (aggregate(["a"]), larger, b"", b"")][-1]
    whole = ShardRange("s", shard, ShardPosition.trim_horizon(), ShardPosition.after(str(upto)))
    async with LocalShardReader(kinesis) as reader:
        assert [data for *_, data in await rows(reader, [whole])] == [b"a", larger, b"", b""]


async def test_each_user_record_belongs_to_the_one_shard_that_takes_its_key() -> None:
    """An aggregate that was written over a reshard comes to both children; each gives what is its own."""
    kinesis = FakeKinesis()
    (parent,) = kinesis.create_stream("s")
    start = kinesis.trim_horizon("s")
    keys = [f"key-{number}" for number in range(40)]
    children = kinesis.reshard("s", [parent], 2)
    for child in children:
        put(kinesis, child, aggregate(keys))
    async with LocalShardReader(kinesis) as reader:
        epoch = await reader.open(OpenRequest(session_id="q", positions=start))
        position = start
        found: dict[str, list[bytes]] = {}
        while sum(map(len, found.values())) < len(keys):
            reached = await reader.positions("q", epoch, position, wait_seconds=5)
            for shard_range in ranges_between(position, reached.positions):
                got = await rows(reader, [shard_range])
                found.setdefault(shard_range.shard_id, []).extend(data for *_, data in got)
            position = reached.positions
    assert Counter(data for part in found.values() for data in part) == Counter(key.encode() for key in keys)
    upper = {key.encode() for key in keys if hashlib.md5(key.encode()).digest()[0] >= 128}
    assert set(found[children[1]]) == upper


async def test_malformed_aggregates_and_all_of_them_on_request_come_whole() -> None:
    """A record that begins like an aggregate and is none is given as it is."""
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("s")
    damaged, sound = aggregate(["a"])[:-1] + b"!", aggregate(["b", "c"])
    upto = [put(kinesis, shard, data) for data in (damaged, sound)][-1]
    whole = ShardRange("s", shard, ShardPosition.trim_horizon(), ShardPosition.after(str(upto)))
    async with LocalShardReader(kinesis) as reader:
        assert [data for *_, data in await rows(reader, [whole])] == [damaged, b"b", b"c"]
    for config in (ReaderConfig(deaggregate=False), ReaderConfig(publisher=RecordPublisherConfig(deaggregate=False))):
        async with LocalShardReader(kinesis, config) as reader:
            assert [data for *_, data in await rows(reader, [whole])] == [damaged, sound]


async def test_a_stream_that_was_made_anew_has_shards_of_its_own() -> None:
    """A reader outlives a stream: shards of the next one of its name have the same ids, and take other keys."""
    keys = [f"key-{number}" for number in range(40)]
    kinesis = FakeKinesis()
    given: list[list[bytes]] = []
    async with LocalShardReader(kinesis) as reader:
        for count in (4, 1):
            kinesis.shards.clear()
            first, *_ = kinesis.create_stream("s", count)
            upto = put(kinesis, first, aggregate(keys))
            epoch = await reader.open(OpenRequest(session_id="q", positions=kinesis.trim_horizon("s")))
            whole = ShardRange("s", first, ShardPosition.trim_horizon(), ShardPosition.after(str(upto)))
            given.append([data for *_, data in await rows(reader, [whole])])
            await reader.close_session("q", epoch)
    assert 0 < len(given[0]) < len(keys)
    assert given[1] == [key.encode() for key in keys]


class LateList(FakeKinesis):
    """A stream that was split, and whose children ListShards shows only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = 0
        (parent,) = self.create_stream("s")
        self.children = self.reshard("s", [parent], 2)
        self.keys = [f"key-{number}" for number in range(40)]
        data = aggregate(self.keys)
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
    """Nobody here saw the parent's end: the list is asked again, by one for all, and holds up no other stream."""

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


def test_a_shard_that_expired_gives_user_records_of_others_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can tell its keys any more, so nothing is left out, and nobody waits for a list that shows it."""

    async def scenario() -> None:
        kinesis = LateList()
        kinesis.pass_day()
        async with LocalShardReader(kinesis) as reader:
            for one in kinesis.ranges * 2:
                assert await data_of(reader, one) == [key.encode() for key in kinesis.keys]
            # What came later is of a shard that has not expired.
            child = kinesis.children[0]
            upto = ShardPosition.after(str(put(kinesis, child, aggregate(kinesis.keys))))
            kinesis.show(is_listed=True)
            later = await data_of(reader, ShardRange("s", child, kinesis.ranges[0].upto, upto))
            assert 0 < len(later) < len(kinesis.keys)

    in_skipped_time(scenario)
    words = "its aggregates are taken apart with user records of other shards left in"
    assert [record.message for record in caplog.records if words in record.message] == [
        f"s/shardId-00000000000{number} is not listed any more: {words}" for number in (1, 2)
    ]
