"""Texts of options to values: durations, byte counts, times, positions; and the fields that declare options."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from penstock.efo_consumer import PositionsError, ShardPosition, StreamPositions, parse_time
from penstock.rpc import RpcOptionError, check_no_user
from penstock.spark_plugin._options.spec import USES, OptionSpec, OptionType, Place, option_name
from penstock.spark_plugin.errors import OptionError


def option(kind: str = "string", default: str | None = None, *, acts: str, only: str = "", **declared: Any) -> Any:
    """The field of an option.

    Args:
        kind: the name of its `OptionType`, in lower case.
        default: the text of its default; without one the field is None, or empty if it takes several values.
        acts: its places, with spaces; for all of them, `everywhere`.
        only: the uses in which it has an effect: read, stream or write, with spaces.
        declared: further fields of `OptionSpec`.
    """
    spec = OptionSpec(
        type=OptionType.CHOICE if kind == "string" and "choices" in declared else OptionType[kind.upper()],
        acts=tuple(Place) if acts == "everywhere" else tuple(map(Place, acts.split())),
        only=tuple(USES[use] for use in only.split()),
        default=default,
        **declared,
    )
    if spec.prefix:
        return field(default_factory=dict, metadata={"option": replace(spec, value={})})
    value = () if spec.type is OptionType.STRINGS else None if default is None else parse_value(spec, default)
    return field(default=value, repr=not spec.secret, metadata={"option": replace(spec, value=value)})


def declared(options: type, group: str) -> tuple[OptionSpec, ...]:
    """The options that a dataclass declares, in its order."""
    return tuple(
        replace(one.metadata["option"], name=option_name(one.name), field=one.name, group=group)
        for one in fields(options)
    )


_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$")
_SECONDS_PER_UNIT = {
    "ms": 0.001, "millisecond": 0.001, "milliseconds": 0.001,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_LONGEST_SECONDS = 3650 * 86400.0
_LARGEST = 2**62
"""What requests to services can carry, with room for one more."""
_BYTES_PER_UNIT = {
    "": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
    "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
}  # fmt: skip


class PositionOptionType(StrEnum):
    """Kinds of a position that an option names."""

    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    SHARDS = "SHARDS"
    """A position in each shard that is named."""
    STREAMS = "STREAMS"
    """A position for each stream."""
    SEAM = "SEAM"
    """The time in a file, which the first read that uses it writes there."""


ShardBegin = ShardPosition | Literal[PositionOptionType.LATEST]
"""Where a shard begins: LATEST becomes a time when the query begins."""


@dataclass(frozen=True, slots=True)
class PositionOption:
    """Where a query begins or ends: in all shards of all of its streams, or in each stream."""

    type: PositionOptionType
    timestamp: datetime | None = None
    """With AT_TIMESTAMP; None until `initialTimestamp` is merged in."""
    shards: Mapping[str, ShardBegin] | None = None
    """With SHARDS, which is the position of one stream."""
    streams: "Mapping[str, PositionOption] | None" = None
    """With STREAMS, by name; the stream "" is the only one."""
    seam: Path | str | None = None
    """With SEAM: a file, or an object by its URL, `s3://BUCKET/KEY`."""

    @property
    def lacks_time(self) -> bool:
        """Whether it is AT_TIMESTAMP without a time."""
        return self.type is PositionOptionType.AT_TIMESTAMP and self.timestamp is None

    def of(self, streams: Collection[str]) -> "PositionOption":
        """The part for these streams."""
        if self.streams is None or "" in self.streams:
            return self
        return replace(self, streams={name: one for name, one in self.streams.items() if name in streams})


def parse_value(spec: OptionSpec, text: str) -> Any:
    """The value of an option's text. Raises: OptionError, with the option's canonical name."""
    if spec.name.endswith("Endpoint"):
        try:
            # Here, because a password may hold a comma, at which the text is split.
            check_no_user(text)
        except RpcOptionError as error:
            raise OptionError.unusable(spec.name, error.reason) from None
    value = _PARSERS[spec.type](spec, text if spec.type is OptionType.TEXT else text.strip())
    if value is None:
        return None
    if spec.pattern is not None:
        expression, rule = spec.pattern
        for part in value if isinstance(value, tuple) else (value,):
            if re.fullmatch(expression, part) is None:
                raise _invalid(spec, part, rule)
    if spec.minimum is not None and value < spec.minimum:
        raise _invalid(spec, text, f"at least {_plain(spec.minimum)}{_UNITS.get(spec.type, '')}")
    if spec.maximum is not None and value > spec.maximum:
        raise _invalid(spec, text, f"at most {_plain(spec.maximum)}{_UNITS.get(spec.type, '')}")
    return value


_UNITS = {OptionType.SECONDS: "s", OptionType.SECONDS_OR_OFF: "s", OptionType.MILLISECONDS: "ms"}


def _plain(number: float) -> str:
    """As it would be written, without an exponent."""
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


def _invalid(spec: OptionSpec, text: str, rule: str) -> OptionError:
    return OptionError.invalid(spec.name, "***" if spec.secret else text, rule)


def _string(spec: OptionSpec, text: str) -> str:
    if not text:
        raise _invalid(spec, text, "a text that is not empty")
    return text


def _text(spec: OptionSpec, text: str) -> str:
    """White space counts, and may be written as in a string literal."""
    for written, meant in (("\\r", "\r"), ("\\n", "\n"), ("\\t", "\t")):
        text = text.replace(written, meant)
    return text


def _strings(spec: OptionSpec, text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts or len(set(parts)) != len(parts):
        raise _invalid(spec, text, "one or more different names, separated by commas")
    return parts


def _integer(spec: OptionSpec, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise _invalid(spec, text, "an integer") from None
    return _bounded(spec, text, value)


def _boolean(spec: OptionSpec, text: str) -> bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in spec.choices:
        return text.lower()
    raise _invalid(spec, text, " or ".join(", ".join(("true", "false", *spec.choices)).rsplit(", ", 1)))


def _duration(spec: OptionSpec, text: str, *, per_second: float = 1.0) -> float:
    match = _DURATION.match(text.lower())
    unit = 1 / per_second if match is None or not match[2] else _SECONDS_PER_UNIT.get(match[2])
    if match is None or unit is None:
        raise _invalid(spec, text, "a duration such as 5s, 2m or 250ms")
    seconds = float(match[1]) * unit
    if seconds > _LONGEST_SECONDS:
        raise _invalid(spec, text, "at most 3650d")
    return seconds * per_second


def _seconds_or_off(spec: OptionSpec, text: str) -> float | None:
    if text.lower() == "off":
        return None
    try:
        return _duration(spec, text)
    except OptionError as error:
        raise _invalid(spec, text, f"{error.facts['rule']}, or off") from None


def _byte_count(spec: OptionSpec, text: str) -> int:
    match = _DURATION.match(text.lower())
    if match is None or match[2] not in _BYTES_PER_UNIT:
        raise _invalid(spec, text, "a number of bytes such as 65536, 64k or 8m")
    # Digits are exact; a fraction of a unit is not.
    count = int(match[1]) if match[1].isdecimal() else float(match[1])
    return _bounded(spec, text, int(count * _BYTES_PER_UNIT[match[2]]))


def _bounded(spec: OptionSpec, text: str, value: int) -> int:
    if abs(value) > _LARGEST:
        raise _invalid(spec, text, f"at most {_LARGEST}")
    return value


def _choice(spec: OptionSpec, text: str) -> str:
    if text.lower() not in spec.choices:
        raise _invalid(spec, text, "one of " + ", ".join(spec.choices))
    return text.lower()


def _time(spec: OptionSpec, text: str) -> datetime:
    try:
        return parse_time(text, zone=UTC)
    except ValueError as error:
        raise _invalid(spec, text, str(error)) from None


_EPOCH = datetime.fromtimestamp(0, UTC)


def epoch_micros(time: datetime) -> int:
    """Microseconds since 1970. Exact: a float of seconds, multiplied, may fall below the millisecond that it is of."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def first_millis(time: datetime) -> int:
    """The first millisecond since 1970 that does not lie before a time: records arrive at whole ones."""
    return -(-epoch_micros(time) // 1000)


_POSITION_RULE = (
    "LATEST (or now), TRIM_HORIZON, a time, `AT_TIMESTAMP <time>`, JSON per stream or shard, or the path of a seam"
)
_JSON_RULE = (
    """a position per stream, such as {"flights": "TRIM_HORIZON"}, or per shard, such as """
    """{"shardId-000000000000": "4959…"}, or an offset of a checkpoint"""
)
_END = "endingPosition"
_WORDS_OF_KAFKA: Mapping[object, str] = {-2: "TRIM_HORIZON", -1: "LATEST"}
"""The meaning of these numbers in Kafka's offsets as JSON."""
_SHARD_ID = re.compile(r"shardId-\d+")
# Kinesis writes them with 56 digits, DynamoDB Streams with at least 21, and moto with few. 8 to 19 digits are a time.
_SEQUENCE_NUMBER = re.compile(r"[0-9]{1,7}|[0-9]{20,}")
_LAST_MILLIS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def _position(spec: OptionSpec, text: str) -> PositionOption:
    """LATEST, TRIM_HORIZON, `AT_TIMESTAMP <time>`, Databricks' `{"at_timestamp": …}`, positions as JSON, a path."""
    if text.startswith("{"):
        position = _json_position(spec, text)
    elif text.startswith(("/", "file:")):
        path = unquote(urlsplit(text).path) if text.startswith("file:") else text
        position = PositionOption(PositionOptionType.SEAM, seam=Path(path))
    elif text.startswith(("s3://", "s3a://", "s3n://")):
        bucket, _, key = text.partition("://")[2].partition("/")
        if not bucket or not key.strip("/") or "?" in key or "#" in key:
            raise _invalid(spec, text, "s3://BUCKET/KEY of a seam")
        position = PositionOption(PositionOptionType.SEAM, seam=f"s3://{bucket}/{key.strip('/')}")
    else:
        position = _word_or_time(spec, text)
    if spec.name == "addedStreamPosition" and (position.streams or position.seam or position.lacks_time):
        raise _invalid(spec, text, "LATEST, TRIM_HORIZON or a time")
    return position


def _word_or_time(spec: OptionSpec, text: str) -> PositionOption:
    name, _, time = (
        text.replace(":", " ", 1).partition(" ") if text[:13].upper() == "AT_TIMESTAMP:" else text.partition(" ")
    )
    name = {"EARLIEST": "TRIM_HORIZON", "NOW": "LATEST"}.get(name.upper(), name.upper())
    if name in ("LATEST", "TRIM_HORIZON") and not time:
        return PositionOption(PositionOptionType(name))
    if name == "AT_TIMESTAMP":
        return PositionOption(PositionOptionType(name), _time(spec, time.strip()) if time else None)
    if not text[:1].isdigit():
        raise _invalid(spec, text, _POSITION_RULE)
    return PositionOption(PositionOptionType.AT_TIMESTAMP, _time(spec, text))


def _json_position(spec: OptionSpec, text: str) -> PositionOption:
    """A time, an offset from a checkpoint, or positions by stream, by shard, or by both."""
    try:
        document: dict[str, Any] = json.loads(text)
        by_name = {key.lower(): value for key, value in document.items()}
        if "at_timestamp" in by_name:
            if len(by_name) > 1:
                raise ValueError("at_timestamp takes a time in ISO 8601, and nothing beside it")
            return PositionOption(PositionOptionType.AT_TIMESTAMP, _time(spec, str(by_name["at_timestamp"])))
        if "version" in document:
            streams = {name: _of_shards(one) for name, one in StreamPositions.from_json(document).streams.items()}
        else:
            streams = _by_stream(spec, document)
    except OptionError:
        raise
    except (ValueError, PositionsError) as error:
        raise _invalid(spec, text, f"{_JSON_RULE}; {error}") from None
    return PositionOption(PositionOptionType.STREAMS, streams=streams)


def _of_shards(shards: Mapping[str, ShardBegin]) -> PositionOption:
    return PositionOption(PositionOptionType.SHARDS, shards=shards)


def _by_stream(spec: OptionSpec, document: dict[str, Any]) -> dict[str, PositionOption]:
    """Positions by stream, as in Kafka's offsets, or by shard, as in the AWS connector's.

    Offsets of the AWS connector have an object for each shard, beside `metadata` with the stream's name.
    """
    metadata = document.get("metadata")
    if isinstance(metadata, dict):
        shards = {name: value for name, value in document.items() if name != "metadata"}
        return {str(metadata.get("streamName", "")): _by_shard(spec, shards)}
    are_shards = {
        "iteratorType" in value if isinstance(value, dict) else _SHARD_ID.fullmatch(name) is not None
        for name, value in document.items()
    }
    if len(are_shards) > 1:
        raise ValueError("shards are named beside streams, or without iteratorType")
    if are_shards != {False}:
        return {"": _by_shard(spec, document)}
    return {
        name: _by_shard(spec, value) if isinstance(value, dict) else _of_stream(spec, name, value)
        for name, value in document.items()
    }


def _by_shard(spec: OptionSpec, shards: Mapping[str, object]) -> PositionOption:
    if not shards:
        raise ValueError("it names no shard of a stream")
    return _of_shards({shard: _of_shard(spec, shard, value) for shard, value in shards.items()})


def _of_stream(spec: OptionSpec, stream: str, value: object) -> PositionOption:
    if spec.name == _END:
        raise ValueError(f"{value!r} of {stream} is for a whole stream: all streams end at one time: give it alone")
    return _named(spec, stream, value, "LATEST, TRIM_HORIZON, a time or `AT_TIMESTAMP <time>`")


def _of_shard(spec: OptionSpec, shard: str, value: object) -> ShardBegin:
    if isinstance(value, dict) and "iteratorType" in value:
        value = _of_iterator(shard, value)
    if value == "SHARD_END":
        return ShardPosition.shard_end()
    if isinstance(value, str) and _SEQUENCE_NUMBER.fullmatch(value):
        return ShardPosition.after(value)
    others = "" if spec.name == _END else ", LATEST, AT_TIMESTAMP <time>"
    position = _named(spec, shard, value, f"a sequence number as text{others}, TRIM_HORIZON or SHARD_END")
    if position.type is PositionOptionType.TRIM_HORIZON:
        return ShardPosition.trim_horizon()
    if spec.name == _END:
        raise ValueError(f"{value!r} of {shard} is a time, at which a read ends in all shards: give it alone")
    if position.timestamp is None:
        return PositionOptionType.LATEST
    return ShardPosition.at_timestamp(first_millis(position.timestamp))


def _named(spec: OptionSpec, name: str, value: object, rule: str) -> PositionOption:
    """The position of one stream or shard. Raises: ValueError, with the rule that it breaks."""
    text = _WORDS_OF_KAFKA.get(value, value) if isinstance(value, int) else value
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{json.dumps(value)} of {name} is not {rule}")
    try:
        position = _word_or_time(spec, text.strip())
    except OptionError as error:
        found = error.facts["rule"]
        raise ValueError(f"{text!r} of {name} is not {rule if found == _POSITION_RULE else found}") from None
    if position.lacks_time:
        raise ValueError(f"{text!r} of {name} lacks its time: `AT_TIMESTAMP 2026-01-31T12:00:00Z`")
    return position


def _of_iterator(shard: str, value: Mapping[str, Any]) -> object:
    """The position in an offset of the AWS connector, in the words of this package."""
    kind, position = str(value["iteratorType"]).upper(), str(value.get("iteratorPosition", ""))
    if kind in ("TRIM_HORIZON", "SHARD_END", "LATEST"):
        return kind
    if kind == "AT_TIMESTAMP" and position.isdecimal():
        return f"AT_TIMESTAMP {_EPOCH + timedelta(milliseconds=min(int(position), _LAST_MILLIS))}"
    if kind != "AFTER_SEQUENCE_NUMBER" or not _SEQUENCE_NUMBER.fullmatch(position):
        raise ValueError(
            f"{shard} must be AFTER_SEQUENCE_NUMBER or AT_TIMESTAMP with its position, TRIM_HORIZON, LATEST or "
            f"SHARD_END, not iteratorType {value['iteratorType']!r} at {position!r}"
        )
    if str(value.get("isLast", "true")).lower() != "true":
        raise ValueError(
            f"{shard} is at a position inside an aggregate, whose remaining records would be left out: name the record "
            "before it, and its first user records are read again"
        )
    return position


_PARSERS: Mapping[OptionType, Callable[[OptionSpec, str], Any]] = {
    OptionType.STRING: _string,
    OptionType.STRINGS: _strings,
    OptionType.TEXT: _text,
    OptionType.INTEGER: _integer,
    OptionType.BOOLEAN: _boolean,
    OptionType.SECONDS: _duration,
    OptionType.SECONDS_OR_OFF: _seconds_or_off,
    OptionType.MILLISECONDS: partial(_duration, per_second=1000),
    OptionType.BYTES: _byte_count,
    OptionType.CHOICE: _choice,
    OptionType.POSITION: _position,
    OptionType.TIME: _time,
}
