"""Payloads to Arrow: the values, whatever their sizes and spelling."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer import WIRE_SCHEMA, Shard
from penstock.efo_consumer._wire.decode import decode_payload
from penstock.efo_consumer.errors import PayloadDecodeError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record(data: bytes, key: str, index: int, millis: int, encryption: str | None = None) -> dict[str, Any]:
    value: dict[str, Any] = {
        "SequenceNumber": str(10**55 + index),
        "ApproximateArrivalTimestamp": millis / 1000,
        "Data": base64.b64encode(data).decode(),
        "PartitionKey": key,
    }
    if encryption is not None:
        value["EncryptionType"] = encryption
    return value


def encode(records: list[dict[str, Any]], **rest: Any) -> bytes:
    return json.dumps({"Records": records, **rest}, separators=(",", ":")).encode()


_sizes = st.sampled_from([0, 1, 2, 3, 100, 900, 1000, 5000])
_data = _sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size))
_millis = st.integers(min_value=0, max_value=4_102_444_800_000)
_encryption = st.sampled_from([None, "NONE", "KMS"])
_records = st.lists(st.tuples(_data, st.text(min_size=1, max_size=20), _millis, _encryption), max_size=12)


@given(_records, st.booleans())
def test_values_survive(values: list[tuple[bytes, str, int, str | None]], ascii_only: bool) -> None:
    """Data, keys, arrival times to the millisecond and encryption come out as they went in, at any size."""
    records = [record(data, key, index, millis, kind) for index, (data, key, millis, kind) in enumerate(values)]
    payload = json.dumps({"Records": records}, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    decoded = decode_payload(b"before" + payload + b"after", 6, 6 + len(payload))
    assert decoded.records.schema.equals(WIRE_SCHEMA)
    decoded.records.validate(full=True)
    assert decoded.records.to_pylist() == [
        {
            "data": data,
            "partitionKey": key,
            "sequenceNumber": str(10**55 + index),
            "approximateArrivalTimestamp": _EPOCH + timedelta(milliseconds=millis),
            "encryptionType": None if kind == "NONE" else kind,
        }
        for index, (data, key, millis, kind) in enumerate(values)
    ]
    assert decoded.nbytes == sum(len(data) + len(key.encode()) for data, key, _, _ in values)
    assert decoded.last_sequence_number == (str(10**55 + len(values) - 1) if values else None)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("size", [10, 5000])
def test_the_spelling_of_the_json_does_not_matter(size: int, separators: tuple[str, str]) -> None:
    """Blanks, the order of members and escaped slashes change nothing, at small and at large records."""
    data = b"\xff" * size
    member = record(data, 'a "Data":" key', 1, 5)
    reordered = dict(reversed(member.items()))
    text = json.dumps({"MillisBehindLatest": 3, "Records": [member, reordered, member]}, separators=separators)
    for spelled in (text, text.replace("/", "\\/")):
        decoded = decode_payload(spelled.encode())
        assert decoded.records.column("data").to_pylist() == [data] * 3
        assert decoded.records.column("partitionKey").to_pylist() == ['a "Data":" key'] * 3


def test_members_that_may_be_missing_may_be_null() -> None:
    """Absent and null are the same for the continuation, the children, the lag and the arrival time: unknown, not 0."""
    plain = {"Data": "", "PartitionKey": "k", "SequenceNumber": "1"}
    nulls = {**plain, "ApproximateArrivalTimestamp": None, "EncryptionType": None}
    rest = {"ContinuationSequenceNumber": None, "NextShardIterator": None, "ChildShards": None}
    for payload in (encode([plain]), encode([nulls], **rest, MillisBehindLatest=None)):
        decoded = decode_payload(payload)
        assert (decoded.continuation, decoded.next_iterator, decoded.child_shards) == (None, None, ())
        assert decoded.millis_behind_latest is None
        assert decoded.records.column("approximateArrivalTimestamp").null_count == 1


def test_a_time_missing_from_some_records_is_null_in_those() -> None:
    """Arrival times are null where the service leaves them out, and only there."""
    some = [record(b"", "k", 0, 1500), {"Data": "", "PartitionKey": "k", "SequenceNumber": "2"}]
    column = decode_payload(encode(some)).records.column("approximateArrivalTimestamp")
    assert column.cast(pa.int64()).to_pylist() == [1_500_000, None]


def test_the_end_of_a_shard_names_the_children() -> None:
    """Children come with their parents and hash keys; members that are not known yet are passed over."""
    child = {
        "ShardId": "shardId-000000000003",
        "ParentShards": ["shardId-000000000001", "shardId-000000000002"],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "99"},
        "Invented": {"later": 1},
    }
    decoded = decode_payload(encode([], ChildShards=[child], MillisBehindLatest=0))
    parents = ("shardId-000000000001", "shardId-000000000002")
    assert decoded.child_shards == (Shard("shardId-000000000003", parents, "0", "99"),)
    assert decoded.records.num_rows == 0
    assert decoded.records.schema.equals(WIRE_SCHEMA)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"{}",
        b'{"Records":[{"Data":"","PartitionKey":"k"}]}',
        b'{"Records":[{"Data":"?","PartitionKey":"k","SequenceNumber":"1"}]}',
        encode([record(b"", "k", 1, 1)]).replace(b'"Data":"', b'"Data":"' + b"!" * 5000),
        encode([record(b"x" * 5000, "k", 1, 1)])[:3000],
        b'{"Records":[{"Data":"","PartitionKey":"k","SequenceNumber":"1","ApproximateArrivalTimestamp":1e300}]}',
    ],
    ids=["empty", "null", "no-records", "no-sequence", "bad-data", "bad-large-data", "cut-off", "far-future"],
)
def test_what_is_no_payload_is_a_typed_error(payload: bytes) -> None:
    """A payload that cannot be decoded is a PayloadDecodeError, never half a batch."""
    with pytest.raises(PayloadDecodeError):
        decode_payload(payload)
