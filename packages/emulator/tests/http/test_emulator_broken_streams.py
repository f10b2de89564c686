"""Faults over real sockets: event streams that break, fall silent or are late, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import json
import ssl
import threading
from typing import Any

import h2.errors
import h2.events
import pytest
from botocore.eventstream import ChecksumMismatch
from botocore.exceptions import EventStreamError
from urllib3.exceptions import ProtocolError


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


def test_a_refused_subscription_is_an_answer_not_a_stream(world: Any) -> None:
    """ResourceInUse before the stream begins leaves the consumer free to subscribe at once."""
    world.stream()
    consumer = world.register()
    world.emulator.faults.add("error", code="ResourceInUseException", operation="SubscribeToShard", count=1)
    assert world.refused(lambda: world.subscribe(consumer=consumer))[0] == "ResourceInUseException"
    world.put("a")
    assert world.subscribe(consumer=consumer).data(1) == [b"a"]
