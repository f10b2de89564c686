"""Faults over real sockets: each hits what it names, as often as it says."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from penstock.emulator import EmulatorConfigError, Fault, FaultPlan


def names(world: Any) -> list[str]:
    found: list[str] = world.client.list_streams()["StreamNames"]
    return found


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("put_record", "ProvisionedThroughputExceededException"),
        ("put_records", "ProvisionedThroughputExceededException"),
        ("get_records", "ProvisionedThroughputExceededException"),
        ("get_shard_iterator", "ProvisionedThroughputExceededException"),
        ("describe_stream_summary", "LimitExceededException"),
        ("register_stream_consumer", "LimitExceededException"),
        ("subscribe_to_shard", "LimitExceededException"),
    ],
)
def test_a_throttled_operation_has_the_error_that_it_has_in_aws(world: Any, operation: str, code: str) -> None:
    """Operations on records exceed a throughput, all others a limit; what the request says does not matter."""
    world.emulator.faults.add("throttle")
    assert world.refused(lambda: getattr(world.client, operation)())[0] == code


def test_a_fault_hits_what_it_names_and_nothing_else(world: Any) -> None:
    """Operation, stream, shard (by name, iterator or hash key) and consumer (by name or ARN) select calls."""
    world.stream("one", shards=2)
    world.stream("two")
    arn = world.register("reader", stream="one")
    other = world.register("other", stream="one")
    faults = world.emulator.faults
    second = "shardId-000000000001"

    def hit(call: Any, **where: Any) -> bool:
        faults.clear()
        fault_id = faults.add("error", code="Hit", **where)
        with contextlib.suppress(world.client.exceptions.ClientError):
            call()
        (fault,) = faults.list()
        assert fault["id"] == fault_id
        return bool(fault["hits"])

    def summary(stream: str) -> Any:
        return lambda: world.client.describe_stream_summary(StreamName=stream)

    def consumer(**which: Any) -> Any:
        return lambda: world.client.describe_stream_consumer(**which)

    stream_arn = arn.partition("/consumer/")[0]
    assert hit(summary("one"), stream="one")
    assert not hit(summary("two"), stream="one")
    assert hit(summary("two"), operation="DescribeStreamSummary")
    assert not hit(summary("two"), operation="ListStreams")
    assert hit(lambda: world.client.describe_stream_summary(StreamARN=stream_arn), stream="one")
    assert hit(consumer(ConsumerARN=arn), consumer="reader")
    assert hit(consumer(ConsumerARN=arn), consumer=arn, stream="one")
    assert hit(consumer(StreamARN=stream_arn, ConsumerName="reader"), consumer=arn)
    assert not hit(consumer(ConsumerARN=other), consumer="reader")
    assert not hit(consumer(ConsumerARN=other), consumer=arn)
    faults.clear()
    first_iterator, second_iterator = (world.iterator(shard, stream="one") for shard in (world.first, second))
    assert hit(lambda: world.client.get_records(ShardIterator=second_iterator), shard=second)
    assert not hit(lambda: world.client.get_records(ShardIterator=first_iterator), shard=second)

    def put(key: int) -> Any:
        return lambda: world.client.put_record(StreamName="one", Data=b"", PartitionKey="k", ExplicitHashKey=str(key))

    assert hit(put(2**127), shard=second)
    assert not hit(put(2**127 - 1), shard=second)


def test_a_fault_lets_some_calls_through_and_wears_out(world: Any) -> None:
    """After `skip` calls, `count` calls are hit; then the fault does nothing any more."""
    world.emulator.faults.add("throttle", operation="ListStreams", skip=2, count=3)
    outcomes = []
    for _ in range(7):
        try:
            names(world)
            outcomes.append("ok")
        except world.client.exceptions.ClientError:
            outcomes.append("hit")
    assert outcomes == ["ok", "ok", "hit", "hit", "hit", "ok", "ok"]
    (fault,) = world.emulator.faults.list()
    assert (fault["seen"], fault["hits"]) == (5, 3)


def test_the_same_seed_fails_in_the_same_places(world: Any) -> None:
    """Chance is drawn from the seed, per fault: it can be replayed, also after the faults were cleared."""

    def hits(*, disturb: bool = False) -> list[bool]:
        world.emulator.faults.add("throttle", operation="DescribeStreamSummary", probability=0.5)
        outcomes = []
        for _ in range(30):
            if disturb:
                names(world)
            code = world.refused(lambda: world.client.describe_stream_summary(StreamName="absent"))[0]
            outcomes.append(code == "LimitExceededException")
        world.emulator.faults.clear()
        return outcomes

    world.start(seed=7, enforce_limits=False)
    first = hits()
    assert 5 < sum(first) < 25
    assert hits() == first
    world.start(seed=7, enforce_limits=False)
    assert hits(disturb=True) == first
    world.start(seed=8, enforce_limits=False)
    assert hits() != first


def test_faults_are_taken_back(world: Any) -> None:
    """One by its id, or all; what is gone hits nothing."""
    faults = world.emulator.faults
    first = faults.add(Fault(kind="throttle", operation="ListStreams"))
    second = faults.add("error", code="Second", operation="ListStreams")
    assert [fault["id"] for fault in faults.list()] == [first, second]
    assert world.refused(lambda: names(world))[0] == "LimitExceededException"
    assert faults.clear(first)
    assert world.refused(lambda: names(world))[0] == "Second"
    assert not faults.clear(first)
    assert faults.clear()
    assert names(world) == []


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"kind": "sabotage"}, "kind"),
        ({"kind": "error"}, "code"),
        ({"kind": "delay"}, "seconds"),
        ({"kind": "drip"}, "bytes_per_second"),
        ({"kind": "throttle", "probability": 0}, "probability"),
        ({"kind": "throttle", "skip": -1}, "skip"),
        ({"kind": "throttle", "count": 0}, "count"),
        ({"kind": "reset", "scope": "planet"}, "scope"),
        ({"kind": "fail_records"}, "share"),
        ({"kind": "fail_records", "share": 0.5, "indices": [1]}, "share"),
        ({"kind": "fail_records", "share": 2}, "share"),
        ({"kind": "fail_records", "share": 0.5, "operation": "PutRecord"}, "operation"),
        ({"kind": "corrupt_crc", "operation": "PutRecords"}, "operation"),
        ({"kind": "throttle", "severity": 11}, "severity"),
        ({"kind": "throttle", "probability": "often"}, "fault"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(options: dict[str, Any], option: str) -> None:
    """The error names the field."""
    with pytest.raises(EmulatorConfigError) as caught:
        FaultPlan(0).add(**options)
    assert caught.value.option == option


def test_chosen_records_of_a_request_fail(world: Any) -> None:
    """The records at the indices have an ErrorCode, and are not written; the others are."""
    world.stream()
    world.emulator.faults.add("fail_records", indices=(0, 2, 9), count=1)
    results = world.put("a", "b", "c", "d")
    assert [result.get("ErrorCode") for result in results] == ["InternalFailure", None, "InternalFailure", None]
    assert [record["Data"] for record in world.read()["Records"]] == [b"b", b"d"]
    assert not any("ErrorCode" in result for result in world.put("a", "b", "c"))
