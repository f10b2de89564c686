"""Hash keys: where a record belongs, and how the key space is cut."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import md5

MAX_HASH_KEY = 2**128 - 1


def hash_key(partition_key: str) -> int:
    """The MD5 of a partition key as a 128-bit number (API reference, PutRecord)."""
    return int.from_bytes(md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


@dataclass(frozen=True, slots=True)
class HashKeyRange:
    """Hash keys from `start` to `end`, both included."""

    start: int
    end: int

    def __contains__(self, key: int) -> bool:
        return self.start <= key <= self.end

    def as_dict(self) -> dict[str, str]:
        """The range as the API writes it."""
        return {"StartingHashKey": str(self.start), "EndingHashKey": str(self.end)}


def uniform_starts(count: int) -> list[int]:
    """The starting hash keys of `count` ranges of equal size."""
    width = (MAX_HASH_KEY + 1) // count
    return [index * width for index in range(count)]


def uniform_ranges(count: int) -> list[HashKeyRange]:
    """Cut the key space into `count` ranges of equal size; the last takes the rest of the division."""
    starts = uniform_starts(count)
    ends = [start - 1 for start in starts[1:]] + [MAX_HASH_KEY]
    return [HashKeyRange(start, end) for start, end in zip(starts, ends, strict=True)]
