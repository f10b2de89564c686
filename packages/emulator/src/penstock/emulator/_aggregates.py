"""Aggregates of the Kinesis Producer Library, for tests of what reads them: whole, and broken in every way.

An aggregate is `F3 89 9A C2`, a protobuf (version 2) body, and the MD5 of the body. The body holds a table of partition
keys (field 1), a table of explicit hash keys (2), and records (3), each with the indexes of its keys (1, 2) and its
data (3).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import md5
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from penstock.emulator._state.hash_keys import hash_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MAGIC = b"\xf3\x89\x9a\xc2"
_KEY, _HASH_KEY, _RECORD = 1, 2, 3
_INDEX_OF_KEY, _INDEX_OF_HASH_KEY, _DATA = 1, 2, 3
_MISSING = 1_000_000
"""An index that no table of a test reaches."""


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A record within an aggregate. Kinesis looks at none of it, so a test may write what no producer should.

    Attributes:
        data: the payload.
        partition_key: a text; bytes that need not be UTF-8; None to refer to an entry that the table does not have.
        explicit_hash_key: decimal digits, or anything else; None for a record without one.
    """

    data: bytes
    partition_key: str | bytes | None
    explicit_hash_key: str | bytes | None = None

    @property
    def hash_key(self) -> int:
        """Where Kinesis would put the record: its explicit hash key, or the MD5 of its partition key.

        Raises:
            ValueError: the record has no partition key that is a text, or its explicit hash key is not a number.
        """
        if self.explicit_hash_key is not None:
            return int(self.explicit_hash_key)
        if not isinstance(self.partition_key, str):
            raise ValueError(f"no hash key follows from the partition key {self.partition_key!r}")
        return hash_key(self.partition_key)


def aggregate(
    records: Iterable[UserRecord],
    *,
    unused_keys: Iterable[str | bytes] = (),
    unused_hash_keys: Iterable[str | bytes] = (),
) -> bytes:
    """Pack user records into the data of one Kinesis record, whatever shards their keys belong to.

    Args:
        records: in the order in which a reader delivers them.
        unused_keys: further entries of the table of partition keys, which no record refers to.
        unused_hash_keys: further entries of the table of explicit hash keys.
    """
    keys: dict[bytes, int] = {}
    hash_keys: dict[bytes, int] = {}
    packed = []
    for record in records:
        key = _MISSING if record.partition_key is None else _entry(keys, record.partition_key)
        fields = _number(_INDEX_OF_KEY, key)
        if record.explicit_hash_key is not None:
            fields += _number(_INDEX_OF_HASH_KEY, _entry(hash_keys, record.explicit_hash_key))
        packed.append(fields + _bytes(_DATA, record.data))
    for table, unused in ((keys, unused_keys), (hash_keys, unused_hash_keys)):
        for text in unused:
            _entry(table, text)
    return _framed(
        b"".join(
            _bytes(number, value)
            for number, values in ((_KEY, keys), (_HASH_KEY, hash_keys), (_RECORD, packed))
            for value in values
        )
    )


def routed_aggregates(records: Iterable[UserRecord], shards: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
    """Pack user records as the Kinesis Producer Library does: an aggregate holds records of one open shard.

    Args:
        records: with valid keys.
        shards: as `list_shards` of boto3 returns them under `Shards`; closed ones take no records.

    Returns:
        The aggregates by shard id. Put each with the `StartingHashKey` of its shard as `ExplicitHashKey`.
    """
    ranges = {
        shard["ShardId"]: [int(shard["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey")]
        for shard in shards
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    }
    of_shards: dict[str, list[UserRecord]] = {}
    for record in records:
        shard_id = next(one for one, (first, last) in ranges.items() if first <= record.hash_key <= last)
        of_shards.setdefault(shard_id, []).append(record)
    return {shard_id: aggregate(found) for shard_id, found in of_shards.items()}


def partition_keys_in(first: int, last: int, number: int) -> list[str]:
    """Return different partition keys whose hash keys lie between two, both included.

    Args:
        first: the lowest hash key, 0 to 2^128 - 1.
        last: the highest one.
        number: how many keys. A range of a thousandth of all hash keys takes a thousand tries for each.
    """
    return list(islice((key for key in (f"key-{n}" for n in count()) if first <= hash_key(key) <= last), number))


def malformed_aggregates() -> dict[str, bytes]:
    """Return data that begins like an aggregate but is not one, by what is wrong with it."""
    sound = aggregate([UserRecord(b"data", "key")])
    body = sound[len(_MAGIC) : -16]
    return {
        "checksum": sound[:-1] + bytes([sound[-1] ^ 1]),
        "cut off": sound[:-1],
        "something behind it": sound + b"more",
        "magic number alone": _MAGIC,
        "body cut off": _framed(body[:-1]),
        "no user record": _framed(_bytes(_KEY, b"key")),
        "user record without data": _framed(_bytes(_KEY, b"key") + _bytes(_RECORD, _number(_INDEX_OF_KEY, 0))),
        "user record without key": _framed(_bytes(_KEY, b"key") + _bytes(_RECORD, _bytes(_DATA, b"data"))),
    }


def _entry(table: dict[bytes, int], text: str | bytes) -> int:
    """The index of an entry, which is added if it is not there."""
    entry = text.encode() if isinstance(text, str) else text
    return table.setdefault(entry, len(table))


def _framed(body: bytes) -> bytes:
    return _MAGIC + body + md5(body, usedforsecurity=False).digest()


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
