"""Rows that no destination takes, found before they are sent."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.spark_plugin._writing._value_text import compute, decoded, is_utf8

_LONGEST_KEY = 256
_MAX_HASH_KEY = (1 << 128) - 1
_WIDER = " (maxRecordSizeInBytes; a stream may be set to take up to 10m)"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be written, and why."""

    index: int
    """In its record batch."""
    reason: str


def bad_rows(batch: Any, streams: Any, *, firehose: bool, max_record_bytes: int, needs_stream: bool) -> list[BadRow]:
    """The bad rows among records, in their order, each with the first thing that is wrong with it.

    `streams` is the column of streams, or None; with `needs_stream` a null there has no default.
    """
    found: dict[int, str] = {}

    def mark(wrong: Any, reason: str) -> None:
        if wrong is not None and compute.any(wrong).as_py():
            for index in compute.indices_nonzero(wrong).to_pylist():
                found.setdefault(index, reason)

    if streams is not None:
        mark(_no_text(streams), "its stream is no UTF-8")
    data = batch.column("data")
    lengths = sizes = compute.binary_length(data)
    if needs_stream and streams is not None:
        mark(compute.is_null(streams), "its stream is null, and the options name none")
    mark(_nulls(data), "its data is null")
    if firehose:
        mark(compute.equal(lengths, 0), "its data is empty, which Firehose does not take")
    else:
        keys = batch.column("partitionKey")
        key_bytes = compute.binary_length(keys)
        sizes = compute.add(lengths, key_bytes)
        mark(_nulls(keys), "its partition key is null")
        mark(_no_text(keys), "its partition key is no UTF-8")
        bounds = compute.min_max(key_bytes).as_py()
        # Characters are at most bytes: they are counted only where that does not settle it.
        if bounds["min"] == 0 or (bounds["max"] or 0) > _LONGEST_KEY:
            characters = compute.utf8_length(keys)
            mark(
                compute.or_(compute.less(characters, 1), compute.greater(characters, _LONGEST_KEY)),
                f"its partition key has not 1 to {_LONGEST_KEY} characters",
            )
        if "explicitHashKey" in batch.schema.names:
            hash_keys = batch.column("explicitHashKey")
            mark(_no_text(hash_keys), "its explicitHashKey is no UTF-8")
            for index, key in enumerate(decoded(hash_keys)):
                if key is not None and not _is_hash_key(key):
                    found.setdefault(index, "its explicitHashKey is no decimal number below 2^128")
    if (compute.max(sizes).as_py() or 0) > max_record_bytes:
        wider = "" if firehose else _WIDER
        mark(compute.greater(sizes, max_record_bytes), f"it is larger than {max_record_bytes} bytes{wider}")
    return [BadRow(index, found[index]) for index in sorted(found)]


def _nulls(column: Any) -> Any:
    return compute.is_null(column) if column.null_count else None


def _no_text(texts: Any) -> Any:
    if is_utf8(texts):
        return None
    readable = pa.array(decoded(texts), pa.string()).cast(pa.binary())
    return compute.not_equal(texts.cast(pa.binary()), readable)


def _is_hash_key(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) <= 39 and int(key) <= _MAX_HASH_KEY
