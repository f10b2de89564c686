"""What writes are known by: the ids of their records, and the files of their dead letters."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark_plugin import KinesisDataSource, WriteSummary
from penstock.spark_plugin._writing import records
from penstock.spark_plugin._writing.records import this_attempt
from penstock.spark_plugin.testing import endpoint_options

ROWS = StructType([StructField("data", StringType()), StructField("partitionKey", StringType())])
RUN, NEXT_RUN = "4df1883d-def8-4468-99b5-1fbde07f0469", "f6bb431b-2137-4e10-83bf-b5f07a912225"
BATCH = {
    "sql.streaming.queryId": "query",
    "streaming.sql.batchId": "7",
    "spark.jobGroup.id": RUN,
    "spark.job.interruptOnCancel": "true",
}


@pytest.fixture(params=[{}, BATCH], ids=["own sink", "in foreachBatch"])
def properties(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Properties of the Spark task: the properties of a query reach all tasks of its `foreachBatch`."""
    monkeypatch.setattr(records, "task_property", request.param.get)
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
    letters = [json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()]
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
    """`jobId` distinguishes two writes of one `foreachBatch`, and each replaces its own files when it runs again."""
    for run in (RUN, NEXT_RUN):
        monkeypatch.setattr(records, "task_property", (BATCH | {"spark.jobGroup.id": run}).get)
        put_aside(tmp_path, "a", "b", jobId="first")
        put_aside(tmp_path, "c", jobId="second")
    assert kept(tmp_path) == 3
    # With a new checkpoint the query has another id, and its micro-batches are counted from zero.
    monkeypatch.setattr(records, "task_property", (BATCH | {"sql.streaming.queryId": "another"}).get)
    put_aside(tmp_path, "d", jobId="first")
    assert kept(tmp_path) == 4


def test_two_writes_of_one_name_in_a_micro_batch_keep_the_dead_letters_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the second has none; when the micro-batch runs again, the letters of both are replaced."""
    for run, rows in ((RUN, ["a", "b"]), (NEXT_RUN, ["a"])):
        monkeypatch.setattr(records, "task_property", (BATCH | {"spark.jobGroup.id": run}).get)
        put_aside(tmp_path, *rows, jobId="same")
        put_aside(tmp_path, "c", jobId="same")
        put_aside(tmp_path, jobId="same")
        assert kept(tmp_path) == len(rows) + 1
    monkeypatch.setattr(records, "task_property", (BATCH | {"streaming.sql.batchId": "8"}).get)
    put_aside(tmp_path, jobId="same")
    assert kept(tmp_path) == 2
    # With groups of its own for its writes, a function hides which run it is: nothing is lost by that.
    for group in ("first", "second"):
        own = {"streaming.sql.batchId": "9", "spark.jobGroup.id": group, "spark.job.interruptOnCancel": "false"}
        monkeypatch.setattr(records, "task_property", (BATCH | own).get)
        put_aside(tmp_path, "d", jobId="same")
    assert kept(tmp_path) == 4


def test_a_foreach_batch_that_fails_and_runs_again_keeps_each_dead_letter_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As Spark runs it: two writes with the same `jobId`, of rows without a key, and a failure behind them."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text('{"data": "a"}\n{"data": "b"}\n')
    given = endpoint_options("http://127.0.0.1:9", "s", deadLetterPath=str(tmp_path / "dead"), jobId="nightly")
    failures = [RuntimeError("behind the writes")]

    def write(rows: DataFrame, batch: int) -> None:
        for data in ("a", "b", "none"):
            rows.where(rows.data == data).write.format("kinesis").options(**given).mode("append").save()
        for failure in failures:
            raise failure

    def run() -> None:
        rows = spark.readStream.schema("data string, partitionKey string").json(str(tmp_path / "in"))
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="behind the writes"):
        run()
    assert kept(tmp_path / "dead") == 2
    failures.clear()
    run()
    assert kept(tmp_path / "dead") == 2


def test_a_micro_batch_that_runs_again_and_loses_nothing_leaves_no_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed the first time has been written now. Another write of the same `jobId` is not this one."""
    monkeypatch.setattr(records, "task_property", BATCH.get)
    put_aside(tmp_path, "a", stream=True)
    assert kept(tmp_path) == 1
    assert put_aside(tmp_path, stream=True).dead_letters == 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(records, "task_property", {}.get)
    put_aside(tmp_path, "a", jobId="nightly")
    put_aside(tmp_path, jobId="nightly")
    assert kept(tmp_path) == 1
    assert put_aside(tmp_path / "not there").dead_letters == 0


def test_ids_are_those_of_the_query_or_of_the_job_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's writer goes by its query; a write in `foreachBatch` too, unless it has a name of its own."""

    def prefix(*, is_stream: bool, is_named: bool) -> str:
        return this_attempt("job" if is_named else None, "write", is_stream=is_stream).record_prefix

    monkeypatch.setattr(records, "task_property", BATCH.get)
    assert prefix(is_stream=True, is_named=True) == prefix(is_stream=False, is_named=False) == "query-7-0-"
    assert prefix(is_stream=False, is_named=True) == "job-7-0-"
    monkeypatch.setattr(records, "task_property", {}.get)
    assert prefix(is_stream=False, is_named=True) == "job-0-0-"
    assert prefix(is_stream=False, is_named=False) == "write-0-0-"
