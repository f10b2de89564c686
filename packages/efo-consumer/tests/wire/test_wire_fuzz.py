"""Bytes that nobody should send: framing, headers and payloads give events or a typed error, and count every byte."""

import base64
import binascii
import json
import struct
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.aws import AwsServiceError
from penstock.efo_consumer._wire.decode import decode_payload
from penstock.efo_consumer._wire.http2_connections import ReceiveWindow
from penstock.efo_consumer._wire.subscription import SubscriptionEvent, SubscriptionParser
from penstock.efo_consumer.errors import EfoConsumerError, PayloadDecodeError

EVENT = (b":event-type", b"SubscribeToShardEvent")


def header(name: bytes, value: bytes, kind: int = 7) -> bytes:
    return bytes([len(name)]) + name + bytes([kind]) + struct.pack(">H", len(value)) + value


def frame(headers: bytes, payload: bytes) -> bytes:
    """A frame whose checksums are right, whatever is in it."""
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    body = lengths + struct.pack(">I", zlib.crc32(lengths)) + headers + payload
    return body + struct.pack(">I", zlib.crc32(body))


def payload(sizes: list[int], **rest: Any) -> bytes:
    records = [
        {
            "SequenceNumber": str(index),
            "ApproximateArrivalTimestamp": 1.5,
            "Data": base64.b64encode(bytes([index % 256]) * size).decode(),
            "PartitionKey": "k",
        }
        for index, size in enumerate(sizes)
    ]
    return json.dumps({"Records": records, "MillisBehindLatest": 0, **rest}, separators=(",", ":")).encode()


def feed(data: bytes, cuts: list[int]) -> tuple[list[SubscriptionEvent], Exception | None, int]:
    """Events, the error that ended them, and the bytes that no event accounts for."""
    parser = SubscriptionParser()
    events: list[SubscriptionEvent] = []
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(bounds):
        for outcome in parser.feed(data[start:end]):
            if isinstance(outcome, Exception):
                assert isinstance(outcome, EfoConsumerError | AwsServiceError)
                return events, outcome, parser.pending_bytes
            events.append(outcome)
    return events, parser.finish(), parser.pending_bytes


_cuts = st.lists(st.integers(0, 10_000), max_size=6)
_headers = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.builds(header, st.sampled_from([b":event-type", b":message-type", b":exception-type", b":error-code", b"x"]),
                  st.sampled_from([b"", b"event", b"exception", b"error", b"SubscribeToShardEvent", b"\xff"]),
                  st.integers(0, 10)),
        max_size=4,
    ).map(b"".join),
)  # fmt: skip
_sizes = st.lists(st.sampled_from([0, 10, 320, 700, 1600, 3000]), max_size=6)
_payloads = st.one_of(st.binary(max_size=200), st.builds(payload, _sizes))


@given(st.lists(st.builds(frame, _headers, _payloads), max_size=4), st.binary(max_size=30), _cuts)
def test_frames_of_anything_give_events_or_a_typed_error(frames: list[bytes], tail: bytes, cuts: list[int]) -> None:
    """With right checksums around any headers and payloads, each byte is counted once, up to the first error."""
    data = b"".join(frames) + tail
    events, error, pending = feed(data, cuts)
    counted = sum(event.wire_bytes for event in events) + pending
    assert counted <= len(data) if error else counted == len(data)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=100), _cuts)
@example(16, 0, b"", [])
@example(2**32 - 1, 0, b"x" * 100, [12])
@example(28, 12, struct.pack(">I", 0), [])
def test_any_lengths_are_open_or_a_typed_error(total: int, headers: int, rest: bytes, cuts: list[int]) -> None:
    """A prelude with a right checksum makes the parser wait for no more than a frame may have, or is refused."""
    lengths = struct.pack(">II", total, headers)
    events, error, _ = feed(lengths + struct.pack(">I", zlib.crc32(lengths)) + rest, cuts)
    assert not events
    assert error is not None


@given(_sizes, st.data())
def test_a_payload_that_was_changed_gives_rows_or_a_typed_error(sizes: list[int], data: st.DataObject) -> None:
    """Whatever is changed in a real payload, what comes out is what Python's own JSON and base64 read, or an error."""
    changed = bytearray(payload(sizes))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed)))
        changed[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        found = decode_payload(bytes(changed))
    except PayloadDecodeError:
        return
    found.records.validate(full=True)
    assert found.records.column("data").to_pylist() == reference(bytes(changed))


def reference(text: bytes) -> list[bytes]:
    # A member that is there twice counts as it stands last, for both.
    return [
        binascii.a2b_base64(record["Data"])
        for record in json.loads(text.decode(errors="replace"), strict=False)["Records"]
    ]


@pytest.mark.parametrize("size", [0, 10, 299, 300, 301, 1499, 1500, 1501, 5000])
def test_all_sizes_are_read_alike(size: int) -> None:
    """Around the sizes where the way to decode changes, and where the first record misleads, rows are right."""
    for sizes in ([size] * 3, [size, 0, 9000], [0, size], [9000, size, 1]):
        found = decode_payload(payload(sizes))
        found.records.validate(full=True)
        assert found.records.column("data").to_pylist() == [bytes([row]) * each for row, each in enumerate(sizes)]


def test_data_never_comes_to_another_record() -> None:
    """Where one record has its data twice and another has none, that is an error, not two rows."""
    text = base64.b64encode(bytes(5000)).decode()
    twice = f'{{"SequenceNumber":"1","Data":"{text}","Data":"{text}","PartitionKey":"k"}}'
    never = '{"SequenceNumber":"2","PartitionKey":"k"}'
    with pytest.raises(PayloadDecodeError):
        decode_payload(f'{{"Records":[{twice},{never}]}}'.encode())


@pytest.mark.parametrize("first", [0, 1_750_000_000_123, 2_200_000_000_001, 4_102_444_800_001])
def test_many_rows_have_the_times_of_few(first: int) -> None:
    """Times are the same whether they are computed one by one or all at once, until the next century."""
    millis = [first + 7 * row for row in range(400)]
    records = [
        {"SequenceNumber": "1", "ApproximateArrivalTimestamp": one / 1000, "Data": "", "PartitionKey": "k"}
        for one in millis
    ]
    for count in (1, 149, 150, 151, 400):
        found = decode_payload(json.dumps({"Records": records[:count]}).encode())
        times = found.records.column("approximateArrivalTimestamp").cast("int64").to_pylist()
        assert times == [one * 1000 for one in millis[:count]]


@pytest.mark.parametrize("keys", [["aé", "bö", "cü"], ["a", "b", "cd"], ["", "", ""], ["€"] * 700, ["x", "yz", "€"]])
def test_keys_of_one_length_are_read_like_others(keys: list[str]) -> None:
    """Where all keys have as many characters, they need not have as many bytes."""
    records = [{"SequenceNumber": "1", "Data": "", "PartitionKey": key} for key in keys]
    found = decode_payload(json.dumps({"Records": records}).encode())
    found.records.validate(full=True)
    assert found.records.column("partitionKey").to_pylist() == keys
    assert found.nbytes == sum(len(key.encode()) for key in keys)


def test_a_time_beyond_all_is_a_typed_error_in_many_rows() -> None:
    """A time that no timestamp holds is an error also where times are computed all at once."""
    for time in ("1e300", "1e308", "9e15"):
        record = f'{{"SequenceNumber":"1","ApproximateArrivalTimestamp":{time},"Data":"","PartitionKey":"k"}}'
        with pytest.raises(PayloadDecodeError):
            decode_payload(b'{"Records":[' + ",".join([record] * 200).encode() + b"]}")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=12), st.integers(500, 50_000), st.integers(0, 3))
def test_the_window_gives_back_every_byte(frame_bytes: list[int], chunk_bytes: int, ahead: int) -> None:
    """However frames are cut and taken, all that was received is credited in the end, and never more."""
    window = ReceiveWindow(64 * 1024)
    received = credited = 0
    waiting: list[int] = []
    ends = [sum(frame_bytes[: index + 1]) for index in range(len(frame_bytes))]
    total = ends[-1]
    while received < total:
        step = min(chunk_bytes, total - received)
        done = [size for size, end in zip(frame_bytes, ends, strict=True) if received < end <= received + step]
        received += step
        open_bytes = received - max((end for end in ends if end <= received), default=0)
        credit, costs = window.received(step, done, open_bytes)
        credited += credit
        waiting += costs
        while len(waiting) > ahead:
            credited += window.taken(waiting.pop(0), open_bytes)
        assert credited <= received
    for cost in waiting:
        credited += window.taken(cost, 0)
    assert credited == total
    assert window.owed_bytes == 0
