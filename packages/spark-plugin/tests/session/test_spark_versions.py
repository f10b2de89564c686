"""What this package does with an older Spark than the other tests, without PySpark, and with too old a one.

No such Spark is needed: `_spark` is loaded as it would be beside one, and this one asks for what older ones do.
`hatch run prove matrix` runs the versions themselves.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession, datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.types import StructType

from penstock.spark_plugin import KinesisDataSource, _spark


@pytest.fixture
def oldest(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of differences as it is beside Spark 4.0."""
    found = importlib.util.find_spec

    def find(name: str) -> Any:
        return None if name == "pyspark.sql.streaming.datasource" else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    for name in ("DataSourceStreamArrowWriter", "Filter"):
        monkeypatch.delattr(datasource, name, raising=False)
    spec = importlib.util.spec_from_file_location("oldest_spark", _spark.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_names_are_there_without_those_of_spark(oldest: ModuleType) -> None:
    """Where Spark has no such classes there are others of the same names and fields."""
    assert {oldest.SPARK_TELLS_LIMITS, oldest.SPARK_USES_UNIX_SOCKETS} == {False}
    assert [name for name in _spark.__all__ if not hasattr(oldest, name)] == []
    assert oldest.ReadMaxRows(3).max_rows == 3
    assert oldest.ReadMaxBytes(4).max_bytes == 4
    assert oldest.ReadMaxRows(3) == oldest.ReadMaxRows(3) != oldest.ReadMaxRows(4)
    assert isinstance(oldest.ReadAllAvailable(), oldest.ReadLimit)
    assert oldest.ReadMaxRows.__module__ == "oldest_spark"
    assert oldest.CHECKPOINT_FILE_MANAGER == (
        "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    )


def plain_sink(base: type) -> type[DataSource]:
    """The data source, whose stream writer is of another class. Local, so pickled by value."""

    class PlainKinesis(KinesisDataSource):
        @classmethod
        def name(cls) -> str:
            return "kinesis-of-4-0"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            from penstock.spark_plugin._writing.writer import KinesisStreamWriter, _Writer

            # The members of the class, on the other base.
            members = {name: value for name, value in vars(KinesisStreamWriter).items() if not name.startswith("_")}
            return type("Writer", (_Writer, base), {**members, "_is_stream": True})(self._parsed, schema)

    return PlainKinesis


def test_a_micro_batch_is_written_as_arrow_by_a_writer_of_spark_4_0(
    spark: SparkSession, make_stream: Callable[[int], Any], tmp_path: Path
) -> None:
    """It looks whether the writer is one of DataFrames' Arrow writers, whatever it writes, and so gives it no rows."""
    stream = make_stream(1)

    class OfSpark40(DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[misc]  # as this one was
        pass

    spark.dataSource.register(plain_sink(OfSpark40))
    spark.range(500).write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id LONG").parquet(str(tmp_path / "in"))
    rows = frame.selectExpr("CAST(id AS STRING) AS data", "CAST(id AS STRING) AS partitionKey")
    writer = rows.writeStream.format("kinesis-of-4-0").options(**stream.options())
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert query.exception() is None
    written = spark.read.format("kinesis").options(**stream.options()).load().selectExpr("CAST(data AS STRING) AS id")
    assert sorted(int(row["id"]) for row in written.collect()) == list(range(500))


def test_the_writer_of_spark_4_0_is_of_the_classes_that_it_looks_for(oldest: ModuleType) -> None:
    """Neither alone is taken: a stream's writer of rows, and a DataFrame's of Arrow batches."""
    assert oldest.DataSourceStreamArrowWriter.__module__ == "oldest_spark"
    assert issubclass(oldest.DataSourceStreamArrowWriter, DataSourceArrowWriter)
    assert issubclass(oldest.DataSourceStreamArrowWriter, DataSourceStreamWriter)


@pytest.mark.parametrize(
    ("pyspark", "words"),
    [
        (None, f"needs PySpark 4.0 or newer, and {sys.executable} has none. With a Spark that is installed, run"),
        ("__version__ = '3.5.1'", f"needs PySpark 4.0 or newer, and {sys.executable} has 3.5.1. With a Spark that"),
    ],
)
def test_a_pyspark_that_is_missing_or_too_old_is_one_sentence(pyspark: str | None, words: str, tmp_path: Path) -> None:
    """And tells how to get another, also where only the package that Spark discovers is imported."""
    if pyspark is not None:
        (tmp_path / "pyspark" / "sql").mkdir(parents=True)
        (tmp_path / "pyspark" / "__init__.py").write_text(pyspark)
        (tmp_path / "pyspark" / "sql" / "__init__.py").touch()
        hide = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    else:
        hide = (
            "import importlib.util\nfound = importlib.util.find_spec\n"
            "importlib.util.find_spec = lambda name, *more: None if name == 'pyspark' else found(name, *more)\n"
        )
    for module in ("penstock.spark_plugin", "pyspark_kinesis"):
        command = [sys.executable, "-c", f"{hide}import {module}"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert words in ran.stderr, ran.stderr
        assert "pip install 'penstock-spark-plugin[pyspark]'" in ran.stderr
        # Discovery continues: it finds other sources.
        assert ran.returncode == (module == "penstock.spark_plugin")
