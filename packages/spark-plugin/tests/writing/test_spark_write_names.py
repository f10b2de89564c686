"""What writes are known by: the ids of their records, and the files of their dead letters."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark_plugin import KinesisDataSource, WriteSummary
from penstock.spark_plugin._writing import _record_ids
from penstock.spark_plugin._writing._record_ids import this_attempt
from penstock.spark_plugin.testing import endpoint_options

ROWS = StructType([StructField("data", StringType()), StructField("partitionKey", StringType())])
BATCH = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "7"}


@pytest.fixture(params=[{}, BATCH], ids=["by itself", "in foreachBatch"])
def properties(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of the Spark task: those of a query reach the tasks of all that its `foreachBatch` does."""
    monkeypatch.setattr(_record_ids, "task_property", request.param.get)
    found: dict[str, str] = request.param
    return found


def put_aside(folder: Path, *rows: str, stream: bool = False, **options: str) -> WriteSummary:
    """A write of rows without a key."""
    given = endpoint_options("http://127.0.0.1:9", "s", deadLetterPath=str(folder), **options)
    source = KinesisDataSource(given)
    writer: Any = (source.streamWriter if stream else source.writer)(ROWS, overwrite=False)
    keys = pa.nulls(len(rows), pa.string())
    summary = writer.write(iter([pa.record_batch([pa.array(rows, pa.string()), keys], names=ROWS.names)]))
    assert isinstance(summary, WriteSummary)
    return summary


def kept(folder: Path) -> int:
    letters = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    return len(letters)


def test_two_writes_keep_the_dead_letters_of_both(properties: dict[str, str], tmp_path: Path) -> None:
    """Also in one `foreachBatch`, where query and micro-batch are the same."""
    for rows in (["a", "b"], ["c"]):
        assert put_aside(tmp_path, *rows).dead_letters == len(rows)
    assert kept(tmp_path) == 3
    assert len({file.name for file in tmp_path.iterdir()}) == 2


def test_writes_with_names_of_their_own_replace_their_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `jobId` two writes of one `foreachBatch` are told apart, and each from itself when it runs again."""
    monkeypatch.setattr(_record_ids, "task_property", BATCH.get)
    for _ in range(2):
        put_aside(tmp_path, "a", "b", jobId="first")
        put_aside(tmp_path, "c", jobId="second")
    assert kept(tmp_path) == 3
    # With a new checkpoint the query has another id, and its micro-batches are counted anew.
    monkeypatch.setattr(_record_ids, "task_property", (BATCH | {"sql.streaming.queryId": "another"}).get)
    put_aside(tmp_path, "d", jobId="first")
    assert kept(tmp_path) == 4


def test_a_job_that_runs_each_night_keeps_the_dead_letters_of_every_night(tmp_path: Path) -> None:
    """Its `jobId` is the same, and nobody has redriven those of last night yet. A task that runs again replaces its own
    file."""
    for rows in (["monday", "monday"], ["tuesday"], []):
        put_aside(tmp_path, *rows, jobId="nightly")
    assert kept(tmp_path) == 3
    given = endpoint_options("http://127.0.0.1:9", "s", deadLetterPath=str(tmp_path), jobId="nightly")
    writer = KinesisDataSource(given).writer(ROWS, overwrite=False)
    for _ in range(2):
        writer.write(iter([pa.record_batch([pa.array(["wednesday"]), pa.nulls(1, pa.string())], names=ROWS.names)]))
    assert kept(tmp_path) == 4


def test_a_micro_batch_that_runs_again_and_loses_nothing_leaves_no_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was given up the first time has been written now. A write that is no stream's knows of no time before."""
    monkeypatch.setattr(_record_ids, "task_property", BATCH.get)
    put_aside(tmp_path, "a", stream=True)
    assert kept(tmp_path) == 1
    assert put_aside(tmp_path, stream=True).dead_letters == 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(_record_ids, "task_property", {}.get)
    put_aside(tmp_path, "a", jobId="nightly")
    put_aside(tmp_path, jobId="nightly")
    assert kept(tmp_path) == 1
    assert put_aside(tmp_path / "not there").dead_letters == 0


def test_ids_are_those_of_the_query_or_of_the_job_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's writer goes by its query; a write in `foreachBatch` too, unless it has a name of its own."""

    def prefix(*, is_stream: bool, is_named: bool) -> str:
        return this_attempt("job" if is_named else None, "write", is_stream=is_stream).record_prefix

    monkeypatch.setattr(_record_ids, "task_property", BATCH.get)
    assert prefix(is_stream=True, is_named=True) == prefix(is_stream=False, is_named=False) == "query-7-0-"
    assert prefix(is_stream=False, is_named=True) == "job-7-0-"
    monkeypatch.setattr(_record_ids, "task_property", {}.get)
    assert prefix(is_stream=False, is_named=True) == "job-0-0-"
    assert prefix(is_stream=False, is_named=False) == "write-0-0-"
