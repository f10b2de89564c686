"""Positions in shards and the ranges between two of them: pure values, exact and self-contained.

Rules that keep offsets exact and small:

* A child shard enters the positions when every parent stands at SHARD_END in them; it enters at TRIM_HORIZON
  or further.
* A parent leaves them when it stood at SHARD_END in the *start* of a step and all of its children were in
  that start too. So two successive positions always show a shard's end before the shard is gone: a shard that
  left has no range, and a shard that is in the end of a step only is truly new and is read from TRIM_HORIZON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.efo_consumer.errors import PositionsError

_VERSION = 1


class PositionType(StrEnum):
    """Kinds of a position in a shard; the names are those of the offsets' JSON and of the gRPC contract."""

    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"
    SHARD_END = "SHARD_END"


@dataclass(frozen=True)
class ShardPosition:
    """A position in a shard, between two records.

    Attributes:
        type: what the position is measured by.
        timestamp_millis: milliseconds since the epoch, with AT_TIMESTAMP: before the first record that
            arrived then or later.
        sequence_number: decimal digits, with AFTER_SEQUENCE_NUMBER: after that record, or after the gap that
            it names.
        caught_up_millis: a time, in milliseconds since the epoch, at which no record lay beyond the position, with
            AFTER_SEQUENCE_NUMBER. It tells an idle shard from lost records, and makes no other position of it.

    Raises:
        PositionsError: a field is missing, superfluous or malformed.
    """

    type: PositionType
    timestamp_millis: int | None = None
    sequence_number: str | None = None
    caught_up_millis: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if (self.timestamp_millis is not None) != (self.type is PositionType.AT_TIMESTAMP):
            raise PositionsError(f"{self.type} and timestamp {self.timestamp_millis} do not go together")
        if (self.sequence_number is not None) != (self.type is PositionType.AFTER_SEQUENCE_NUMBER):
            raise PositionsError(f"{self.type} and sequence number {self.sequence_number!r} do not go together")
        if self.sequence_number is not None and not (self.sequence_number.isascii() and self.sequence_number.isdigit()):
            raise PositionsError(f"sequence number {self.sequence_number!r} is not decimal digits")

    @classmethod
    def trim_horizon(cls) -> ShardPosition:
        """Before the oldest record that the stream holds."""
        return _TRIM_HORIZON

    @classmethod
    def at_timestamp(cls, millis: int) -> ShardPosition:
        """Before the first record that arrived at `millis` (since the epoch) or later."""
        return cls(PositionType.AT_TIMESTAMP, timestamp_millis=millis)

    @classmethod
    def after(cls, sequence_number: str) -> ShardPosition:
        """After the record with this sequence number, or after the gap that a continuation names."""
        return cls(PositionType.AFTER_SEQUENCE_NUMBER, sequence_number=sequence_number)

    @classmethod
    def shard_end(cls) -> ShardPosition:
        """After the last record of a closed shard."""
        return _SHARD_END

    @property
    def is_shard_end(self) -> bool:
        """Whether nothing can follow in this shard."""
        return self.type is PositionType.SHARD_END

    @property
    def rank(self) -> tuple[int, int]:
        """The total order of positions of one shard; sequence numbers count as integers.

        TRIM_HORIZON and AT_TIMESTAMP share the first rank: which of them is earlier is known to the service
        only.
        """
        if self.sequence_number is not None:
            return (1, int(self.sequence_number))
        return (2, 0) if self.is_shard_end else (0, 0)

    def __str__(self) -> str:
        value = self.timestamp_millis if self.sequence_number is None else self.sequence_number
        return self.type.value if value is None else f"{self.type.value} {value}"

    def to_json(self) -> dict[str, Any]:
        """Give `{"type": …, "value": …}`; TRIM_HORIZON and SHARD_END have no value. `caughtUp` is there if known."""
        value = self.timestamp_millis if self.sequence_number is None else self.sequence_number
        document: dict[str, Any] = {"type": self.type.value}
        if value is not None:
            document["value"] = value
        if self.caught_up_millis is not None:
            document["caughtUp"] = self.caught_up_millis
        return document

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardPosition:
        """Read what `to_json` gave.

        Raises:
            PositionsError: the value is not a position.
        """
        try:
            kind = PositionType(value["type"])
        except (KeyError, TypeError, ValueError) as error:
            raise PositionsError(f"{value!r} is not a position in a shard") from error
        if kind is PositionType.AT_TIMESTAMP:
            millis = value.get("value")
            if not isinstance(millis, int) or isinstance(millis, bool):
                raise PositionsError(f"AT_TIMESTAMP needs milliseconds, got {millis!r}")
            return cls.at_timestamp(millis)
        if kind is PositionType.AFTER_SEQUENCE_NUMBER:
            sequence_number = value.get("value")
            if not isinstance(sequence_number, str):
                raise PositionsError(f"AFTER_SEQUENCE_NUMBER needs a string of digits, got {sequence_number!r}")
            caught_up = value.get("caughtUp")
            if caught_up is not None and (not isinstance(caught_up, int) or isinstance(caught_up, bool)):
                raise PositionsError(f"caughtUp needs milliseconds, got {caught_up!r}")
            return cls(kind, sequence_number=sequence_number, caught_up_millis=caught_up)
        return cls(kind)


_TRIM_HORIZON = ShardPosition(PositionType.TRIM_HORIZON)
_SHARD_END = ShardPosition(PositionType.SHARD_END)


@dataclass(frozen=True)
class StreamPositions:
    """A position in every shard that matters, of one or more streams.

    Attributes:
        streams: per stream name, per shard id, one position.
    """

    streams: Mapping[str, Mapping[str, ShardPosition]]

    def get(self, stream_name: str, shard_id: str) -> ShardPosition | None:
        """Give the position of a shard, None when it has none."""
        return self.streams.get(stream_name, {}).get(shard_id)

    def to_json(self) -> dict[str, Any]:
        """Give `{"version": 1, "streams": {stream: {shard: position}}}`, in a stable order."""
        return {
            "version": _VERSION,
            "streams": {
                stream: {shard: position.to_json() for shard, position in sorted(shards.items())}
                for stream, shards in sorted(self.streams.items())
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamPositions:
        """Read what `to_json` gave.

        Raises:
            PositionsError: the version is unknown, or the value is not positions.
        """
        version = value.get("version") if isinstance(value, Mapping) else None
        if version != _VERSION:
            raise PositionsError(f"positions of version {version!r} are not understood, only {_VERSION}")
        streams = value.get("streams")
        if not isinstance(streams, Mapping) or not all(isinstance(shards, Mapping) for shards in streams.values()):
            raise PositionsError("positions need one object of shards per stream")
        return cls(
            {
                stream: {shard: ShardPosition.from_json(position) for shard, position in shards.items()}
                for stream, shards in streams.items()
            }
        )


@dataclass(frozen=True)
class ShardRange:
    """The records of one shard after a position up to another; always the same records.

    Attributes:
        stream_name: the stream.
        shard_id: the shard.
        after: exclusive; anything but SHARD_END.
        upto: inclusive; AFTER_SEQUENCE_NUMBER or SHARD_END.

    Raises:
        PositionsError: the bounds are not of these kinds, or `upto` lies before `after`.
    """

    stream_name: str
    shard_id: str
    after: ShardPosition
    upto: ShardPosition

    def __post_init__(self) -> None:
        if self.after.is_shard_end or self.upto.rank[0] == 0 or self.upto.rank < self.after.rank:
            raise PositionsError(f"{self} is not a range")

    def __str__(self) -> str:
        return f"{self.stream_name}/{self.shard_id} ({self.after}, {self.upto}]"


def ranges_between(start: StreamPositions, end: StreamPositions) -> list[ShardRange]:
    """Give the ranges that lead from `start` to `end`, ordered by stream and shard.

    A shard in both gives the range between its positions, none when they are equal. A shard in `end` only is
    a child that entered: from TRIM_HORIZON (no range while it stands there itself). A shard in `start` only
    has left at its SHARD_END: no range.

    Raises:
        PositionsError: a shard moved backwards, or left before its end, or a whole stream left.
    """
    ranges: list[ShardRange] = []
    for stream, shards in sorted(end.streams.items()):
        for shard, upto in sorted(shards.items()):
            after = start.get(stream, shard) or ShardPosition.trim_horizon()
            if after != upto:
                ranges.append(ShardRange(stream, shard, after, upto))
    for stream, shards in start.streams.items():
        for shard, position in shards.items():
            if end.get(stream, shard) is None and not position.is_shard_end:
                raise PositionsError(f"{stream}/{shard} left the positions at {position}, before its end")
    return ranges
