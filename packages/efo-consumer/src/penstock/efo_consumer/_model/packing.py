"""The positions of a stream with many shards as a short text: column by column, as differences, compressed.

Most shards of a large stream are idle, and their positions differ little from those of the shards beside them. The text
is base 64 of zlib's format. Inside is a line of JSON, `{"rows": …, "columns": {name: [width, texts]}}`, and then of
each column

- a byte for each shard: 0 for none, 1 for a number, 2 for a text;
- the numbers, of `width` bytes each, big end first, transposed: the first byte of all of them, then the second.

| column | of each shard |
| --- | --- |
| `shard` | of ids like `shardId-000000000007` the number, less the one before; the text of another id |
| `type` | the place of the position's type in TRIM_HORIZON, AT_TIMESTAMP, AFTER_SEQUENCE_NUMBER, SHARD_END |
| `number`, `time` | the sequence number or time that the position names, less the one before |
| `record`, `first` | `number` less this sequence number; the text of one where there is no `number` |
| `arrived`, `caughtUp` | the time, less the one before |

Numbers may be negative: n is written as 2n, and -n as 2n - 1. Sequence numbers with leading zeros are texts.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pybase64

from penstock.efo_consumer.errors import PositionsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CANONICAL_ID = re.compile(r"shardId-\d{12}", re.ASCII)
_TYPES = ("TRIM_HORIZON", "AT_TIMESTAMP", "AFTER_SEQUENCE_NUMBER", "SHARD_END")
_COLUMNS = ("shard", "type", "number", "time", "record", "first", "arrived", "caughtUp")
_NONE, _NUMBER, _TEXT = range(3)
_MOST_BYTES = 16 * 1024 * 1024
"""What a text may become: what 200,000 shards take."""

_Value = int | str | None


class PackedPosition(NamedTuple):
    """A shard and the fields of its `ShardPosition`."""

    shard_id: str
    type: str
    timestamp_millis: int | None
    sequence_number: str | None
    caught_up_millis: int | None
    record: str | None
    arrived_millis: int | None
    first_record: str | None


def pack(positions: Sequence[PackedPosition]) -> str:
    """Pack the positions of a stream's shards; their order is kept."""
    ids, types, times, digits, caught_up, records, arrived, firsts = zip(*positions, strict=True)
    numbers = [_number(one) for one in digits]
    columns: dict[str, list[_Value]] = {
        "shard": _differences(int(one[-12:]) if _CANONICAL_ID.fullmatch(one) else one for one in ids),
        "type": [_TYPES.index(one) for one in types],
        "number": _differences(numbers),
        "time": _differences(times),
        "record": list(map(_below, numbers, records)),
        "first": list(map(_below, numbers, firsts)),
        "arrived": _differences(arrived),
        "caughtUp": _differences(caught_up),
    }
    head: dict[str, list[Any]] = {}
    parts = []
    for name, values in columns.items():
        whole = [2 * one if one >= 0 else -2 * one - 1 for one in values if isinstance(one, int)]
        width = (max(whole, default=0).bit_length() + 7) // 8
        head[name] = [width, [one for one in values if isinstance(one, str)]]
        parts.append(bytes(_NONE if one is None else _TEXT if isinstance(one, str) else _NUMBER for one in values))
        body = b"".join([one.to_bytes(width, "big") for one in whole])
        parts += [body[place::width] for place in range(width)]
    line = json.dumps({"rows": len(positions), "columns": head}, separators=(",", ":"))
    return pybase64.b64encode(zlib.compress(b"".join([line.encode(), b"\n", *parts]))).decode()


def unpack(text: str) -> list[PackedPosition]:
    """Give what was packed.

    Raises:
        PositionsError: the text is not one that `pack` gave.
    """
    try:
        unpacker = zlib.decompressobj()
        line, _, body = unpacker.decompress(pybase64.b64decode(text, validate=True), _MOST_BYTES).partition(b"\n")
        if not unpacker.eof:
            raise ValueError("it is cut off or too large")
        if unpacker.unused_data:
            raise ValueError("it is followed by other bytes")
        head = json.loads(line)
        columns, at = {}, 0
        for name in _COLUMNS:
            columns[name], at = _column(body, at, head["rows"], *head["columns"][name])
        numbers = _sums(columns["number"])
        rows = zip(
            [one if isinstance(one, str) else f"shardId-{one:012d}" for one in _sums(columns["shard"])],
            [_TYPES[one] for one in columns["type"]],
            _sums(columns["time"]),
            [None if one is None else str(one) for one in numbers],
            _sums(columns["caughtUp"]),
            map(_above, numbers, columns["record"]),
            _sums(columns["arrived"]),
            map(_above, numbers, columns["first"]),
            strict=True,
        )
        return [PackedPosition(*row) for row in rows]
    except (ValueError, TypeError, LookupError, ArithmeticError, StopIteration, zlib.error, RecursionError) as error:
        raise PositionsError(f"packed positions cannot be read: {error}") from error


def _column(body: bytes, at: int, rows: int, width: int, texts: list[str]) -> tuple[list[Any], int]:
    """Give the values of the column that begins `at` a place, and where the next one begins."""
    kinds = body[at : at + rows]
    count, at = kinds.count(_NUMBER), at + rows
    end = at + count * width
    if rows < 0 or width < 0 or end > len(body):
        raise ValueError("it is cut off")
    raw = bytearray(count * width)
    for place in range(width):
        raw[place::width] = body[at + place * count : at + (place + 1) * count]
    whole = [int.from_bytes(raw[one * width : (one + 1) * width], "big") for one in range(count)]
    numbers = iter([-(one + 1) // 2 if one & 1 else one >> 1 for one in whole])
    left = iter(texts)
    return [None if kind == _NONE else next(numbers) if kind == _NUMBER else str(next(left)) for kind in kinds], end


def _number(digits: str | None) -> _Value:
    """A number that gives the same digits again; the digits where none does."""
    return digits if not digits or (digits[0] == "0" and digits != "0") else int(digits)


def _differences(values: Iterable[_Value]) -> list[_Value]:
    before, found = 0, list[_Value]()
    for value in values:
        if isinstance(value, int):
            found.append(value - before)
            before = value
        else:
            found.append(value)
    return found


def _sums(differences: Iterable[Any]) -> list[Any]:
    before, found = 0, list[Any]()
    for one in differences:
        if isinstance(one, int):
            before += one
            found.append(before)
        else:
            found.append(one)
    return found


def _below(number: _Value, digits: str | None) -> _Value:
    value = _number(digits)
    return number - value if isinstance(number, int) and isinstance(value, int) else digits


def _above(number: Any, below: Any) -> str | None:
    return str(number - below) if isinstance(below, int) else below
