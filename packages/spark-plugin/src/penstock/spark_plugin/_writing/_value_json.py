"""Rows as JSON objects, as Spark's `to_json` writes them, whole columns at a time."""

from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa

from penstock.spark_plugin._writing._value_text import (
    all_finite,
    compute,
    content_of,
    is_text,
    join,
    plain_text,
    smallest_byte,
)

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
    # Fields have their comma before them; that of the first one is taken out again where there may be no first one:
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
