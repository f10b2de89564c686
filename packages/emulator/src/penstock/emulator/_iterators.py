"""Shard iterators as tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ._kinesis import Kinesis
    from ._shard import Shard
    from ._stream import Stream

_KIND = "shard iterator"


class ShardIterator(NamedTuple):
    """What a shard iterator says."""

    made: float
    """When it was given, in seconds since the epoch."""
    stream: str
    stream_created: float
    shard: str
    position: int
    since: float = 0.0
    """The time up to which the shard was looked through, in seconds since the epoch."""


def make_iterator(kinesis: Kinesis, stream: Stream, shard: Shard, *, position: int, since: float, now: float) -> str:
    """Make the token of an iterator."""
    return kinesis.tokens.seal(_KIND, list(ShardIterator(now, stream.name, stream.created, shard.id, position, since)))


def open_iterator(kinesis: Kinesis, token: str) -> ShardIterator | None:
    """Read the token of an iterator; None where it is none of this emulator's."""
    content = kinesis.tokens.open(_KIND, token)
    return ShardIterator(*content) if content is not None else None
