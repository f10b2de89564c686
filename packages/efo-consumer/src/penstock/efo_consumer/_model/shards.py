"""Streams and their shards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


PER_SHARD = "PENSTOCK_METRICS_PER_SHARD"
"""Variable of the environment: `true` gives metrics the attribute `shard`, and so a time series for each shard."""


@cache
def per_shard() -> bool:
    """Whether this process tells its shards apart in metrics. Streams have thousands of shards, and backends a bill."""
    return os.environ.get(PER_SHARD, "").strip().lower() in ("1", "true", "yes")


def of_shard(stream: str, shard_id: str) -> dict[str, str]:
    """The attributes of what is counted for a shard."""
    return {"stream": stream, "shard": shard_id} if per_shard() else {"stream": stream}


MAX_EVENT_BYTES = 10 * 1024 * 1024
"""What one answer of GetRecords holds at most (API reference); events of subscriptions are smaller."""


@dataclass(frozen=True)
class StreamIdentity:
    """A stream by its name, and by its ARN where that is known (needed across accounts)."""

    name: str
    arn: str | None = None

    @classmethod
    def of(cls, name: str) -> StreamIdentity:
        """The stream of a position's name, which may be its ARN; that is then kept as its name, too."""
        return cls(name, name if name.startswith("arn:") else None)

    @property
    def request(self) -> dict[str, str]:
        """The members of a request that say which stream is meant."""
        return {"StreamName": self.name} if self.arn is None else {"StreamARN": self.arn}


@dataclass(frozen=True)
class Shard:
    """A shard, as ListShards shows it or as the end of its parent names it.

    Attributes:
        shard_id: such as `shardId-000000000000`.
        parent_shard_ids: none, one after a split, two after a merge. Expired parents may be named or missing.
        starting_hash_key: decimal, inclusive, as the service writes it.
        ending_hash_key: decimal, inclusive.
        starting_sequence_number: before the first record; None where only the parent's end named the shard.
        ending_sequence_number: None while the shard is open, or where that is not known.
    """

    shard_id: str
    parent_shard_ids: tuple[str, ...] = ()
    starting_hash_key: str = ""
    ending_hash_key: str = ""
    starting_sequence_number: str | None = None
    ending_sequence_number: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether records can still be written to it."""
        return self.ending_sequence_number is None

    def is_covered_by(self, children: Collection[Shard]) -> bool:
        """Whether these are all of its children, as far as hash keys are known.

        Every hash key of a shard is one of a child's; ListShards may show one child before the other.
        """
        if not all(one.ending_hash_key for one in (self, *children)):
            return True
        key, last = int(self.starting_hash_key), int(self.ending_hash_key)
        for child in sorted(children, key=lambda one: int(one.starting_hash_key)):
            if int(child.starting_hash_key) > key:
                return False
            key = max(key, int(child.ending_hash_key) + 1)
        return key > last
