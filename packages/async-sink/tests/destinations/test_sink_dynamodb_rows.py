"""Rows of record batches as items."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.async_sink import DynamoDbRequestEntry
from penstock.async_sink._destinations.dynamodb_items import plain_rows

TEXTS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("kind", "value", "attribute"),
    [
        (TEXTS, [("a", "b"), ("c", None)], {"M": {"a": {"S": "b"}, "c": {"NULL": True}}}),
        (TEXTS, [], {"M": {}}),
        (
            pa.map_(pa.int32(), TEXTS),
            [(1, [("a", "b")]), (2, None)],
            {"M": {"1": {"M": {"a": {"S": "b"}}}, "2": {"NULL": True}}},
        ),
        (pa.list_(TEXTS), [[("a", "b")], None], {"L": [{"M": {"a": {"S": "b"}}}, {"NULL": True}]}),
        (
            pa.struct({"m": TEXTS, "n": pa.int8()}),
            {"m": [("a", "b")], "n": 1},
            {"M": {"m": {"M": {"a": {"S": "b"}}}, "n": {"N": "1"}}},
        ),
        (pa.list_(pa.list_(pa.string())), [["a", "b"]], {"L": [{"L": [{"S": "a"}, {"S": "b"}]}]}),
        (pa.struct({"n": pa.int8()}), {"n": 1}, {"M": {"n": {"N": "1"}}}),
    ],
)
def test_a_map_is_a_map_at_any_depth(kind: Any, value: Any, attribute: Any) -> None:
    """Not a list of pairs, in which no query would find a key; a null stays a null."""
    batch = pa.record_batch({"id": pa.array(["x", "y"]), "value": pa.array([value, None], kind)})
    rows = plain_rows(batch)
    assert DynamoDbRequestEntry.put(rows[0]).item == {"id": {"S": "x"}, "value": attribute}
    assert rows[1] == {"id": "y", "value": None}
