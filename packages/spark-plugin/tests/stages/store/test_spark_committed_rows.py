from pathlib import Path

import pyarrow
import pyarrow.parquet
from pyspark.sql import SparkSession

from penstock.spark_plugin._stages.store.committed import read_committed
from penstock.spark_plugin._stages.store.pins import Pin, RunPins
from penstock.spark_plugin._stages.store.store import StageStore

ROW = """
    select cast(1 as long) as k, 1.5d as d, cast(1.25 as decimal(9,2)) as m, 'a' as s, true as b, binary('x') as raw,
        timestamp'2026-01-02 03:04:05' as at, timestamp_ntz'2026-01-02 03:04:05' as local, date'2026-01-02' as day,
        array(named_struct('x', 1, 'y', map('p', array(2)))) as nested, interval '1 02:03:04' day to second as span
"""


def test_committed_rows_have_the_schema_that_spark_finds_without_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """Reading a committed result runs no job, and gives the columns and rows that Spark finds in the files."""
    path = tmp_path / "result"
    spark.sql(ROW).write.parquet(str(path))
    context = spark.sparkContext
    context.setJobGroup("read committed", "")
    try:
        frame = read_committed(spark, path)
        jobs = context.statusTracker().getJobIdsForGroup("read committed")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None unsets
    assert len(jobs) == 0
    found = spark.read.parquet(str(path))
    assert frame.schema == found.schema
    assert frame.collect() == found.collect() == spark.sql(ROW).collect()


def test_an_empty_committed_result_keeps_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    """A result without rows is read with the columns that it was written with."""
    path = tmp_path / "result"
    spark.sql(ROW).where("k > 1").write.parquet(str(path))
    frame = read_committed(spark, path)
    assert frame.schema == spark.read.parquet(str(path)).schema
    assert frame.collect() == []


def test_files_that_do_not_tell_spark_s_schema_are_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    """Where the files do not say it, Spark finds the schema out."""
    path = tmp_path / "result"
    path.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"k": [1, 2]}), path / "part.parquet")
    assert sorted(row["k"] for row in read_committed(spark, path).collect()) == [1, 2]


def test_pins_that_stay_the_same_are_not_written_again(tmp_path: Path) -> None:
    """A run that goes on with what is pinned leaves the file as it is; other pins replace it."""
    store = StageStore(tmp_path / "store")
    pins = RunPins(pipeline="p", store="s", stages={"one": Pin(fingerprint="f", code="c", inputs={"zero": "g"})})
    store.pin(pins)
    (file,) = (tmp_path / "store" / "stages" / ".pins").glob("*.json")
    before = file.stat().st_ino, file.stat().st_mtime_ns
    store.pin(pins)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == before
    ended = RunPins(pipeline="p", store="s", stages=pins.stages, ended=True)
    store.pin(ended)
    assert store.pins() == ended
