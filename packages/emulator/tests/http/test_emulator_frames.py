"""Frames that several subscribers share."""

from __future__ import annotations

import json
from typing import Any

from botocore.eventstream import EventStreamBuffer

from penstock.emulator._http.codec import encode_event
from penstock.emulator._state.records import FrameCache, RecordLog
from penstock.emulator._state.subscription import RecordsEvent


def log_of(count: int) -> RecordLog:
    log = RecordLog()
    for number in range(count):
        log.append(counter=number, arrival_ms=1000 + number, size_bytes=10, encoded=b'{"Data":"%d"}' % number)
    return log


def decoded(frame: bytes) -> dict[str, Any]:
    """The payload of one whole frame; botocore checks both CRCs."""
    buffer = EventStreamBuffer()
    buffer.add_data(frame)
    payload: dict[str, Any] = json.loads(next(buffer).payload)
    assert list(buffer) == []
    return payload


def test_subscribers_share_what_is_the_same_and_get_what_is_their_own() -> None:
    """The records are put together once, and each frame has its own lag and is sound."""
    frames, log = FrameCache(), log_of(10)
    records = log.slice(0, 10)
    first = decoded(encode_event(RecordsEvent(records, "1" * 56, 7, [], frames)))
    # What was built is used, not the records that are given.
    second = decoded(encode_event(RecordsEvent(log_of(10).slice(0, 10), "1" * 56, 123_456_789, [], frames)))
    assert (first["MillisBehindLatest"], second["MillisBehindLatest"]) == (7, 123_456_789)
    assert first["Records"] == second["Records"] == [{"Data": str(number)} for number in range(10)]
    built = frames.get((0, 9))
    assert built is not None
    encode_event(RecordsEvent(records, "1" * 56, 8, [], frames))
    assert frames.get((0, 9)) is built


def test_all_subscribers_of_a_shard_get_all_records(world: Any) -> None:
    """Those that start together, and one that starts later, in the middle of a batch."""
    world.start(enforce_limits=False)
    world.stream()
    written = world.put(*(f"key-{number}" for number in range(500)))
    expected = [f"key-{number}".encode() for number in range(500)]
    together = [world.subscribe() for _ in range(3)]
    late = world.subscribe(kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=written[99]["SequenceNumber"])
    for subscriber in together:
        assert subscriber.data(500) == expected
    assert late.data(400) == expected[100:]
    world.put("more")
    for subscriber in (*together, late):
        assert subscriber.data(1) == [b"more"]
