"""Reads the rows of a committed stage."""

import json
from pathlib import Path

import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark_plugin._stages._store_names import as_url

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
