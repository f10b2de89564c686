import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer import DataLossError, ShardPosition, StreamPositions
from penstock.emulator.testing import ManualClock, RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._reading.bounded.bounds import Bounds
from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
from penstock.spark_plugin.errors import OptionError
from penstock.spark_plugin.testing import endpoint_options

HOUR = 3600.0
SHARDS = ("shardId-000000000000", "shardId-000000000001")
Keys = list[tuple[str, str]]


def partitions(options: dict[str, str], clock: ManualClock | None = None) -> list[Keys]:
    """Shard and sequence number of the rows of each partition.

    With a clock the tasks run some time after they were planned: none waits until it sees its shards as they were then.
    """
    reader = KinesisBatchReader(KinesisOptions.parse(options))
    planned = reader.partitions()
    if clock is not None:
        clock.advance(5)
    found = []
    for partition in planned:
        rows: Keys = []
        for batch in reader.read(partition):
            columns = (batch.column(name).to_pylist() for name in ("shardId", "sequenceNumber"))
            rows += list(zip(*columns, strict=True))
        found.append(rows)
    return found


class Day:
    """A stream over a day of a moved clock."""

    def __init__(self, emulator: RunningEmulator, clock: ManualClock) -> None:
        self.clock = clock
        self.client = emulator.client()
        self.client.create_stream(StreamName="flights", ShardCount=2)
        self.endpoint_url = emulator.endpoint_url
        self.put_keys: dict[tuple[str, str], float] = {}
        """When each record was put."""

    def put(self, count: int) -> None:
        """Put records, a second apart."""
        for number in range(count):
            key = f"{len(self.put_keys)} {number}"
            answer = self.client.put_record(StreamName="flights", Data=b"x", PartitionKey=key)
            self.put_keys[answer["ShardId"], answer["SequenceNumber"]] = self.clock.time()
            self.clock.advance(1)

    def options(self, **options: str) -> dict[str, str]:
        return endpoint_options(self.endpoint_url, "flights", **options)

    def partitions(self, options: dict[str, str]) -> list[Keys]:
        """Shard and sequence number of the rows of each partition."""
        return partitions(options, self.clock)

    def keys(self, options: dict[str, str]) -> Keys:
        """Shard and sequence number of all rows."""
        return sorted(row for rows in self.partitions(options) for row in rows)

    def between(self, begin: float, end: float) -> Keys:
        """Keys of the records that were put from a time on and before another."""
        return sorted(key for key, at in self.put_keys.items() if begin <= at < end)


@pytest.fixture
def day() -> Iterator[Day]:
    clock = ManualClock(float(int(time.time() - 48 * HOUR)))
    with running_emulator(clock=clock, enforce_limits=False) as emulator:
        yield Day(emulator, clock)


def test_times_bound_a_read_over_a_reshard(day: Day) -> None:
    """From a time to a time, through a split and a merge between them; each part of the day comes once."""
    cuts = [day.clock.time()]
    day.put(10)
    day.clock.advance(HOUR)
    cuts.append(day.clock.time())
    day.put(10)
    day.client.split_shard(StreamName="flights", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126))
    day.put(10)
    day.client.merge_shards(
        StreamName="flights", ShardToMerge="shardId-000000000002", AdjacentShardToMerge="shardId-000000000003"
    )
    day.put(10)
    day.clock.advance(HOUR)
    cuts.append(day.clock.time())
    day.put(10)
    day.clock.advance(1)
    cuts.append(day.clock.time())
    for begin, end in pairwise(cuts):
        options = day.options(startingPosition=f"AT_TIMESTAMP {begin:.3f}", endingPosition=f"{end:.3f}")
        assert day.keys(options) == day.between(begin, end)
    assert day.keys(day.options()) == sorted(day.put_keys)
    assert day.keys(day.options(startingPosition="TRIM_HORIZON", endingPosition="LATEST")) == sorted(day.put_keys)
    assert day.keys(day.options(startingPosition=f"{cuts[2]:.3f}")) == day.between(cuts[2], cuts[3])


def test_nonsense_is_refused_before_anything_is_read(day: Day) -> None:
    """A read that ends before it begins is an error with both options, in times and in sequence numbers."""
    day.put(10)
    begin = day.clock.time()
    day.clock.advance(60)
    for options in (
        day.options(startingPosition=f"{begin:.3f}", endingPosition=f"{begin - 1:.3f}"),
        day.options(startingPosition="LATEST", endingPosition=f"{begin:.3f}"),
        day.options(startingPosition=f"{time.time() + HOUR:.3f}"),
    ):
        with pytest.raises(OptionError, match=r"CONTRADICTORY_OPTIONS.*before it begins") as caught:
            day.partitions(options)
        assert (caught.value.option, caught.value.facts["other"]) == ("startingPosition", "endingPosition"), (
            "as they were written"
        )
    shard = next(iter(day.put_keys))[0]
    first, *_, last = (number for one, number in day.put_keys if one == shard)
    backwards = day.options(startingPosition=json.dumps({shard: last}), endingPosition=json.dumps({shard: first}))
    with pytest.raises(OptionError, match=r"CONTRADICTORY_OPTIONS.*before it begins"):
        day.partitions(backwards)
    assert (
        day.keys(day.options(startingPosition=json.dumps({shard: last}), endingPosition=json.dumps({shard: last})))
        == []
    )
    assert day.partitions(day.options(startingPosition="LATEST")) in ([], [[]])


def test_a_shard_of_which_a_query_has_read_nothing_ends_a_read_at_its_time(day: Day) -> None:
    """Beside others, which end after their last record, at their end, and before their oldest record."""
    day.put(10)
    begin = day.clock.time()
    day.put(10)
    day.client.split_shard(StreamName="flights", ShardToSplit=SHARDS[0], NewStartingHashKey=str(2**126))
    day.put(10)
    *_, last = (number for shard, number in day.put_keys if shard == "shardId-000000000003")
    positions = {
        SHARDS[0]: ShardPosition.shard_end(),
        SHARDS[1]: ShardPosition.at_timestamp(round(begin * 1000)),
        "shardId-000000000002": ShardPosition.trim_horizon(),
        "shardId-000000000003": ShardPosition.after(last),
    }
    offset = json.dumps(StreamPositions({"flights": positions}).to_json())
    wanted = sorted(
        key
        for key, at in day.put_keys.items()
        if key[0] in (SHARDS[0], "shardId-000000000003") or (key[0] == SHARDS[1] and at < begin)
    )
    assert day.keys(day.options(startingPosition="TRIM_HORIZON", endingPosition=offset)) == wanted


def test_shards_that_have_expired_are_a_loss(day: Day, caplog: pytest.LogCaptureFixture) -> None:
    """Their records are gone: without them a read that begins among them fails, or says what it skips."""
    day.put(10)
    first = next(key for key in day.put_keys if key[0] == "shardId-000000000000")
    day.client.split_shard(StreamName="flights", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126))
    day.clock.advance(30 * HOUR)
    day.put(10)
    left = day.between(day.clock.time() - 20, day.clock.time())
    assert day.keys(day.options()) == left
    begin = json.dumps({first[0]: first[1]})
    with pytest.raises(DataLossError, match=f"flights/{first[0]}.*failOnDataLoss"):
        day.partitions(day.options(startingPosition=begin))
    assert day.keys(day.options(startingPosition=begin, failOnDataLoss="false")) == left
    assert "does not list the shard" in caplog.text


@pytest.mark.parametrize("count", [1, 3, 8])
def test_shards_are_divided_among_more_partitions(day: Day, count: int) -> None:
    """`minPartitions` gives as many, each a time of its shard: every row comes once, in its shard's order."""
    day.clock.advance(24 * HOUR - 120)
    for _ in range(12):
        day.put(5)
        day.clock.advance(2 * HOUR)
    end = day.clock.time()
    wanted = day.between(end - 24 * HOUR, end)
    options = day.options(startingPosition=f"{end - 24 * HOUR:.3f}", endingPosition=f"{end:.3f}")
    found = day.partitions(options | {"minPartitions": str(count)})
    assert len(found) >= count
    assert sorted(row for rows in found for row in rows) == wanted
    if count > 3:
        assert sum(bool(rows) for rows in found) >= count - 1
    for rows in found:
        for shard in {shard for shard, _ in rows}:
            numbers = [int(number) for one, number in rows if one == shard]
            assert numbers == sorted(numbers)
    for shard in {shard for shard, _ in wanted}:
        numbers = [int(number) for rows in found for one, number in rows if one == shard]
        assert numbers == sorted(numbers), "from one partition to the next"


@pytest.mark.parametrize("count", [1, 4, 8])
def test_shards_that_end_after_a_sequence_number_are_divided(day: Day, count: int) -> None:
    """A part ends where its time does or its shard: every row comes once, and none from beyond the shard's end."""
    begins = []
    for _ in range(10):
        begins.append(day.clock.time())
        day.put(5)
        day.clock.advance(2 * HOUR)
    # A part ends among the records of a burst.
    day.clock.advance(begins[5] + 2.5 + 12 * HOUR - day.clock.time())
    ends = {
        shard: max(int(number) for one, number in day.between(0, begins[8] + 3) if one == shard) for shard in SHARDS
    }
    ending = json.dumps({shard: str(number) for shard, number in ends.items()})
    options = day.options(startingPosition="TRIM_HORIZON", endingPosition=ending, minPartitions=str(count))
    assert day.keys(options) == sorted(key for key in day.put_keys if int(key[1]) <= ends[key[0]])


def test_contradictory_numbers_of_partitions_are_refused() -> None:
    """At least four and at most two cannot be."""
    with pytest.raises(OptionError) as caught:
        KinesisOptions.parse({"streamName": "s", "minPartitions": "4", "maxPartitions": "2"})
    assert caught.value.code == "CONTRADICTORY_OPTIONS"
    assert (caught.value.option, caught.value.facts["other"]) == ("minPartitions", "maxPartitions")


@given(st.integers(min_value=0, max_value=4 * 10**15))
def test_reads_that_meet_at_a_time_share_no_millisecond(micros: int) -> None:
    """A read that ends at a time and one that begins there have each whole millisecond on one side."""
    moment = (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)).isoformat()
    session = AwsSession(AwsOptions(region="us-east-1"))

    def bounds(begin: str) -> Bounds:
        options = {"streamName": "s", "startingPosition": begin, "endingPosition": moment}
        return Bounds.resolve(session, KinesisOptions.parse(options, environ={}), 2**52)

    assert bounds("TRIM_HORIZON").before_micros == micros
    assert bounds(moment).after["s"].timestamp_millis == -(-micros // 1000)
