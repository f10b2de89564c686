"""The aggregated record of the Kinesis Producer Library, put together, and the shards it may go to. No I/O.

An aggregate is `F3 89 9A C2`, a protobuf (version 2) body, and the MD5 of the body. The body holds a table of partition
keys (field 1), a table of explicit hash keys (2), and records (3), each with the indexes of its keys (1, 2) and its
data (3). It is written byte by byte: a message object per record would cost more than the record.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry
from penstock.async_sink.errors import SinkOptionError


class ShardRanges:
    """What ListShards said: open shards by hash key, and the range of every shard by its id.

    A list may lag behind a resharding, and show one child of a shard before the other: the open shards have holes then.
    """

    def __init__(self, shards: Iterable[Mapping[str, Any]], closed: Container[str] = ()) -> None:
        """`shards` as the API describes them; `closed` are those of them that are known to be closed, now or later."""
        open_shards = []
        self._ranges: dict[str, tuple[int, int]] = {}
        for shard in shards:
            keys = shard["HashKeyRange"]
            start, end = int(keys["StartingHashKey"]), int(keys["EndingHashKey"])
            self._ranges[shard["ShardId"]] = start, end
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                open_shards.append((start, end, shard["ShardId"]))
        open_shards.sort()
        self._starts = [start for start, _, _ in open_shards]
        self._open = open_shards
        self._closed = closed

    def shard_of(self, hash_key: int) -> str:
        """The open shard of a hash key; empty when none is known."""
        place = bisect_right(self._starts, hash_key) - 1
        if place < 0:
            return ""
        _, end, shard_id = self._open[place]
        return "" if hash_key > end or shard_id in self._closed else shard_id

    def range_of(self, shard_id: str) -> tuple[int, int] | None:
        """First and last hash key of a shard, open or closed; None when it is not known."""
        return self._ranges.get(shard_id)


MAGIC = b"\xf3\x89\x9a\xc2"
_FRAME_BYTES = len(MAGIC) + 16
# Tags of the body's fields and of a record's: number << 3 | wire type.
_KEY, _HASH_KEY, _RECORD = b"\x0a", b"\x12", b"\x1a"
_KEY_INDEX, _HASH_KEY_INDEX, _DATA = b"\x08", b"\x10", b"\x1a"


@dataclass(frozen=True, kw_only=True)
class AggregationConfig:
    """How user records are packed into aggregates.

    Raises:
        SinkOptionError: a limit is out of range.
    """

    max_aggregate_bytes: int = 51_200
    """Bytes of an aggregate, unless a single record is larger. Default: AggregationMaxSize of the producer library."""
    max_aggregate_records: int = 1_000_000
    """User records in an aggregate."""

    def __post_init__(self) -> None:
        if not 64 <= self.max_aggregate_bytes <= 1024 * 1024:
            raise SinkOptionError("max_aggregate_bytes", f"{self.max_aggregate_bytes} must be 64 to 1048576")
        if self.max_aggregate_records < 1:
            raise SinkOptionError("max_aggregate_records", f"{self.max_aggregate_records} must be at least 1")


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Aggregate:
    """User records on their way into one record of the stream."""

    def __init__(self, hash_key: int) -> None:
        """`hash_key` is that of the first user record: it sends the aggregate to the shard."""
        self.hash_key = hash_key
        self.places: list[int] = []
        """Of the user records in the request, as the caller counts them."""
        self._entries: list[KinesisRequestEntry] = []
        self._keys: dict[str, bytes] = {}
        self._hash_keys: dict[str, bytes] = {}
        self._tables: list[bytes] = []
        self._records: list[bytes] = []
        self._size = _FRAME_BYTES

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the record that it makes, its partition key included, or a little more."""
        return self._size + len(self._entries[0].partition_key.encode())

    def add(self, entry: KinesisRequestEntry, place: int, config: AggregationConfig) -> bool:
        """Add a user record; False when it does not fit any more. The first one always fits."""
        new: list[tuple[dict[str, bytes], str, bytes, bytes]] = []
        index = self._keys.get(entry.partition_key)
        if index is None:
            index = _varint(len(self._keys))
            new.append((self._keys, entry.partition_key, index, _KEY))
        head = _KEY_INDEX + index
        if entry.explicit_hash_key is not None:
            hash_index = self._hash_keys.get(entry.explicit_hash_key)
            if hash_index is None:
                hash_index = _varint(len(self._hash_keys))
                new.append((self._hash_keys, entry.explicit_hash_key, hash_index, _HASH_KEY))
            head += _HASH_KEY_INDEX + hash_index
        head += _DATA + _varint(len(entry.data))
        record = b"".join((_RECORD, _varint(len(head) + len(entry.data)), head, entry.data))
        tables = []
        for _, key, _, tag in new:
            encoded = key.encode()
            tables.append(b"".join((tag, _varint(len(encoded)), encoded)))
        size = self._size + len(record) + sum(map(len, tables))
        if self._entries and (size > config.max_aggregate_bytes or len(self._entries) >= config.max_aggregate_records):
            return False
        for table, key, key_index, _ in new:
            table[key] = key_index
        self._tables += tables
        self._records.append(record)
        self._entries.append(entry)
        self.places.append(place)
        self._size = size
        return True

    def to_entry(self) -> KinesisRequestEntry:
        """What goes to the stream: the aggregate, or a lone user record as it is."""
        first = self._entries[0]
        if len(self._entries) == 1:
            return first
        # The order of the tables' entries among each other is free: fields of one number keep theirs.
        body = b"".join((*self._tables, *self._records))
        data = b"".join((MAGIC, body, hashlib.md5(body, usedforsecurity=False).digest()))
        return KinesisRequestEntry(data, first.partition_key, str(self.hash_key))
