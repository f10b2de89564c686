"""Rows as JSON and CSV: columns as text, whole columns at a time."""

import re
from base64 import b64encode
from json.encoder import encode_basestring
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
    """The bytes of all values of a column of strings, one after the other; bytes of nulls may be among them."""
    _, offsets, content = column.buffers()
    if content is None or len(column) == 0:
        return b""
    places = memoryview(offsets).cast("B").cast("i")
    return bytes(memoryview(content)[places[column.offset] : places[column.offset + len(column)]])


def smallest_byte(content: bytes) -> int:
    """Of at least one byte."""
    numbers = pa.Array.from_buffers(pa.uint8(), len(content), [None, pa.py_buffer(content)])
    return int(compute.min(numbers).as_py())


def csv_rows(batch: Any, delimiter: str) -> Any:
    """A column of strings: one line per row, without its end.

    A null is nothing at all, an empty text is `""`. A text with the delimiter, a quote or a line break is
    quoted, with its quotes doubled.
    """
    special = f'[{re.escape(delimiter)}"\\r\\n]|^$|^\\s|\\s$'
    fields = []
    for column in batch.columns:
        texts = plain_text(column)
        quoted = join(['"', compute.replace_substring(texts, '"', '""'), '"'])
        texts = compute.if_else(compute.match_substring_regex(texts, special), quoted, texts)
        fields.append(compute.fill_null(texts, ""))
    return join(fields, delimiter)


_FIRST_PRINTED = 0x20


def json_rows(batch: Any) -> Any:
    """A column of strings: one object per row, with a field per column.

    A null field is left out, a null in an array is `null`, a map is an object, a binary is base64. A number that JSON
    does not have is "NaN", "Infinity" or "-Infinity".
    """
    return _objects(batch.schema.names, batch.columns, batch.num_rows)


def _objects(names: list[str], columns: list[Any], rows: int) -> Any:
    if not columns:
        return pa.array(["{}"] * rows, pa.string())
    # Fields have their comma before them; the first comma is removed again if the first field may be missing:
    # a join that skips nulls would lose rows of nulls alone.
    first_may_lack = columns[0].null_count > 0
    parts, constant = [], "{"
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        opened, texts, closed = _parts(column)
        opened = f"{',' if index or first_may_lack else ''}{encode_basestring(name)}:{opened}"
        if column.null_count:
            parts += [constant, compute.fill_null(join([opened, texts, closed]), "")]
            constant = ""
        else:
            parts += [constant + opened, texts]
            constant = closed
    objects = join([*parts, constant + "}"])
    return compute.replace_substring(objects, "{,", "{", max_replacements=1) if first_may_lack else objects


def json_values(column: Any) -> Any:
    """Each value as JSON; null where it is null."""
    opened, texts, closed = _parts(column)
    return join([opened, texts, closed]) if opened or closed else texts


def _parts(column: Any) -> tuple[str, Any, str]:
    """Each value as JSON, without what stands before and behind all of them; null where it is null."""
    kind = column.type
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        objects = _objects(names, [column.field(index) for index in range(kind.num_fields)], len(column))
        return "", _where_valid(column, objects), ""
    if pa.types.is_map(kind):
        entries = join(['"', _escaped(plain_text(column.keys)), '":', _or_null(json_values(column.items))])
        return "", _where_valid(column, join(["{", _joined(column, entries), "}"])), ""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "", _where_valid(column, join(["[", _joined(column, _or_null(json_values(column.values))), "]"])), ""
    texts = plain_text(column)
    if pa.types.is_floating(kind):
        if all_finite(column):
            return "", texts, ""
        odd = compute.match_substring_regex(texts, "[Ny]$")
        return "", compute.if_else(odd, join(['"', texts, '"']), texts), ""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return "", texts, ""
    return '"', _escaped(texts) if is_text(kind) else texts, '"'


def _escaped(texts: Any) -> Any:
    content = content_of(texts)
    if content and smallest_byte(content) < _FIRST_PRINTED:
        escaped = [None if value is None else encode_basestring(value)[1:-1] for value in texts.to_pylist()]
        return pa.array(escaped, pa.string())
    if b"\\" in content:
        texts = compute.replace_substring(texts, "\\", "\\\\")
    return compute.replace_substring(texts, '"', '\\"') if b'"' in content else texts


def _or_null(texts: Any) -> Any:
    return compute.fill_null(texts, "null")


def _joined(column: Any, texts: Any) -> Any:
    """The texts of each list or map, which are at its offsets, with commas between them."""
    lists = pa.LargeListArray if column.offsets.type == pa.int64() else pa.ListArray
    return compute.fill_null(compute.binary_join(lists.from_arrays(column.offsets, texts), ","), "")


def _where_valid(column: Any, texts: Any) -> Any:
    if column.null_count == 0:
        return texts
    return compute.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))
