"""Columns as text, whole columns at a time: what JSON and CSV have in common."""

from base64 import b64encode
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

compute: Any = pc
"""Its functions are made at run time, and have no annotations."""

_WHOLE = r"^(-?[0-9]+)$"
_MICROS = 1_000
"""In a millisecond."""
_NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def is_text(kind: pa.DataType) -> bool:
    """Whether values of the type are text already."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_utf8(texts: Any) -> bool:
    """Whether all of a column of strings is: Spark makes strings of any bytes, and hands them on as they are."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def decoded(texts: Any) -> list[str | None]:
    """The values of a column of strings, with U+FFFD for what is not UTF-8."""
    values = texts.cast(pa.large_binary()).to_pylist()
    return [None if value is None else value.decode(errors="replace") for value in values]


def plain_text(column: Any) -> Any:
    """A column of plain values as strings, null where it is null.

    Numbers are written as Spark writes them. Times are ISO 8601 in UTC with milliseconds, or with microseconds where
    they say something; those without a time zone have no `Z`. Binaries are base64. What is not UTF-8 is U+FFFD.
    """
    kind = column.type
    if is_text(kind):
        texts = column if is_utf8(column) else pa.array(decoded(column), pa.string())
        return texts if pa.types.is_string(texts.type) else texts.cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array(
            [None if value is None else b64encode(value).decode() for value in column.to_pylist()], pa.string()
        )
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_timestamp(kind):
        return _times(column)
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    return column.cast(pa.string())


def all_finite(column: Any) -> bool:
    """Whether a column of floats has neither infinities nor what is not a number."""
    return bool(compute.all(compute.is_finite(column), min_count=0).as_py())


def _floats(column: Any) -> Any:
    # `1` would be an integer to a reader that finds the types out by looking.
    texts = compute.replace_substring_regex(column.cast(pa.string()), _WHOLE, r"\1.0")
    if not all_finite(column):
        for written, meant in _NO_NUMBERS.items():
            texts = compute.if_else(compute.equal(texts, written), meant, texts)
    return texts


def _times(column: Any) -> Any:
    zone = column.type.tz
    # As integers: Arrow looks the zone up for each value, which takes 30 times as long as to write it.
    micros = column.cast(pa.timestamp("us", tz=zone)).view(pa.int64())
    millis = compute.divide(micros, _MICROS)
    is_whole = compute.equal(compute.multiply(millis, _MICROS), micros)
    texts = millis.view(pa.timestamp("ms")).cast(pa.string())
    if not compute.all(is_whole, min_count=0).as_py():
        texts = compute.if_else(is_whole, texts, micros.view(pa.timestamp("us")).cast(pa.string()))
    texts = compute.replace_substring(texts, " ", "T", max_replacements=1)
    return texts if zone is None else join([texts, "Z"])


def join(parts: list[Any], separator: str | bytes = "") -> Any:
    """The texts, or bytes, of each row after each other; null where one of them is."""
    return compute.binary_join_element_wise(*parts, separator)


def content_of(column: Any) -> bytes:
    """The bytes of all values of a column of strings, one behind the other; those of nulls may be among them."""
    _, offsets, content = column.buffers()
    if content is None or len(column) == 0:
        return b""
    places = memoryview(offsets).cast("B").cast("i")
    return bytes(memoryview(content)[places[column.offset] : places[column.offset + len(column)]])


def smallest_byte(content: bytes) -> int:
    """Of at least one byte."""
    numbers = pa.Array.from_buffers(pa.uint8(), len(content), [None, pa.py_buffer(content)])
    return int(compute.min(numbers).as_py())
