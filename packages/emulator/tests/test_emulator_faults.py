"""Faults over real sockets: each kind does what it says, where it says, as often as it says."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import time
import zlib
from typing import Any

import h2.errors
import h2.events
import pytest
from botocore.config import Config
from botocore.eventstream import ChecksumMismatch
from botocore.exceptions import ConnectionClosedError, EventStreamError, ReadTimeoutError, ResponseStreamingError
from urllib3.exceptions import ProtocolError

from penstock.emulator import EmulatorConfigError, Fault, FaultPlan

IMPATIENT = Config(parameter_validation=False, retries={"total_max_attempts": 1}, read_timeout=0.3)


def names(world: Any) -> list[str]:
    return world.client.list_streams()["StreamNames"]


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


@pytest.mark.parametrize(
    ("code", "status"),
    [("InternalFailure", 500), ("ServiceUnavailable", 503), ("KMSThrottlingException", 400), ("Teapot", 418)],
)
def test_any_error_can_be_had(world: Any, code: str, status: int) -> None:
    """An error has the code, the text and the status that were asked for, or the status of its code."""
    world.emulator.faults.add("error", code=code, message="as you wish", status=status if code == "Teapot" else None)
    with pytest.raises(world.client.exceptions.ClientError) as caught:
        world.client.list_streams()
    answer = caught.value.response
    assert (answer["Error"]["Code"], answer["Error"]["Message"]) == (code, "as you wish")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == status


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


# Records


def test_chosen_records_of_a_request_fail(world: Any) -> None:
    """The records at the indices have an ErrorCode, and are not written; the others are."""
    world.stream()
    world.emulator.faults.add("fail_records", indices=(0, 2, 9), count=1)
    results = world.put("a", "b", "c", "d")
    assert [result.get("ErrorCode") for result in results] == ["InternalFailure", None, "InternalFailure", None]
    assert [record["Data"] for record in world.read()["Records"]] == [b"b", b"d"]
    assert not any("ErrorCode" in result for result in world.put("a", "b", "c"))


def test_a_share_of_the_records_for_a_shard_fails(world: Any) -> None:
    """Each record for the shard fails with the probability and the code that were asked for."""
    world.stream(shards=2)
    throttled = "ProvisionedThroughputExceededException"
    world.emulator.faults.add("fail_records", share=0.5, shard=world.first, code=throttled, message="too fast")
    keys = [str(number) for number in range(200)]
    answer = world.client.put_records(StreamName="stream", Records=[{"Data": b"", "PartitionKey": key} for key in keys])
    failed = [result for result in answer["Records"] if "ErrorCode" in result]
    assert answer["FailedRecordCount"] == len(failed)
    assert {(result["ErrorCode"], result["ErrorMessage"]) for result in failed} == {(throttled, "too fast")}
    assert 20 < len(failed) < 80
    kept = [result["ShardId"] for result in answer["Records"] if "ErrorCode" not in result]
    assert 80 < kept.count("shardId-000000000001") < 120


# Answers that are late, or never come


def test_a_delay_is_as_long_as_the_clock_says(world: Any) -> None:
    """The operation is carried out at once; its answer waits until the clock was moved on."""
    world.emulator.faults.add("delay", seconds=30, operation="CreateStream")
    caller = threading.Thread(target=lambda: world.client.create_stream(StreamName="late", ShardCount=1))
    caller.start()
    world.until(lambda: names(world) == ["late"])
    world.clock.advance(29)
    caller.join(0.2)
    assert caller.is_alive()
    world.clock.advance(1)
    caller.join(20)
    assert not caller.is_alive()


@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize("kind", ["reset", "silence"])
def test_an_answer_can_be_lost_after_or_before_the_operation(world: Any, kind: str, applies: bool) -> None:
    """The caller hears nothing; whether the stream is there depends on `applies`."""
    world.emulator.faults.add(kind, operation="CreateStream", applies=applies)
    client = world.emulator.client(config=IMPATIENT)
    with pytest.raises(ReadTimeoutError if kind == "silence" else (ConnectionClosedError, ResponseStreamingError)):
        client.create_stream(StreamName="stream", ShardCount=1)
    assert names(world) == (["stream"] if applies else [])


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_is_reset_in_the_middle_of_an_answer(world: Any, tls: bool) -> None:
    """Half of the answer's bytes arrive, then nothing more; the next connection works."""
    world.stream()
    world.put("a", data=b"x" * 100_000)
    iterator = world.iterator()
    world.emulator.faults.add("reset", operation="GetRecords", count=1)
    # Not botocore: over TLS it takes an answer that was cut off for one without records.
    host, port = world.emulator.endpoint_url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    if tls:
        port = world.emulator.tls_endpoint_url.rpartition(":")[2]
        context = ssl.create_default_context(cafile=str(world.emulator.ca_file))
        connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
    headers = {"X-Amz-Target": "Kinesis_20131202.GetRecords"}
    connection.request("POST", "/", json.dumps({"ShardIterator": iterator}), headers)
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        connection.getresponse().read()
    assert len(world.client.get_records(ShardIterator=iterator)["Records"]) == 1


def test_an_answer_can_drip(world: Any) -> None:
    """The bytes come at the rate that was asked for, and are right."""
    world.emulator.faults.add("drip", bytes_per_second=100, operation="ListStreams")
    answer: list[Any] = []
    caller = threading.Thread(target=lambda: answer.append(names(world)))
    caller.start()
    world.clock.advance(1)
    caller.join(0.3)
    assert caller.is_alive()

    def arrived() -> bool:
        world.clock.advance(0.1)
        return not caller.is_alive()

    world.until(arrived)
    assert answer == [[]]


# Event streams


@pytest.mark.parametrize("code", ["InternalFailureException", "KMSThrottlingException", "ResourceInUseException"])
def test_an_exception_inside_the_event_stream_ends_it(world: Any, code: str) -> None:
    """The event after the skipped ones becomes an exception; nothing is lost for who continues after the last one."""
    world.stream()
    world.put("a")
    world.emulator.faults.add("stream_error", code=code, skip=1)
    subscriber = world.subscribe()
    last = subscriber.next()["ContinuationSequenceNumber"]
    world.put("b")
    with pytest.raises(EventStreamError, match=code):
        subscriber.next()
    world.emulator.faults.clear()
    again = world.subscribe(kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=last)
    assert again.data(1) == [b"b"]


def test_a_fault_may_come_while_the_subscription_is_under_way(world: Any) -> None:
    """What is added now hits the next event of the consumer and shard that it names, and no other's."""
    world.stream()
    hit, spared = world.register("hit"), world.register("spared")
    subscribers = [world.subscribe(consumer=consumer) for consumer in (hit, spared)]
    world.put("a")
    assert [subscriber.data(1) for subscriber in subscribers] == [[b"a"], [b"a"]]
    world.emulator.faults.add("stream_error", consumer="hit", shard=world.first, stream="stream")
    world.put("b")
    assert subscribers[1].data(1) == [b"b"]
    with pytest.raises(EventStreamError, match="InternalFailureException"):
        subscribers[0].next()


def test_a_corrupt_checksum_is_noticed(world: Any) -> None:
    """The CRC of one event is wrong; its length is right."""
    world.stream()
    world.put("a")
    world.emulator.faults.add("corrupt_crc", count=1)
    with pytest.raises(ChecksumMismatch):
        world.subscribe().next()


def test_a_silent_subscription_stays_open(world: Any) -> None:
    """No event comes any more, not even an idle one, and no end."""
    world.stream()
    world.put("a")
    subscriber = world.subscribe()
    subscriber.data(1)
    world.emulator.faults.add("silence", operation="SubscribeToShard")
    world.put("b")
    world.clock.advance(30)
    assert subscriber.is_silent(0.3)


def test_a_silent_subscription_is_cut_when_its_life_is_over(world: Any) -> None:
    """Five minutes after the call the connection goes, without an orderly end of the stream."""
    world.stream()
    world.put("a")
    world.emulator.faults.add("silence", operation="SubscribeToShard")
    subscriber = world.subscribe()
    world.clock.advance(299)
    assert subscriber.is_silent(0.2)
    world.clock.advance(1)
    with pytest.raises(ProtocolError):
        subscriber.next()


def test_a_subscription_can_be_late(world: Any) -> None:
    """A delay of SubscribeToShard holds back the answer; the five minutes have begun with the call."""
    world.stream()
    world.put("a")
    world.emulator.faults.add("delay", seconds=60, operation="SubscribeToShard")
    consumer = world.register()
    opened: list[Any] = []
    caller = threading.Thread(target=lambda: opened.append(world.subscribe(consumer=consumer)))
    caller.start()
    world.until(lambda: world.emulator.faults.list()[0]["hits"] == 1)
    caller.join(0.2)
    assert caller.is_alive()
    world.clock.advance(60)
    caller.join(20)
    assert opened[0].data(1) == [b"a"]
    world.clock.advance(240)
    assert opened[0].next() == opened[0].END


@pytest.mark.parametrize("tls", [False, True])
def test_a_subscription_is_reset_in_the_middle_of_a_frame(world: Any, tls: bool) -> None:
    """Half of the event arrives, then a reset, which the reader sees as an error and not as the end."""
    world.stream()
    world.put("a", data=b"x" * 50_000)
    world.emulator.faults.add("reset", operation="SubscribeToShard")
    if tls:
        world.client = world.tls_client()
    subscriber = world.subscribe()
    with pytest.raises(ProtocolError):
        subscriber.next()


def test_an_event_can_drip(world: Any) -> None:
    """An event that drips arrives whole, but late."""
    world.stream()
    world.put("a")
    world.emulator.faults.add("drip", bytes_per_second=500, operation="SubscribeToShard")
    subscriber = world.subscribe()
    assert subscriber.is_silent(0.3)

    def arrived() -> bool:
        world.clock.advance(0.1)
        return not subscriber.is_silent(0.01)

    world.until(arrived)
    assert subscriber.data(1) == [b"a"]


@pytest.mark.parametrize("scope", ["stream", "connection"])
def test_a_reset_over_http2_takes_the_stream_or_the_connection(world: Any, scope: str) -> None:
    """Scope stream: RST_STREAM, and the connection lives on; scope connection: nothing more comes on it."""
    world.stream()
    world.put("a", data=b"x" * 5000)
    consumer = world.register()
    world.emulator.faults.add("reset", operation="SubscribeToShard", scope=scope)
    body = json.dumps(
        {"ConsumerARN": consumer, "ShardId": world.first, "StartingPosition": {"Type": "TRIM_HORIZON"}}
    ).encode()
    raw_http2 = world.http2()
    stream_id = raw_http2.call("SubscribeToShard", body)
    if scope == "stream":
        reset = raw_http2.until(stream_id, h2.events.StreamReset)
        assert reset.error_code == h2.errors.ErrorCodes.INTERNAL_ERROR
        data = raw_http2.bodies[stream_id]
        # The initial response comes first.
        frame = data[int.from_bytes(data[:4], "big") :]
        assert 0 < len(frame) < int.from_bytes(frame[:4], "big")
        again = raw_http2.call("ListStreams", b"{}")
        raw_http2.until(again, h2.events.StreamEnded)
    else:
        with pytest.raises((ConnectionError, ssl.SSLEOFError)):
            raw_http2.until(stream_id, h2.events.StreamEnded)


@pytest.mark.parametrize(
    "fault",
    [{"kind": "delay", "seconds": 5}, {"kind": "silence", "count": 1}, {"kind": "drip", "bytes_per_second": 500}],
    ids=lambda fault: fault["kind"],
)
def test_a_slow_answer_over_http2_holds_up_no_other(world: Any, fault: dict[str, Any]) -> None:
    """Late, dripping and missing answers concern one stream; others of the connection are served meanwhile."""
    world.emulator.faults.add(**fault, operation="ListStreams")
    raw = world.http2()
    slow = raw.call("ListStreams", b"{}")
    quick = raw.call("DescribeLimits", b"{}")
    raw.until(quick, h2.events.StreamEnded)
    assert raw.bodies[quick]
    assert not raw.bodies.get(slow, b"").endswith(b"}")
    if fault["kind"] != "silence":
        # Drops wait for the clock one after the other.
        for _ in range(60):
            world.clock.advance(0.1)
            raw.until(raw.call("DescribeStream", b"{}"), h2.events.StreamEnded)
        assert json.loads(raw.bodies[slow])["StreamNames"] == []


def test_a_corrupt_checksum_over_http2_leaves_the_connection_alone(world: Any) -> None:
    """The transport is right; only the message inside is not, and the one after it is right again."""
    world.stream()
    consumer = world.register()
    world.emulator.faults.add("corrupt_crc", count=1)
    request = {"ConsumerARN": consumer, "ShardId": world.first, "StartingPosition": {"Type": "LATEST"}}
    raw = world.http2()
    stream_id = raw.call("SubscribeToShard", json.dumps(request).encode())
    raw.until(stream_id, h2.events.DataReceived)
    sizes = []
    for key in ("a", "b"):
        world.put(key)
        raw.until(stream_id, h2.events.DataReceived)
        sizes.append(len(raw.bodies[stream_id]))
    whole = raw.bodies[stream_id]
    first = whole[int.from_bytes(whole[:4], "big") : sizes[0]]
    second = whole[sizes[0] :]
    assert [zlib.crc32(frame[:-4]) == int.from_bytes(frame[-4:], "big") for frame in (first, second)] == [False, True]


def test_a_refused_subscription_is_an_answer_not_a_stream(world: Any) -> None:
    """ResourceInUse before the stream begins leaves the consumer free to subscribe at once."""
    world.stream()
    consumer = world.register()
    world.emulator.faults.add("error", code="ResourceInUseException", operation="SubscribeToShard", count=1)
    assert world.refused(lambda: world.subscribe(consumer=consumer))[0] == "ResourceInUseException"
    world.put("a")
    assert world.subscribe(consumer=consumer).data(1) == [b"a"]


def test_waiting_is_over_when_the_caller_goes(world: Any) -> None:
    """A silent answer holds nothing once its caller has left."""
    world.emulator.faults.add("silence", operation="ListStreams")
    client = world.emulator.client(config=IMPATIENT)
    with pytest.raises(ReadTimeoutError):
        client.list_streams()
    started = time.monotonic()
    world.emulator.faults.clear()
    assert names(world) == []
    assert time.monotonic() - started < 5
