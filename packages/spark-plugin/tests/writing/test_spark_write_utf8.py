"""Texts that are not UTF-8: Spark makes them by `CAST(data AS STRING)`, and hands them on as they are."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, DateType, StringType, StructField, StructType, TimestampType

from penstock.async_sink.dead_letters import read_dead_letters, why_it_stays
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisDataSource, WriteSummary
from penstock.spark_plugin._writing.value_text import csv_rows, json_rows
from penstock.spark_plugin.errors import SparkPluginError
from penstock.spark_plugin.testing import endpoint_options

COLUMNS = ("data", "partitionKey", "explicitHashKey", "streamName")


def texts(*values: bytes | None) -> Any:
    """A column of strings with these bytes."""
    column = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers(), column.null_count)


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(enforce_limits=False) as emulator:
        emulator.client().create_stream(StreamName="texts", ShardCount=1)
        yield emulator


def write(emulator: RunningEmulator, columns: dict[str, Any], **options: str) -> WriteSummary:
    schema = StructType([StructField(name, StringType()) for name in columns])
    given = endpoint_options(emulator.endpoint_url, "texts", stallTimeout="10s", **options)
    summary = KinesisDataSource(given).writer(schema, overwrite=False).write(iter([pa.record_batch(columns)]))
    assert isinstance(summary, WriteSummary)
    return summary


@pytest.mark.parametrize("column", COLUMNS[1:])
def test_a_key_that_is_no_text_is_a_bad_row(emulator: RunningEmulator, tmp_path: Path, column: str) -> None:
    """No service accepts it; the row is named, or kept, and the others are written."""
    good = {"data": b"x", "partitionKey": b"k", "explicitHashKey": b"1", "streamName": b"texts"}
    columns = {name: texts(good[name], good[name], good[name]) for name in COLUMNS}
    columns[column] = texts(good[column], b"\xff\xfe", good[column])
    with pytest.raises(SparkPluginError, match=r"UNWRITABLE_ROW.*row 1 .* is not UTF-8"):
        write(emulator, columns)
    summary = write(emulator, columns, deadLetterPath=str(tmp_path / "dead"))
    assert (summary.records, summary.dead_letters) == (2, 1)
    (file,) = (tmp_path / "dead").iterdir()
    letter = json.loads(file.read_text())
    assert letter["row"] == 1
    assert letter[column] == "\ufffd\ufffd"


def test_values_are_text_that_everybody_can_read() -> None:
    """As `to_json` writes them: with a mark where bytes are none, beside control characters or not."""
    batch = pa.record_batch({"a": texts(b"o\xffk", b'\x01"\xfe', None), "b": pa.array(["ü", "v", "w"])})
    assert [json.loads(text.as_py()) for text in json_rows(batch)] == [
        {"a": "o\ufffdk", "b": "ü"},
        {"a": '\x01"\ufffd', "b": "v"},
        {"b": "w"},
    ]
    assert csv_rows(batch, ",").to_pylist() == ["o\ufffdk,ü", '"\x01""\ufffd",v', ",w"]


FAR_DAYS = pa.array([1, 2_932_897, 2], pa.int32()).view(pa.date32())
FAR_TIMES = pa.array([0, 253_402_300_800_000_000, 1], pa.int64()).view(pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("kind", "values", "fault", "kept"),
    [
        (StringType(), texts(b"good", b"\xff", None), "column 'v': 'utf-8' codec can't decode", "\ufffd"),
        (DateType(), FAR_DAYS, "column 'v': date value out of range", "10000-01-01"),
        (TimestampType(), FAR_TIMES, "column 'v': date value out of range", "10000-01-01T00:00:00.000Z"),
    ],
)
def test_a_value_that_avro_cannot_take_is_a_bad_row(
    emulator: RunningEmulator, tmp_path: Path, kind: DataType, values: Any, fault: str, kept: str
) -> None:
    """It is named, or kept as JSON with a reason; the rows before and after it are written."""
    schema = StructType([StructField("v", kind), StructField("partitionKey", StringType())])
    batch = pa.record_batch({"v": values, "partitionKey": ["k"] * 3})
    given = endpoint_options(emulator.endpoint_url, "texts", valueFormat="avro", stallTimeout="10s")
    with pytest.raises(
        SparkPluginError, match=rf"UNWRITABLE_ROW.*row 1 .* it cannot be encoded as Avro: {re.escape(fault)}"
    ):
        KinesisDataSource(given).writer(schema, overwrite=False).write(iter([batch]))
    writer = KinesisDataSource(given | {"deadLetterPath": str(tmp_path)}).writer(schema, overwrite=False)
    summary = writer.write(iter([batch]))
    assert isinstance(summary, WriteSummary)
    assert (summary.records, summary.dead_letters) == (2, 1)
    (letter,) = read_dead_letters(tmp_path)
    assert (json.loads(letter.data or b""), letter.is_encoded) == ({"v": kept}, False)
    assert why_it_stays(letter) is not None
