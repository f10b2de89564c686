import json
from itertools import pairwise
from typing import Any, cast

import cbor2
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink import (
    KinesisRequestEntry,
    KinesisStreamsSink,
)
from penstock.async_sink._destinations.kinesis.entry import measure
from penstock.async_sink._destinations.kinesis.put_records import PutRecordsCodec
from penstock.async_sink._destinations.kinesis.rows import check_rows
from penstock.async_sink.errors import RecordError, SinkOptionError

hash_keys = st.integers(0, 2**128 - 1).map(str)
entries = st.builds(
    KinesisRequestEntry,
    st.binary(max_size=2_000),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256),
    st.none() | hash_keys,
)


def test_failed_entries_are_classified() -> None:
    """Throttled entries are distinguished from entries that failed inside the service."""
    codec = PutRecordsCodec(("StreamName", "s"))
    assert codec.failures(b'{"FailedRecordCount":0,"Records":[{"SequenceNumber":"1"}]}', 1) == []
    answer = {
        "FailedRecordCount": 2,
        "Records": [
            {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow down"},
            {"SequenceNumber": "1", "ShardId": "shardId-0"},
            {"ErrorCode": "InternalFailure", "ErrorMessage": "sorry"},
        ],
    }
    throttled, internal = codec.failures(json.dumps(answer).encode(), 3)
    assert (throttled.index, throttled.throttled, throttled.error_message) == (0, True, "slow down")
    assert (internal.index, internal.throttled, internal.error_code) == (2, False, "InternalFailure")


def test_an_answer_names_each_record() -> None:
    """Also if it counts no failure, and with any white space."""
    codec = PutRecordsCodec(("StreamName", "s"))
    accepted = {"SequenceNumber": "1", "ShardId": "shardId-0"}
    for places in ({"FailedRecordCount": 0, "Records": [accepted] * 2}, {"Records": [accepted] * 2}):
        for indent in (None, 2):
            assert codec.failures(json.dumps(places, indent=indent).encode(), 2) == []
            assert codec.failures(cbor2.dumps(places), 2) == []
            for other in (1, 3):
                for answer in (json.dumps(places, indent=indent).encode(), cbor2.dumps(places)):
                    with pytest.raises(ValueError, match=f"of {other} records was answered for 2"):
                        codec.failures(answer, other)


def test_an_answer_for_another_number_of_records_is_an_error() -> None:
    """Places would mean other entries."""
    codec = PutRecordsCodec(("StreamName", "s"))
    with pytest.raises(ValueError, match="of 2 records was answered for 1"):
        codec.failures(b'{"FailedRecordCount":1,"Records":[{"ErrorCode":"InternalFailure"}]}', 2)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (KinesisRequestEntry("text", "k"), "its data is str, not bytes"),  # type: ignore[arg-type]  # the mistake
        (KinesisRequestEntry(None, "k"), "its data is NoneType"),  # type: ignore[arg-type]  # the mistake
        (KinesisRequestEntry(b"", 7), "its partition key is int, not str"),  # type: ignore[arg-type]  # the mistake
        (KinesisRequestEntry(b"", None), "its partition key is NoneType"),  # type: ignore[arg-type]  # the mistake
        (KinesisRequestEntry(b"", "k", 7), "its explicit hash key must be .*, not 7"),  # type: ignore[arg-type]  # the mistake
        (b"raw", "expected a KinesisRequestEntry, got bytes: give the sink a converter"),
    ],
)
def test_a_field_of_a_wrong_type_is_an_error_that_says_what_to_do(entry: Any, words: str) -> None:
    """Text as data would silently be treated as base64 and arrive as other bytes."""
    with pytest.raises(RecordError, match=f"record 17: {words}"):
        measure(entry, 17)


def arrow(**columns: object) -> pa.RecordBatch:
    return pa.record_batch(dict(columns))


def test_a_record_batch_becomes_entries_slice_by_slice() -> None:
    """Slices are cut as asked, with the sizes of the entries; slices of a batch work too."""
    whole = arrow(
        data=[b"drop", b"a", b"bb", b"ccc"],
        partitionKey=["x", "k", "ключ", "k"],
        explicitHashKey=["1", None, "7", None],
    )
    rows = check_rows(whole.slice(1), first_number=0, max_record_size_in_bytes=100)
    entries = [
        KinesisRequestEntry(b"a", "k"),
        KinesisRequestEntry(b"bb", "ключ", "7"),
        KinesisRequestEntry(b"ccc", "k"),
    ]
    assert rows.entries(0, 3) == entries
    assert rows.entries(1, 2) == entries[1:2]
    assert rows.cut(1, 3).entries(0, 2) == entries[1:]
    assert rows.cut(1, 3).entries(1, 2) == entries[2:]
    assert [end - start for start, end in pairwise(rows.ends)] == [2, 10, 4]


def test_other_types_that_mean_the_same_are_read() -> None:
    """Large and dictionary-encoded columns, and text as data, are cast."""
    data = pa.array(["é", "b"], pa.large_string())
    keys = pa.array(["k", "k"]).dictionary_encode()
    rows = check_rows(arrow(data=data, partitionKey=keys), first_number=0, max_record_size_in_bytes=100)
    assert rows.entries(0, 2) == [KinesisRequestEntry("é".encode(), "k"), KinesisRequestEntry(b"b", "k")]


@pytest.mark.parametrize(("columns", "option"), [({"data": [b"a"]}, "partitionKey"), ({"partitionKey": ["a"]}, "data")])
def test_a_missing_column_is_named(columns: dict[str, list[object]], option: str) -> None:
    """The error names the missing column and the existing ones."""
    with pytest.raises(SinkOptionError) as caught:
        check_rows(arrow(**columns), first_number=0, max_record_size_in_bytes=10)
    assert caught.value.option == option


def test_a_column_of_a_wrong_type_is_named() -> None:
    """Numbers are not bytes."""
    with pytest.raises(SinkOptionError) as caught:
        check_rows(arrow(data=[1.5], partitionKey=["a"]), first_number=0, max_record_size_in_bytes=10)
    assert caught.value.option == "data"


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=12),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
            | st.sampled_from(("k" * 256, "k" * 257, "ж" * 256)),
            st.none() | st.sampled_from(("0", "٣", "-1", "1\n", "", "0" * 39, "0" * 40, str(2**128 - 1), str(2**128))),
        )
    )
)
def test_columns_and_entries_break_the_same_rules(rows: list[tuple[bytes, str, str | None]]) -> None:
    """A row is refused in a record batch exactly if it is refused as an entry, and for the same reason."""
    expected = {}
    for index, row in enumerate(rows):
        try:
            size = measure(KinesisRequestEntry(*row), index)
        except RecordError as error:
            expected[index] = error.reason
        else:
            if size > 256:
                expected[index] = f"it must be at most 256 bytes, not {size}"
    data, keys, hash_keys = ([row[field] for row in rows] for field in range(3))
    columns = {
        "data": pa.array(data, pa.binary()),
        "partitionKey": pa.array(keys, pa.string()),
        "explicitHashKey": pa.array(hash_keys, pa.string()),
    }
    found: dict[int, str] = {}
    for fault in KinesisStreamsSink.row_faults(pa.record_batch(columns), 256):
        for index in cast("Any", pc).indices_nonzero(fault.wrong).to_pylist():
            found.setdefault(index, fault.reason(index))
    assert found == expected
