from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

MIB = 1024 * 1024


def sequence_numbers(answer: dict[str, Any]) -> list[str]:
    return [record["SequenceNumber"] for record in answer["Records"]]


def test_records_go_to_the_shard_whose_range_holds_the_md5_of_their_key(world: Any) -> None:
    """A partition key is hashed with MD5 to a 128-bit number, which one shard's range holds."""
    world.stream(shards=4)
    ranges = {
        shard["ShardId"]: range(int(keys["StartingHashKey"]), int(keys["EndingHashKey"]) + 1)
        for shard in world.client.list_shards(StreamName="stream")["Shards"]
        for keys in [shard["HashKeyRange"]]
    }
    keys = [f"key-{number}" for number in range(50)]
    for key, result in zip(keys, world.put(*keys), strict=True):
        assert int(hashlib.md5(key.encode()).hexdigest(), 16) in ranges[result["ShardId"]]


def test_an_explicit_hash_key_overrides_the_partition_key(world: Any) -> None:
    """ExplicitHashKey decides the shard, whatever the partition key hashes to."""
    world.stream(shards=2)
    shards = [
        world.client.put_record(StreamName="stream", Data=b"", PartitionKey="same", ExplicitHashKey=str(key))["ShardId"]
        for key in (0, 2**128 - 1)
    ]
    assert shards == ["shardId-000000000000", "shardId-000000000001"]
    refusal = world.refused(
        lambda: world.client.put_record(StreamName="stream", Data=b"", PartitionKey="k", ExplicitHashKey=str(2**128))
    )
    assert refusal[0] == "InvalidArgumentException"


def test_sequence_numbers_increase_strictly_under_concurrent_puts(world: Any) -> None:
    """Many writers at once get distinct sequence numbers, and the shard's order follows the numbers."""
    world.start(enforce_limits=False).stream()
    clients = [world.emulator.client() for _ in range(4)]

    def write(number: int) -> list[int]:
        answer = clients[number % 4].put_records(
            StreamName="stream", Records=[{"Data": b"%d" % number, "PartitionKey": "k"}] * 10
        )
        return [int(result["SequenceNumber"]) for result in answer["Records"]]

    with ThreadPoolExecutor(4) as pool:
        written = [number for numbers in pool.map(write, range(40)) for number in numbers]
    read = [int(number) for number in sequence_numbers(world.read())]
    assert len(set(written)) == 400
    assert read == sorted(written)


def test_arrival_times_never_go_back_within_a_shard(world: Any) -> None:
    """ApproximateArrivalTimestamp follows the clock and the order of the shard."""
    world.stream()
    for key in "abc":
        world.put(key)
        world.clock.advance(0.25)
    times = [record["ApproximateArrivalTimestamp"] for record in world.read()["Records"]]
    assert [(later - times[0]).total_seconds() for later in times] == [0, 0.25, 0.5]


def test_sequence_number_iterators_start_at_or_after_the_record(world: Any) -> None:
    """AT_SEQUENCE_NUMBER includes the record, AFTER_SEQUENCE_NUMBER does not."""
    world.stream()
    numbers = [result["SequenceNumber"] for result in world.put("a", "b", "c")]
    at = world.read(kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1])
    after = world.read(kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1])
    assert (sequence_numbers(at), sequence_numbers(after)) == (numbers[1:], numbers[2:])


def test_a_timestamp_iterator_starts_at_the_first_record_that_is_not_older(world: Any) -> None:
    """AT_TIMESTAMP finds the exact or the next later record; before all records it means TRIM_HORIZON."""
    world.stream()
    start = world.clock.time()
    for key in "abc":
        world.put(key)
        world.clock.advance(1)

    def read(seconds: float) -> list[bytes]:
        time = datetime.fromtimestamp(start + seconds, UTC)
        return [record["Data"] for record in world.read(kind="AT_TIMESTAMP", Timestamp=time)["Records"]]

    assert [read(-3600), read(1), read(1.001), read(3)] == [[b"a", b"b", b"c"], [b"b", b"c"], [b"c"], []]


@pytest.mark.parametrize(
    ("kind", "position"),
    [
        ("AT_SEQUENCE_NUMBER", {}),
        ("AFTER_SEQUENCE_NUMBER", {}),
        ("AT_TIMESTAMP", {}),
        ("LATEST", {"StartingSequenceNumber": "1"}),
        ("AT_SEQUENCE_NUMBER", {"StartingSequenceNumber": "1"}),
        ("AT_TIMESTAMP", {"Timestamp": datetime(2100, 1, 1, tzinfo=UTC)}),
    ],
)
def test_an_iterator_refuses_positions_that_make_no_sense(world: Any, kind: str, position: dict[str, Any]) -> None:
    """What a type needs has to be there, what it cannot use must not, and it has to be of this shard."""
    world.stream()
    assert world.refused(lambda: world.iterator(kind=kind, **position))[0] == "InvalidArgumentException"


def test_a_sequence_number_of_another_shard_is_refused(world: Any) -> None:
    """A position cannot be carried from one shard to another."""
    world.stream(shards=2)
    result = world.put("key")[0]
    other = next(shard for shard in world.shards() if shard != result["ShardId"])
    refusal = world.refused(
        lambda: world.iterator(other, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=result["SequenceNumber"])
    )
    assert refusal[0] == "InvalidArgumentException"


def test_an_iterator_expires_after_five_minutes(world: Any) -> None:
    """An iterator can be used for five minutes, then it is an ExpiredIteratorException."""
    world.stream()
    iterator = world.iterator()
    world.clock.advance(timedelta(minutes=5))
    world.client.get_records(ShardIterator=iterator)
    world.clock.advance(1)
    code, message = world.refused(lambda: world.client.get_records(ShardIterator=iterator))
    assert code == "ExpiredIteratorException"
    assert "300000 milliseconds" in message


def test_reading_goes_on_with_the_next_iterator(world: Any) -> None:
    """Limit cuts an answer; the next iterator continues after it, and stays usable at the tip."""
    world.stream()
    world.put("a", "b", "c")
    iterator, batches = world.iterator(), []
    for _ in range(3):
        answer = world.client.get_records(ShardIterator=iterator, Limit=2)
        batches.append([record["Data"] for record in answer["Records"]])
        iterator = answer["NextShardIterator"]
    world.put("d")
    assert batches == [[b"a", b"b"], [b"c"], []]
    assert [r["Data"] for r in world.client.get_records(ShardIterator=iterator)["Records"]] == [b"d"]


def test_millis_behind_latest_is_the_age_of_the_next_unread_record(world: Any) -> None:
    """The lag is the age of the first record that was not given; nothing unread means 0."""
    world.stream()
    for key in "ab":
        world.put(key)
        world.clock.advance(2)
    iterator = world.iterator()
    answer = world.client.get_records(ShardIterator=iterator, Limit=1)
    assert answer["MillisBehindLatest"] == 2000
    assert world.client.get_records(ShardIterator=answer["NextShardIterator"])["MillisBehindLatest"] == 0


def test_writes_over_a_thousand_records_a_second_fail_record_by_record(world: Any) -> None:
    """Beyond 1,000 records/s a shard refuses single records with an ErrorCode; it recovers as time passes."""
    world.stream()
    keys = [str(number) for number in range(500)]
    assert not any("ErrorCode" in result for result in world.put(*keys) + world.put(*keys))
    refused = world.put("late")[0]
    assert refused["ErrorCode"] == "ProvisionedThroughputExceededException"
    assert refused["ErrorMessage"] == (
        "Rate exceeded for shard shardId-000000000000 in stream stream under account 000000000000."
    )
    world.clock.advance(0.1)
    results = world.put(*keys)
    assert sum("ErrorCode" not in result for result in results) == 100
    assert len(world.core.streams["stream"].shards[0].records) == 1100


def test_get_records_allows_five_calls_a_second_and_shard(world: Any) -> None:
    """The sixth call within a second is throttled, for all readers of the shard together."""
    world.stream(shards=2)
    iterators = [world.iterator(), world.iterator(kind="LATEST")]
    for number in range(5):
        world.client.get_records(ShardIterator=iterators[number % 2])
    refusal = world.refused(lambda: world.client.get_records(ShardIterator=iterators[0]))
    assert refusal[0] == "ProvisionedThroughputExceededException"
    world.read("shardId-000000000001")
    world.clock.advance(0.2)
    world.client.get_records(ShardIterator=iterators[0])


def test_get_records_gives_two_mebibytes_a_second_and_shard(world: Any) -> None:
    """A large answer leaves a debt: 6 MiB silence the shard for the two seconds after the first."""
    world.start(shard_write_bytes_per_second=100 * MIB).stream()
    for key in "abcdef":
        world.put(key, data=b"x" * (MIB - 1))
    assert len(world.read()["Records"]) == 6
    world.clock.advance(1.9)
    assert world.refused(world.read)[0] == "ProvisionedThroughputExceededException"
    world.clock.advance(0.2)
    assert len(world.read()["Records"]) == 6


def test_a_record_is_limited_with_its_key(world: Any) -> None:
    """Data and partition key together may have 1 MiB."""
    world.start(enforce_limits=False).stream()
    world.put("k" * 24, data=b"x" * (MIB - 24))
    assert world.refused(lambda: world.put("k" * 24, data=b"x" * (MIB - 23)))[0] == "ValidationException"
    world.client.create_stream(StreamName="large", ShardCount=1, MaxRecordSizeInKiB=2048)
    world.put("k", stream="large", data=b"x" * (2 * MIB - 1))


def test_a_put_records_request_is_limited_in_records_and_bytes(world: Any) -> None:
    """500 records and 10 MiB are the most that a request may carry; a request beyond it writes nothing."""
    world.start(enforce_limits=False).stream()
    world.put(*["k"] * 500)
    assert world.refused(lambda: world.put(*["k"] * 501))[0] == "ValidationException"
    refusal = world.refused(lambda: world.put(*["k"] * 11, data=b"x" * (MIB - 1)))
    assert refusal[0] == "InvalidArgumentException"
    assert len(world.core.streams["stream"].shards[0].records) == 500
