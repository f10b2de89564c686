import csv
import io
import json
import math
import re
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import avro.io
import avro.schema
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark_plugin import KinesisOptions, avro_schema
from penstock.spark_plugin._writing.value_rows import avro_encoder
from penstock.spark_plugin._writing.value_text import csv_rows, json_rows
from penstock.spark_plugin._writing.values import check_value_fields
from penstock.spark_plugin.errors import SchemaError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
DECIMALS = st.decimals(-(10**14), 10**14, places=3)
INSIDE = st.fixed_dictionaries({"a": st.none() | LONGS, "b": st.none() | TEXTS})
ROWS = st.fixed_dictionaries(
    {
        "id": LONGS,
        "text": st.none() | TEXTS,
        "number": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "amount": st.none() | DECIMALS,
        "flag": st.none() | st.booleans(),
        "raw": st.none() | st.binary(max_size=8),
        "day": st.none() | st.dates(date(1900, 1, 1)),
        "at": st.none() | TIMES,
        "list": st.none() | st.lists(st.none() | TEXTS, max_size=3),
        "map": st.none() | st.dictionaries(TEXTS, st.none() | LONGS, max_size=3),
        "inside": st.none() | INSIDE,
        "deep": st.none() | st.lists(INSIDE, max_size=2),
    }
)
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("number", pa.float64()),
        ("amount", pa.decimal128(18, 3)),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="Europe/Berlin")),
        ("list", pa.list_(pa.string())),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("inside", STRUCT),
        ("deep", pa.list_(STRUCT)),
    ]
)
SPARK_STRUCT = StructType([StructField("a", LongType()), StructField("b", StringType())])
SPARK = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("text", StringType()),
        StructField("number", DoubleType()),
        StructField("amount", DecimalType(18, 3)),
        StructField("flag", BooleanType()),
        StructField("raw", BinaryType()),
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("list", ArrayType(StringType())),
        StructField("map", MapType(StringType(), LongType())),
        StructField("inside", SPARK_STRUCT),
        StructField("deep", ArrayType(SPARK_STRUCT)),
    ]
)
FLAT = ("id", "text", "number", "amount", "flag", "raw", "day", "at")


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = []
    for field in ARROW:
        values = [row[field.name] for row in rows]
        if pa.types.is_map(field.type):
            values = [None if value is None else list(value.items()) for value in values]
        columns.append(pa.array(values, field.type))
    return pa.record_batch(columns, schema=ARROW)


def as_json(value: Any) -> Any:
    """What a reader of JSON gets: null fields of objects are gone."""
    if isinstance(value, dict):
        return {name: as_json(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [as_json(one) for one in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime):
        spec = "milliseconds" if value.microsecond % 1000 == 0 else "microseconds"
        return value.astimezone(UTC).isoformat(timespec=spec).replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


@settings(deadline=None, max_examples=30)
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_json_is_read_by_another_reader(rows: list[dict[str, Any]]) -> None:
    """Every type, nested and null, comes back; numbers keep all their digits, null fields are left out."""
    written = json_rows(batch_of(rows)).to_pylist()
    for row, text in zip(rows, written, strict=True):
        # Entries of a map whose value is null stay: they are not fields.
        expected = as_json({**row, "map": None}) | ({} if row["map"] is None else {"map": row["map"]})
        read = json.loads(text, parse_float=Decimal)
        if read.get("number") is not None:
            assert float(read.pop("number")) == expected.pop("number")
        assert read == expected


def test_json_of_special_values_is_that_of_spark() -> None:
    """What `to_json` makes of numbers that JSON does not have, whole doubles, decimals and control characters."""
    batch = pa.record_batch(
        {
            "n": pa.array([math.nan, math.inf, -math.inf, 1.0, 1e30, None]),
            "f": pa.array([0.1, None, None, None, None, None], pa.float32()),
            "d": pa.array([Decimal("1.50"), None, None, None, None, None]),
            "s": pa.array(['a"\\\n\x01', "", None, "ü/", None, None]),
            "v": pa.nulls(6),
        }
    )
    assert json_rows(batch).to_pylist() == [
        '{"n":"NaN","f":0.1,"d":1.50,"s":"a\\"\\\\\\n\\u0001"}',
        '{"n":"Infinity","s":""}',
        '{"n":"-Infinity"}',
        '{"n":1.0,"s":"ü/"}',
        '{"n":1e+30}',
        "{}",
    ]


@settings(deadline=None, max_examples=30)
@given(st.lists(ROWS, min_size=1, max_size=5), st.sampled_from([",", ";", "\t", "|", "-", "1"]))
def test_csv_is_read_by_another_reader(rows: list[dict[str, Any]], delimiter: str) -> None:
    """Each line gives its fields back, whatever is in them; a null and an empty text differ."""
    lines = csv_rows(batch_of(rows).select(list(FLAT)), delimiter).to_pylist()
    for row, line in zip(rows, lines, strict=True):
        (read,) = csv.reader(io.StringIO(line, newline=""), delimiter=delimiter, strict=True)
        values = dict(zip(FLAT, read, strict=True))
        assert (values["id"], values["text"]) == (str(row["id"]), row["text"] or "")
        assert values["number"] == "" if row["number"] is None else float(values["number"]) == row["number"]
        assert values["amount"] == "" if row["amount"] is None else Decimal(values["amount"]) == row["amount"]
        for name in ("raw", "day", "at"):
            assert values[name] == (as_json(row[name]) or "")
    texts = pa.record_batch({"text": pa.array([row["text"] for row in rows], pa.string())})
    for row, line in zip(rows, csv_rows(texts, delimiter).to_pylist(), strict=True):
        assert (line == "", line == '""') == (row["text"] is None, row["text"] == "")


@settings(deadline=None, max_examples=30)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_avro_is_read_by_another_reader(rows: list[dict[str, Any]]) -> None:
    """Apache's own reader gives every row back, by the schema that readers can ask for."""
    schema = avro_schema(SPARK)
    reader = avro.io.DatumReader(avro.schema.parse(schema))
    for row, data in zip(rows, avro_encoder(schema)(batch_of(rows))[0].to_pylist(), strict=True):
        read: Any = reader.read(avro.io.BinaryDecoder(io.BytesIO(data)))
        assert read == row


@pytest.mark.parametrize(
    ("value_format", "field", "named"),
    [
        ("csv", StructField("l", ArrayType(StringType())), "l"),
        ("json", StructField("i", DayTimeIntervalType()), "i"),
        ("json", StructField("l", ArrayType(StructType([StructField("i", DayTimeIntervalType())]))), "l.element.i"),
        ("avro", StructField("a b", LongType()), "a b"),
        ("avro", StructField("m", MapType(LongType(), LongType())), "m"),
        ("avro", StructField("i", DayTimeIntervalType()), "i"),
    ],
)
def test_what_a_format_cannot_write_is_named(value_format: str, field: StructField, named: str) -> None:
    """Types and names are checked before any task runs, down to the field within a struct."""
    with pytest.raises(SchemaError) as caught:
        check_value_fields([field], KinesisOptions(stream_name=("s",), value_format=value_format))
    assert caught.value.column == named


@pytest.mark.parametrize(
    ("expression", "ours", "sparks"),
    [
        (
            "array(1e10D, 1e-5D, 1e7D, 0.001D, 1.0D)",
            "1e+10,0.00001,10000000.0,0.001,1.0",
            "1.0E10,1.0E-5,1.0E7,0.001,1.0",
        ),
        ("float(16777216)", "16777216.0", "1.6777216E7"),
        ("timestamp'2026-01-31 12:00:00.123456'", "2026-01-31T12:00:00.123456Z", "2026-01-31T12:00:00.123Z"),
        ("timestamp'2026-01-31 12:00:00.120'", "2026-01-31T12:00:00.120Z", "2026-01-31T12:00:00.120Z"),
        ("map(date'2026-01-31', 1)", "2026-01-31:1", "20484:1"),
        ("map(timestamp'2026-01-31 12:00:00', 1)", "2026-01-31T12:00:00.000Z:1", "1769860800000000:1"),
        ("map(decimal('1.50'), cast('0.0000001' AS decimal(20, 10)))", "2:1.000E-7", "2:1.000E-7"),
        ("map(true, binary('hello?>'))", "true:aGVsbG8/Pg==", "true:aGVsbG8/Pg=="),
    ],
)
def test_json_differs_from_that_of_spark_as_the_readme_says(
    spark: SparkSession, expression: str, ours: str, sparks: str
) -> None:
    """In the letters of numbers and times; brackets and quotes are left out of what is compared."""
    frame = spark.sql(f"SELECT {expression} AS v")

    def bare(text: str) -> str:
        return re.sub(r'["{}\[\]]', "", text).removeprefix("v:")

    assert bare(json_rows(frame.toArrow().combine_chunks().to_batches()[0])[0].as_py()) == ours
    assert bare(frame.selectExpr("to_json(struct(v)) AS json").first().json) == sparks  # type: ignore[union-attr]  # a row
