"""JSON payloads of SubscribeToShard events and GetRecords answers, decoded to Arrow. No I/O.

Both carry the same records and the same end of a shard; only the name of what to resume from differs.

Small records are decoded whole by msgspec, base64 included. Those of some hundred bytes leave msgspec as text, which
vector code decodes. Where records are large, the text of their data is cut out of the JSON first, found by its closing
quote, and decoded in place: the rest is a few hundred bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pybase64

from penstock.efo_consumer._decode_columns import (
    arrival_column,
    binary_column,
    encryption_column,
    string_column,
)
from penstock.efo_consumer._publisher import WIRE_SCHEMA, ChildShard
from penstock.efo_consumer.errors import PayloadDecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Characters of base64 a record, measured: from here on a call of the vector code wins over msgspec's own base64, and
# from there on cutting wins over a text that is made and thrown away.
_TEXT_CHARACTERS = 400
_CUT_CHARACTERS = 2000
# Far enough for what may stand before the first record's data.
_FIRST_DATA_WITHIN = 4096
_DATA_KEY = b'"Data":"'


class _HashKeyRange(msgspec.Struct, gc=False):
    starting: str = msgspec.field(name="StartingHashKey")
    ending: str = msgspec.field(name="EndingHashKey")


class _ChildShard(msgspec.Struct, gc=False):
    shard_id: str = msgspec.field(name="ShardId")
    parents: tuple[str, ...] = msgspec.field(name="ParentShards")
    hash_keys: _HashKeyRange = msgspec.field(name="HashKeyRange")


# Members in the order in which the service writes them: msgspec looks for each behind the last.
class _BytesRecord(msgspec.Struct, gc=False, kw_only=True):
    sequence: str = msgspec.field(name="SequenceNumber")
    arrival: float | None = msgspec.field(name="ApproximateArrivalTimestamp", default=None)
    data: bytes = msgspec.field(name="Data")
    key: str = msgspec.field(name="PartitionKey")
    encryption: str | None = msgspec.field(name="EncryptionType", default=None)


class _TextRecord(msgspec.Struct, gc=False, kw_only=True):
    sequence: str = msgspec.field(name="SequenceNumber")
    arrival: float | None = msgspec.field(name="ApproximateArrivalTimestamp", default=None)
    data: str = msgspec.field(name="Data")
    key: str = msgspec.field(name="PartitionKey")
    encryption: str | None = msgspec.field(name="EncryptionType", default=None)


class _Rest(msgspec.Struct, gc=False):
    continuation: str | None = msgspec.field(name="ContinuationSequenceNumber", default=None)
    next_iterator: str | None = msgspec.field(name="NextShardIterator", default=None)
    behind: int | None = msgspec.field(name="MillisBehindLatest", default=None)
    children: tuple[_ChildShard, ...] | None = msgspec.field(name="ChildShards", default=None)


class _BytesPayload(_Rest, gc=False, kw_only=True):
    records: list[_BytesRecord] = msgspec.field(name="Records")


class _TextPayload(_Rest, gc=False, kw_only=True):
    records: list[_TextRecord] = msgspec.field(name="Records")


_Payload = _BytesPayload | _TextPayload

_decode_bytes = msgspec.json.Decoder(_BytesPayload).decode
_decode_text = msgspec.json.Decoder(_TextPayload).decode


class DecodedPayload(msgspec.Struct, frozen=True):
    """What a payload holds.

    Attributes:
        records: WIRE_SCHEMA, in the order of the payload, which is that of the sequence numbers.
        continuation: SubscribeToShard's `ContinuationSequenceNumber`; None where absent or null.
        next_iterator: GetRecords' `NextShardIterator`; None where absent or null.
        last_sequence_number: the last record's; None without records.
        millis_behind_latest: 0 where absent.
        child_shards: empty where absent, null, or empty.
        nbytes: data and partition keys (UTF-8), in bytes.
    """

    records: pa.RecordBatch
    continuation: str | None
    next_iterator: str | None
    last_sequence_number: str | None
    millis_behind_latest: int
    child_shards: tuple[ChildShard, ...]
    nbytes: int


EMPTY_RECORDS = pa.RecordBatch.from_pylist([], schema=WIRE_SCHEMA)


def decode_payload(buffer: bytes | bytearray, start: int = 0, end: int | None = None) -> DecodedPayload:
    """Decode one SubscribeToShardEvent or one GetRecords answer, which is `buffer[start:end]`.

    Raises:
        PayloadDecodeError: it is not JSON, lacks a required member, or holds data that is not base64.
    """
    end = len(buffer) if end is None else end
    try:
        payload, blobs = _decode(buffer, start, end)
        records, nbytes = _to_arrow(payload.records, blobs)
    # binascii.Error, which pybase64 raises, is a ValueError; so are msgspec's and Arrow's own errors.
    except (ValueError, OverflowError) as error:
        raise PayloadDecodeError(f"not a payload of records: {error}") from error
    return DecodedPayload(
        records=records,
        continuation=payload.continuation,
        next_iterator=payload.next_iterator,
        last_sequence_number=payload.records[-1].sequence if payload.records else None,
        millis_behind_latest=payload.behind or 0,
        child_shards=tuple(_child_shard(child) for child in payload.children or ()),
        nbytes=nbytes,
    )


def _decode(buffer: bytes | bytearray, start: int, end: int) -> tuple[_Payload, list[bytes]]:
    characters = _first_data_characters(buffer, start, end)
    if characters >= _CUT_CHARACTERS and (cut := _cut(buffer, start, end)) is not None:
        return cut
    view = memoryview(buffer)[start:end]
    if characters >= _TEXT_CHARACTERS:
        texts = _decode_text(view)
        decode = pybase64.b64decode
        return texts, [decode(record.data, None, True) for record in texts.records]
    payload = _decode_bytes(view)
    return payload, [record.data for record in payload.records]


def _first_data_characters(buffer: bytes | bytearray, start: int, end: int) -> int:
    """The size of records, by the first; a wrong guess costs time, never a wrong result."""
    key = buffer.find(_DATA_KEY, start, min(end, start + _FIRST_DATA_WITHIN))
    text = key + len(_DATA_KEY)
    return 0 if key < 0 else buffer.find(b'"', text, end) - text


def _cut(buffer: bytes | bytearray, start: int, end: int) -> tuple[_TextPayload, list[bytes]] | None:
    """Decode with the data cut out; None if the JSON is written in a way that only a whole decode can read.

    A quote inside a JSON string is escaped, so `"Data":"` begins a member, and the next quote ends its value: base64
    has neither quotes nor escapes.
    """
    view = memoryview(buffer)
    find = buffer.find
    rest: list[bytes | bytearray] = []
    texts: list[memoryview] = []
    position = start
    while (key := find(_DATA_KEY, position, end)) >= 0:
        text_start = key + len(_DATA_KEY)
        text_end = find(b'"', text_start, end)
        if text_end < 0:
            return None
        rest.append(buffer[position:text_start])
        texts.append(view[text_start:text_end])
        position = text_end
    rest.append(buffer[position:end])
    # Every record still has to have its member, now empty: else a text could come to the wrong record.
    payload = _decode_text(b"".join(rest))
    if len(payload.records) != len(texts):
        return None
    decode = pybase64.b64decode
    try:
        return payload, [decode(text, None, True) for text in texts]
    except ValueError:
        # Perhaps a slash was escaped: JSON allows it.
        return None


def _to_arrow(
    records: Sequence[_BytesRecord] | Sequence[_TextRecord], blobs: list[bytes]
) -> tuple[pa.RecordBatch, int]:
    if not records:
        return EMPTY_RECORDS, 0
    data, data_bytes = binary_column(blobs)
    keys, key_bytes = string_column([record.key for record in records])
    sequences, _ = string_column([record.sequence for record in records])
    columns = [
        data,
        keys,
        sequences,
        arrival_column([record.arrival for record in records]),
        encryption_column([record.encryption for record in records]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA), data_bytes + key_bytes


def _child_shard(child: _ChildShard) -> ChildShard:
    return ChildShard(
        shard_id=child.shard_id,
        parent_shard_ids=child.parents,
        starting_hash_key=child.hash_keys.starting,
        ending_hash_key=child.hash_keys.ending,
    )
