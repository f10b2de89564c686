"""Aggregates of the Kinesis Producer Library: as an independent producer writes them, and malformed ones."""

import hashlib
import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from aws_kinesis_agg.aggregator import AggRecord, messages_pb2
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from penstock.efo_consumer import (
    WIRE_SCHEMA,
    DeaggregationCounts,
    HashKeyRange,
    PublisherMetrics,
    Shard,
    ShardKeys,
    StreamKeys,
    deaggregate,
)
from penstock.efo_consumer._wire.kpl import (
    MAGIC,
    USER_RECORD_SCHEMA,
    MalformedAggregateError,
    divide_aggregates,
    parse_aggregate,
)
from penstock.emulator.testing import UserRecord, malformed_aggregates
from penstock.emulator.testing import aggregate as packed

_ARRIVAL = datetime(2026, 1, 1, tzinfo=UTC)
_keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
_hash_keys = st.integers(min_value=0, max_value=2**128 - 1).map(str)
_user_records = st.lists(st.tuples(_keys, st.binary(max_size=400), _hash_keys), min_size=1, max_size=30)


_WHOLE = HashKeyRange(0, 2**128 - 1)
_CHILD = ShardKeys(HashKeyRange(1, 1), HashKeyRange(1, 2))


def aggregate(*records: tuple[str, bytes, str | None]) -> bytes:
    """What aws-kinesis-agg writes. It invents explicit hash keys where none is given: those go."""
    producer = AggRecord()
    for key, data, hash_key in records:
        assert producer.add_user_record(key, data, hash_key)
    if any(hash_key is None for _, _, hash_key in records):
        message = producer.agg_record
        for record in message.records:
            record.ClearField("explicit_hash_key_index")
        del message.explicit_hash_key_table[:]
    return bytes(producer.get_contents()[2])


def around(body: bytes) -> bytes:
    return MAGIC + body + hashlib.md5(body).digest()


def wire(*blobs: bytes | None) -> pa.RecordBatch:
    rows = [
        {
            "data": blob,
            "partitionKey": f"wire-{index}",
            "sequenceNumber": str(100 + index),
            "approximateArrivalTimestamp": _ARRIVAL,
            "encryptionType": "KMS" if index % 2 else None,
        }
        for index, blob in enumerate(blobs)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=WIRE_SCHEMA)


def rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    batch.validate(full=True)
    assert batch.schema.equals(USER_RECORD_SCHEMA)
    return [
        (row["sequenceNumber"], row["subSequenceNumber"], row["partitionKey"], row["explicitHashKey"], row["data"])
        for row in batch.to_pylist()
    ]


def hash_of(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode()).digest())


@given(_user_records)
@example([("k", b"x" * 300, "0")] * 300 + [(f"k{index}", b"", str(index)) for index in range(300)])
def test_user_records_are_those_of_the_producer(records: list[tuple[str, bytes, str]]) -> None:
    """Keys, hash keys and data come out as aws-kinesis-agg took them, in its order, numbered from 0."""
    found = rows(deaggregate(wire(aggregate(*records))))
    assert found == [("100", index, key, hash_key, data) for index, (key, data, hash_key) in enumerate(records)]


def test_aggregates_and_plain_records_keep_their_order() -> None:
    """Each user record has the sequence number, time and encryption of its aggregate; others are untouched."""
    batch = wire(b"plain", aggregate(("a", b"1", None), ("b", b"2", "7")), None, b"", aggregate(("c", b"3", None)))
    counts = DeaggregationCounts()
    found = deaggregate(batch, counts=counts)
    assert rows(found) == [
        ("100", 0, "wire-0", None, b"plain"),
        ("101", 0, "a", None, b"1"),
        ("101", 1, "b", None, b"2"),
        ("102", 0, "wire-2", None, None),
        ("103", 0, "wire-3", None, b""),
        ("104", 0, "c", None, b"3"),
    ]
    assert found.column("encryptionType").to_pylist() == [None, "KMS", "KMS", None, "KMS", None]
    assert found.column("approximateArrivalTimestamp").to_pylist() == [_ARRIVAL] * 6
    assert counts == DeaggregationCounts(aggregates=2, user_records=3)


def test_a_batch_without_aggregates_is_not_copied() -> None:
    """The result has the columns of the batch, also for a slice and for no rows."""
    batch = wire(b"one", None, b"three")
    found = deaggregate(batch)
    assert found.column("data").buffers()[2].address == batch.column("data").buffers()[2].address
    assert [row[1:2] + row[4:] for row in rows(found)] == [(0, b"one"), (0, None), (0, b"three")]
    assert rows(deaggregate(batch.slice(2))) == [("102", 0, "wire-2", None, b"three")]
    assert rows(deaggregate(batch.slice(0, 0))) == []


def test_an_answer_is_taken_apart_a_mib_at_a_time() -> None:
    """In its order, and whole where no record is an aggregate: what a MiB of them become may be a hundred of them."""
    large = aggregate(*((f"key {number % 9}", b"x" * 20_000, None) for number in range(20)))
    batch = wire(b"plain", large, large, large, b"y" * 2_000_000, b"", aggregate(("a", b"1", None)), b"")
    parts = list(divide_aggregates(batch))
    assert [part.num_rows for part in parts] == [3, 1, 1, 3]
    assert [row for part in parts for row in rows(deaggregate(part))] == rows(deaggregate(batch))
    (plain,) = divide_aggregates(batch.slice(4, 2))
    assert plain.num_rows == 2


@given(st.lists(st.tuples(_keys, st.binary(max_size=5), st.none() | _hash_keys), min_size=1, max_size=20), _hash_keys)
def test_two_shards_share_the_user_records_of_an_aggregate(
    records: list[tuple[str, bytes, str | None]], split: str
) -> None:
    """By the range of its hash keys each of two children gives its own, with their numbers: nothing lost or twice."""
    batch = wire(packed(UserRecord(data, key, hash_key) for key, data, hash_key in records))
    counts = DeaggregationCounts()
    lower = deaggregate(batch, ShardKeys(HashKeyRange(0, int(split) - 1), _WHOLE), counts=counts)
    upper = deaggregate(batch, ShardKeys(HashKeyRange.of(split, str(2**128 - 1)), _WHOLE), counts=counts)
    assert sorted(rows(lower) + rows(upper)) == sorted(rows(deaggregate(batch)))
    for _, index, key, hash_key, _ in rows(lower):
        assert (hash_key, key) == (records[index][2], records[index][0])
        assert (hash_of(key) if hash_key is None else int(hash_key)) < int(split)
    assert counts.user_records == counts.user_records_of_siblings == len(records)
    assert counts.user_records_outside_shard == 0


def test_aggregate_of_a_sibling_gives_no_row() -> None:
    """When every user record comes again in another shard, the batch has no rows, and the columns all the same."""
    found = deaggregate(wire(aggregate(("a", b"1", "5"))), ShardKeys(HashKeyRange(6, 7), HashKeyRange(4, 7)))
    assert rows(found) == []


def test_user_record_is_dropped_only_where_the_parent_explains_it() -> None:
    """Nothing sends a user record again that lies outside of the parent, or outside of a shard without a known one."""
    batch = wire(packed(UserRecord(b"%d" % number, "key", str(number)) for number in range(10)))
    for parent, dropped, outside in ((None, 0, 8), (HashKeyRange(3, 6), 2, 6), (HashKeyRange(5, 6), 0, 8)):
        counts = DeaggregationCounts()
        found = rows(deaggregate(batch, ShardKeys(HashKeyRange(5, 6), parent), counts=counts))
        numbers = [number for number in range(10) if number not in ((3, 4) if dropped else ())]
        assert [(row[1], row[4]) for row in found] == [(number, b"%d" % number) for number in numbers]
        assert counts == DeaggregationCounts(
            aggregates=1,
            user_records=10 - dropped,
            user_records_of_siblings=dropped,
            user_records_outside_shard=outside,
        )


def shard(shard_id: str, first: int, last: int, *parents: str) -> Shard:
    return Shard(shard_id, parents, str(first), str(last))


def test_keys_of_a_parent_follow_from_the_parent_or_from_its_children() -> None:
    """A parent leaves the list before its children; of a merge, and without the other child, nothing is known."""
    parent, lower, upper = shard("0", 0, 9), shard("1", 0, 3, "0"), shard("2", 4, 9, "0")
    merged, next_to = shard("4", 4, 12, "2", "3"), shard("3", 10, 12)
    for listed, lacks in (([parent, lower], False), ([lower, upper], False), ([parent, lower, upper], False)):
        keys = StreamKeys()
        keys.learn(listed)
        assert keys.of("1") == ShardKeys(HashKeyRange(0, 3), HashKeyRange(0, 9))
        assert keys.lacks_parents is lacks
    keys = StreamKeys()
    assert keys.of("1") is None
    keys.learn([lower])
    assert keys.of("1") == ShardKeys(HashKeyRange(0, 3), HashKeyRange(0, 3))
    assert keys.lacks_parents
    keys.learn([merged, next_to, upper])
    assert keys.of("4") == ShardKeys(HashKeyRange(4, 12))
    assert keys.of("1") == ShardKeys(HashKeyRange(0, 3), HashKeyRange(0, 9))
    assert not keys.lacks_parents


_ONE = messages_pb2.AggregatedRecord(
    partition_key_table=["k"], records=[messages_pb2.Record(partition_key_index=0, data=b"data")]
).SerializeToString()
_RECORD = b"\x1a\x08\x08\x00\x1a\x04data"


@pytest.mark.parametrize(
    "blob",
    [
        MAGIC,
        MAGIC + b"x" * 15,
        MAGIC + _ONE,
        around(_ONE)[:-1] + b"?",
        around(_ONE) + b"more",
        around(b""),
        around(_ONE[:-1]),
        around(b"\x0a\x01k"),
        around(b"\x0a\x01k\x1a\x02\x08\x00"),
        around(b"\x0a\x01k\x1a\x06\x1a\x04data"),
        around(b"\x0a\x01k\x1a\x05\x08\x00\x1a\x04data"),
        around(b"\x0a\x01k\x1a\x12\x08" + b"\xff" * 10 + b"\x00\x1a\x04data"),
        around(b"\x0a\x01k" + _RECORD + b"\x1b"),
        around(b"\x0a\x01k" + _RECORD + b"\x22\x05tag"),
        around(b"\x0a\x01k" + _RECORD + b"\x02\x00"),
        around(b"\x0a\x80\x02" + b"k" * 256 + b"\x1a\x04\x08\x00\x1a\x00" * 10_000)[:-16] + b"?" * 16,
        *malformed_aggregates().values(),
    ],
)
def test_what_is_no_aggregate_is_given_whole(blob: bytes) -> None:
    """A record that only begins like an aggregate, or was damaged or forged, is delivered as it is, and counted."""
    counts = DeaggregationCounts()
    keys = ShardKeys(HashKeyRange(0, 1))
    assert rows(deaggregate(wire(blob), keys, counts=counts)) == [("100", 0, "wire-0", None, blob)]
    assert counts == DeaggregationCounts(malformed=1)


def test_faulty_entry_that_no_record_refers_to_costs_nothing() -> None:
    """A table may hold a key that Kinesis would not accept: only records that have it would be malformed."""
    blob = packed(
        [UserRecord(b"1", "a"), UserRecord(b"2", "b", "7")],
        unused_keys=["k" * 300, b"\xff"],
        unused_hash_keys=["no number", "9" * 39, "-1", "", "\N{ARABIC-INDIC DIGIT ONE}"],
    )
    counts = DeaggregationCounts()
    for keys in (None, ShardKeys(HashKeyRange(0, 1))):
        found = rows(deaggregate(wire(blob), keys, counts=counts))
        assert found == [("100", 0, "a", None, b"1"), ("100", 1, "b", "7", b"2")]
    assert counts == DeaggregationCounts(aggregates=2, user_records=4, user_records_outside_shard=2)


@pytest.mark.parametrize(
    ("key", "hash_key", "given_key", "given_hash_key"),
    [
        ("k" * 257, None, "k" * 257, None),
        (b"caf\xe9", None, "caf\N{REPLACEMENT CHARACTER}", None),
        (None, None, "", None),
        (b"\xff", "5", "\N{REPLACEMENT CHARACTER}", "5"),
        *(("k", text, "k", None) for text in ("x", "-1", "", " 1", "1" * 40, "9" * 39, b"\xff")),
    ],
)
def test_malformed_user_record_comes_with_what_is_known_of_its_key(
    key: str | bytes | None, hash_key: str | bytes | None, given_key: str, given_hash_key: str | None
) -> None:
    """One record is malformed, and all arrive. Where it belongs is unknown, so no shard drops it."""
    blob = packed([UserRecord(b"1", "a", "6"), UserRecord(b"2", key, hash_key), UserRecord(b"3", "b", "4")])
    expected = [("100", 0, "a", "6", b"1"), ("100", 1, given_key, given_hash_key, b"2"), ("100", 2, "b", "4", b"3")]
    counts = DeaggregationCounts()
    assert rows(deaggregate(wire(blob), counts=counts)) == expected
    assert counts == DeaggregationCounts(aggregates=1, user_records=3, malformed_user_records=1)
    counts = DeaggregationCounts()
    keys = ShardKeys(HashKeyRange(6, 7), HashKeyRange(4, 7))
    assert rows(deaggregate(wire(blob), keys, counts=counts)) == expected[:2]
    assert counts == DeaggregationCounts(
        aggregates=1, user_records=2, user_records_of_siblings=1, malformed_user_records=1
    )


def test_index_beyond_the_table_of_hash_keys_costs_one_record() -> None:
    """The other records of the aggregate have theirs."""
    body = b"\x0a\x01k\x12\x017\x1a\x06\x08\x00\x10\x01\x1a\x00\x1a\x06\x08\x00\x10\x00\x1a\x00"
    counts = DeaggregationCounts()
    assert [row[3] for row in rows(deaggregate(wire(around(body)), counts=counts))] == [None, "7"]
    assert counts.malformed_user_records == 1


def test_keys_that_would_fill_the_memory_are_refused() -> None:
    """One long key that tens of thousands of empty records name does not multiply what arrived a hundredfold."""
    key = "\N{PILE OF POO}" * 256
    body = messages_pb2.AggregatedRecord(
        partition_key_table=[key], records=[messages_pb2.Record(partition_key_index=0, data=b"")] * 50_000
    ).SerializeToString()
    with pytest.raises(MalformedAggregateError, match="room"):
        parse_aggregate(around(body))
    ascii_body = body.replace(key.encode(), b"k" * 1024).replace(
        b"\x0a\x80\x08" + b"k" * 1024, b"\x0a\x80\x02" + b"k" * 256
    )
    assert len(parse_aggregate(around(ascii_body)).data) == 50_000
    # A faulty key may be as long as the record, and a byte that is not UTF-8 becomes three.
    for long_key, records in ((b"k" * 100_000, 65), (b"\xff" * 100_000, 22)):
        with pytest.raises(MalformedAggregateError, match="room"):
            parse_aggregate(packed([UserRecord(b"", long_key)] * records))
        assert parse_aggregate(packed([UserRecord(b"", long_key)] * (records - 2))).malformed == records - 2


def test_what_protobuf_reads_is_read_alike() -> None:
    """Of three thousand damaged bodies, those that both take give the records that protobuf gives."""
    source = random.Random(5)
    original = aggregate(*((f"k{index}", b"d" * index, str(index)) for index in range(5)))[4:-16]
    compared = 0
    for _ in range(3_000):
        body = bytearray(original)
        body[source.randrange(len(body))] = source.randrange(256)
        if (found := _accepted(around(bytes(body)))) is None:
            continue
        message = messages_pb2.AggregatedRecord.FromString(bytes(body))
        # Bytes where protobuf finds that they are no text.
        keys: list[Any] = list(message.partition_key_table)
        table = [key.decode(errors="replace") if isinstance(key, bytes) else key for key in keys] + [""] * 300
        assert found == [(table[record.partition_key_index], record.data) for record in message.records]
        compared += 1
    assert compared > 300


def _accepted(blob: bytes) -> list[tuple[str, bytes]] | None:
    batch = wire(blob)
    counts = DeaggregationCounts()
    found = rows(deaggregate(batch, counts=counts))
    if counts.malformed:
        assert found == [("100", 0, "wire-0", None, blob)]
        return None
    assert [row[1] for row in found] == list(range(len(found)))
    return [(row[2], row[4]) for row in found]


def test_what_was_taken_apart_is_counted() -> None:
    """Aggregates, user records and malformed aggregates are metrics of the stream, by the field's names.

    The SDK writes all names in small letters.
    """
    reader = InMemoryMetricReader()
    metrics = PublisherMetrics(MeterProvider([reader]).get_meter("test"))
    counts = DeaggregationCounts()
    batch = wire(aggregate(("a", b"1", None), ("b", b"2", None)), MAGIC, b"plain", packed([UserRecord(b"", b"\xff")]))
    deaggregate(batch, counts=counts)
    deaggregate(
        wire(aggregate(*((key, b"", str(len(key))) for key in ("1", "22", "333", "4444")))), _CHILD, counts=counts
    )
    metrics.deaggregated(counts, stream="orders", shard_id="shard-1")
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: [
            (dict(point.attributes or {}), point.value)
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        ]
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    at = {"stream": "orders"}
    expected = {
        "numberofaggregatedrecords": [(at, 3)],
        "numberofdeaggregatedrecords": [(at, 6)],
        "numberofmalformedaggregates": [(at, 1)],
        "numberofmalformeduserrecords": [(at, 1)],
        "userrecordsofsiblings": [(at, 1)],
        "userrecordsoutsideshard": [(at, 2)],
    }
    # Gauges show all streams of the process, including streams of other tests.
    assert {name: found.get(name) for name in expected} == expected
