"""Committed results: their rows, and whether all of them are still there."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark_plugin._stages.store.names import as_url

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


def read_committed(spark: SparkSession, folder: Path) -> DataFrame:
    """The rows of a folder of Parquet files that Spark wrote."""
    reader = spark.read
    schema = _schema(folder)
    if schema is not None:
        # Spark would run a job to look for it, which takes as long as the rest of reading a small result.
        reader = reader.schema(schema)
    return reader.parquet(as_url(folder))


def _schema(folder: Path) -> StructType | None:
    """The schema that Spark left in the files; None where they are not to be seen, or a type is the user's own."""
    try:
        file = next(folder.glob("*.parquet"))
        return StructType.fromJson(json.loads(pyarrow.parquet.read_metadata(file).metadata[_SPARK_SCHEMA]))
    except (StopIteration, OSError, KeyError, ValueError, TypeError, ImportError, AttributeError):
        return None


def measure(folders: Sequence[Path]) -> tuple[int, int]:
    """Rows and bytes in folders of Parquet files."""
    rows = size_bytes = 0
    for folder in folders:
        files = sorted(folder.glob("*.parquet"))
        size_bytes += sum(file.stat().st_size for file in files)
        rows += (
            int(pyarrow.dataset.dataset([str(file) for file in files], format="parquet").count_rows()) if files else 0
        )
    return rows, size_bytes


def damage(vertices: Iterable[str], output: Callable[[str], Path], expected: tuple[int, int]) -> str:
    """What is wrong with the data of a result, in words; empty if nothing is.

    Looks at the size of all files and at the footers, not at the rows between.

    Args:
        vertices: Of the result.
        output: The folder of each.
        expected: Bytes and rows of all.
    """
    found = rows = 0
    for vertex in vertices:
        path = output(vertex)
        if not path.is_dir():
            return f"the rows of {vertex!r} are gone: no folder {path}"
        for file in sorted(path.glob("*.parquet")):
            try:
                found += file.stat().st_size
                rows += pyarrow.parquet.read_metadata(file).num_rows
            except (OSError, pa.ArrowException) as error:
                return f"{file} cannot be read: {str(error).splitlines()[0]}"
    if (found, rows) != expected:
        return f"{found} bytes and {rows} rows are there, of {expected[0]} and {expected[1]}"
    return ""
