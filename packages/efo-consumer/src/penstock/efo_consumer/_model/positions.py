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
from functools import cached_property
from typing import Any

from penstock.efo_consumer._model.packing import PackedPosition, pack, unpack
from penstock.efo_consumer.errors import PositionsError

_VERSION = 2
_PACKED_VERSION = 3
_READ_VERSIONS = (1, _VERSION, _PACKED_VERSION)
# Fewer are better read as they are.
_PACKED_SHARDS = 64


class PositionType(StrEnum):
    """Kinds of a position in a shard; the offsets' JSON and the gRPC contract use the same names."""

    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"
    SHARD_END = "SHARD_END"


@dataclass(frozen=True)
class ShardPosition:
    """A position in a shard, between two records, and what proves later that nothing was lost beyond it.

    The first three fields are the position; the others are facts about it, and two positions that differ only in these
    are equal.

    Attributes:
        type: what the position is measured by.
        timestamp_millis: milliseconds since the epoch, with AT_TIMESTAMP: before the first record that
            arrived then or later.
        sequence_number: decimal digits, with AFTER_SEQUENCE_NUMBER: after that record, or after the gap that
            a continuation names.
        record: sequence number of the last record delivered at or before the position, with AFTER_SEQUENCE_NUMBER and
            SHARD_END; empty if none was delivered since reading of the shard began. None if unknown, as in offsets of
            version 1.
        arrived_millis: arrival time of that record, in milliseconds since the epoch.
        caught_up_millis: every record that arrived before this time, by the service's clock in milliseconds since the
            epoch, lies at or before the position. With SHARD_END a time at which the shard was open still.
        first_record: sequence number of the first record of the range that ends here, if that range began at
            AT_TIMESTAMP or TRIM_HORIZON and held any.

    Raises:
        PositionsError: a field is missing, superfluous or malformed.
    """

    type: PositionType
    timestamp_millis: int | None = None
    sequence_number: str | None = None
    caught_up_millis: int | None = field(default=None, compare=False)
    record: str | None = field(default=None, compare=False)
    arrived_millis: int | None = field(default=None, compare=False)
    first_record: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if (self.timestamp_millis is not None) != (self.type is PositionType.AT_TIMESTAMP):
            raise PositionsError(f"{self.type} and timestamp {self.timestamp_millis} do not go together")
        if (self.sequence_number is not None) != (self.type is PositionType.AFTER_SEQUENCE_NUMBER):
            raise PositionsError(f"{self.type} and sequence number {self.sequence_number!r} do not go together")
        for number in (self.sequence_number, self.record or None, self.first_record):
            if number is not None and not (number.isascii() and number.isdigit()):
                raise PositionsError(f"sequence number {number!r} is not decimal digits")

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

    @cached_property
    def rank(self) -> tuple[int, int]:
        """The total order of positions of one shard; sequence numbers count as integers.

        TRIM_HORIZON and AT_TIMESTAMP share the first rank: which of them is earlier is known to the service
        only.
        """
        if self.sequence_number is not None:
            return (1, int(self.sequence_number))
        return (2, 0) if self.is_shard_end else (0, 0)

    @property
    def with_facts(self) -> tuple[PositionType, int | None, str | None, int | None, str | None, int | None, str | None]:
        """All fields in their order, to compare what is known of two positions, too."""
        return (
            self.type,
            self.timestamp_millis,
            self.sequence_number,
            self.caught_up_millis,
            self.record,
            self.arrived_millis,
            self.first_record,
        )

    def __str__(self) -> str:
        value = self.timestamp_millis if self.sequence_number is None else self.sequence_number
        return self.type.value if value is None else f"{self.type.value} {value}"

    @property
    def known_millis(self) -> int | None:
        """A time before which no record can be missing beyond the position, by the service's clock; None if unknown.

        The latest of what is known: the time that the position names, the arrival of the last record, and when the
        shard was last caught up.
        """
        known = (self.timestamp_millis, self.arrived_millis, self.caught_up_millis)
        return max((millis for millis in known if millis is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """Give `{"type": …, "value": …}` and the facts that are known: `record`, `arrived`, `caughtUp`, `first`.

        TRIM_HORIZON and SHARD_END have no value. `record` is left out if it is the value and `arrived` is there.
        """
        value = self.timestamp_millis if self.sequence_number is None else self.sequence_number
        is_value = self.arrived_millis is not None and self.record == self.sequence_number
        members = {
            "value": value,
            "record": None if is_value else self.record,
            "arrived": self.arrived_millis,
            "caughtUp": self.caught_up_millis,
            "first": self.first_record,
        }
        return {"type": self.type.value, **{name: member for name, member in members.items() if member is not None}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardPosition:
        """Read what `to_json` gave, of this version or an earlier one.

        Raises:
            PositionsError: the value is not a position.
        """
        try:
            kind = PositionType(value["type"])
        except (KeyError, TypeError, ValueError) as error:
            raise PositionsError(f"{value!r} is not a position in a shard") from error
        sequence_number = None
        timestamp = None
        if kind is PositionType.AT_TIMESTAMP:
            timestamp = _millis(value, "value", f"{kind}")
            if timestamp is None:
                raise PositionsError(f"AT_TIMESTAMP needs milliseconds, got {value.get('value')!r}")
        elif kind is PositionType.AFTER_SEQUENCE_NUMBER:
            sequence_number = _number(value, "value", f"{kind}")
            if sequence_number is None:
                raise PositionsError(f"AFTER_SEQUENCE_NUMBER needs a string of digits, got {value.get('value')!r}")
        arrived = _millis(value, "arrived")
        record = _number(value, "record")
        return cls(
            kind,
            timestamp_millis=timestamp,
            sequence_number=sequence_number,
            caught_up_millis=_millis(value, "caughtUp"),
            record=sequence_number if record is None and arrived is not None else record,
            arrived_millis=arrived,
            first_record=_number(value, "first"),
        )


def _millis(value: Mapping[str, Any], name: str, of: str | None = None) -> int | None:
    millis = value.get(name)
    if millis is not None and (not isinstance(millis, int) or isinstance(millis, bool)):
        raise PositionsError(f"{of or name} needs milliseconds, got {millis!r}")
    return millis


def _number(value: Mapping[str, Any], name: str, of: str | None = None) -> str | None:
    number = value.get(name)
    if number is not None and not isinstance(number, str):
        raise PositionsError(f"{of or name} needs a string of digits, got {number!r}")
    return number


def after_record(sequence_number: str, arrived_millis: int) -> ShardPosition:
    """Give the position after a record that was delivered."""
    return ShardPosition(
        PositionType.AFTER_SEQUENCE_NUMBER,
        sequence_number=sequence_number,
        record=sequence_number,
        arrived_millis=arrived_millis,
    )


_TRIM_HORIZON = ShardPosition(PositionType.TRIM_HORIZON)
_SHARD_END = ShardPosition(PositionType.SHARD_END)


@dataclass(frozen=True)
class StreamPositions:
    """A position in every shard that matters, of one or more streams.

    Attributes:
        streams: per stream name, per shard id, one position.
        created: per stream name, when the stream was created, by the service in milliseconds since the epoch, where
            that is known. It distinguishes a stream from another one of the same name. Like the facts of a position it
            is not compared.
    """

    streams: Mapping[str, Mapping[str, ShardPosition]]
    created: Mapping[str, int] = field(default_factory=dict, compare=False)

    def get(self, stream_name: str, shard_id: str) -> ShardPosition | None:
        """Give the position of a shard; None without one."""
        return self.streams.get(stream_name, {}).get(shard_id)

    def to_json(self) -> dict[str, Any]:
        """Give `{"version": 2, "streams": {stream: {shard: position}}, "created": {stream: millis}}`, in stable order.

        `created` is left out if nothing is known. Positions of a stream with 64 shards or more are a packed text, and
        the version is 3.
        """
        streams = {stream: _shards_to_json(shards) for stream, shards in sorted(self.streams.items())}
        is_packed = any(isinstance(shards, str) for shards in streams.values())
        document: dict[str, Any] = {"version": _PACKED_VERSION if is_packed else _VERSION, "streams": streams}
        if self.created:
            document["created"] = dict(sorted(self.created.items()))
        return document

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamPositions:
        """Read what `to_json` gave, of this version or an earlier one.

        Raises:
            PositionsError: the version is unknown, or the value is not positions.
        """
        version = value.get("version") if isinstance(value, Mapping) else None
        if version not in _READ_VERSIONS:
            raise PositionsError(
                f"unknown version {version!r} of positions (this release reads 1 to {_PACKED_VERSION})"
            )
        streams = value.get("streams")
        kinds = Mapping | str if version == _PACKED_VERSION else Mapping
        if not isinstance(streams, Mapping) or not all(isinstance(shards, kinds) for shards in streams.values()):
            raise PositionsError("positions need one object of shards per stream")
        created = value.get("created", {})
        if not isinstance(created, Mapping):
            raise PositionsError(f"created needs milliseconds per stream, got {created!r}")
        return cls(
            {stream: _shards_from_json(shards) for stream, shards in streams.items()},
            {stream: millis for stream in created if (millis := _millis(created, stream)) is not None},
        )


def _shards_to_json(shards: Mapping[str, ShardPosition]) -> dict[str, Any] | str:
    if len(shards) < _PACKED_SHARDS:
        return {shard: position.to_json() for shard, position in sorted(shards.items())}
    return pack([PackedPosition(shard, *position.with_facts) for shard, position in sorted(shards.items())])


def _shards_from_json(shards: Mapping[str, Any] | str) -> dict[str, ShardPosition]:
    if not isinstance(shards, str):
        return {shard: ShardPosition.from_json(position) for shard, position in shards.items()}
    return {one.shard_id: ShardPosition(PositionType(one.type), *one[2:]) for one in unpack(shards)}


@dataclass(frozen=True)
class ShardRange:
    """The records of one shard after a position up to another; always the same records.

    Attributes:
        stream_name: the stream.
        shard_id: the shard.
        after: exclusive; anything but SHARD_END.
        upto: inclusive; AFTER_SEQUENCE_NUMBER or SHARD_END.
        created_millis: when the stream was created, by the service in milliseconds since the epoch; None if unknown.
            Like the facts of a position it is not part of a comparison.

    Raises:
        PositionsError: the bounds are not of these kinds, or `upto` lies before `after`.
    """

    stream_name: str
    shard_id: str
    after: ShardPosition
    upto: ShardPosition
    created_millis: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.after.is_shard_end or self.upto.rank[0] == 0 or self.upto.rank < self.after.rank:
            raise PositionsError(f"{self} is not a range")

    def __str__(self) -> str:
        return f"{self.stream_name}/{self.shard_id} ({self.after}, {self.upto}]"


def ranges_between(start: StreamPositions, end: StreamPositions) -> list[ShardRange]:
    """Give the ranges that lead from `start` to `end`, ordered by stream and shard.

    A shard in both gives the range between its positions, none when they are equal. A shard in `end` only is
    a child that entered: from TRIM_HORIZON (no range while it is there itself). A shard in `start` only
    has left at its SHARD_END: no range.

    Raises:
        PositionsError: a shard moved backwards, or left before its end, or a whole stream left.
    """
    ranges: list[ShardRange] = []
    for stream, shards in sorted(end.streams.items()):
        for shard, upto in sorted(shards.items()):
            after = start.get(stream, shard) or ShardPosition.trim_horizon()
            if after is not upto and after != upto:
                ranges.append(ShardRange(stream, shard, after, upto, end.created.get(stream)))
    for stream, shards in start.streams.items():
        for shard, position in shards.items():
            if end.get(stream, shard) is None and not position.is_shard_end:
                raise PositionsError(f"{stream}/{shard} left the positions at {position}, before its end")
    return ranges
