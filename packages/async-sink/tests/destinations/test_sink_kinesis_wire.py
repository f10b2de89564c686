"""Bodies of PutRecords, however large the records are."""

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.async_sink import KinesisRequestEntry
from penstock.async_sink._destinations.kinesis.put_records import PutRecordsCodec

hash_keys = st.none() | st.integers(0, 2**128 - 1).map(str)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256)
entries = st.builds(KinesisRequestEntry, st.binary(max_size=600), keys, hash_keys)


@pytest.mark.parametrize("padding", [0, 1_000], ids=["small", "large"])
@given(records=st.lists(entries, min_size=1, max_size=20))
@example(
    records=[
        KinesisRequestEntry(b"", key) for key in ('"', "\\", '","', '",', ',"', '\\","', "\n\x00\x7f", "ключ", "k")
    ]
)
def test_any_key_arrives_as_it_is(padding: int, records: list[KinesisRequestEntry]) -> None:
    """Small and large records are encoded differently, and both escape JSON's special characters."""
    sent = [KinesisRequestEntry(one.data + b"x" * padding, one.partition_key, one.explicit_hash_key) for one in records]
    body = json.loads(PutRecordsCodec(("StreamName", "s")).encode(sent))
    assert body.pop("StreamName") == "s"
    assert list(body) == ["Records"]
    for got, one in zip(body["Records"], sent, strict=True):
        assert base64.b64decode(got.pop("Data"), validate=True) == one.data
        assert got.pop("PartitionKey") == one.partition_key
        assert got == ({} if one.explicit_hash_key is None else {"ExplicitHashKey": one.explicit_hash_key})


@pytest.mark.parametrize("size", [10, 1_000])
def test_bytes_that_can_be_changed_are_encoded_like_others(size: int) -> None:
    """A bytearray and a memoryview are data too."""
    codec = PutRecordsCodec(("StreamName", "s"))
    plain = bytes(range(10)) * (size // 10)
    want = codec.encode([KinesisRequestEntry(plain, "k")] * 2)
    others = [bytearray(plain), memoryview(plain)]
    assert codec.encode([KinesisRequestEntry(one, "k") for one in others]) == want  # type: ignore[arg-type]  # they work
