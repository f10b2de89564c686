"""Malformed bytes: framing, headers and payloads give events or a typed error, and count every byte."""

import base64
import json
from typing import Any

import pytest

from penstock.efo_consumer._wire.decode import decode_payload
from penstock.efo_consumer.errors import PayloadDecodeError


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
