"""The differences between versions of Spark that matter to this package.

| since | what Python sources and sinks have |
| --- | --- |
| 4.0 | Arrow batches in reads, and in writes of a DataFrame |
| 4.1 | a class for micro-batches that are written as Arrow, Unix sockets to workers |
| 4.2 | the start and the limit of a micro-batch, `Trigger.AvailableNow`, numbers in the progress |

Each is found out by what there is, not by a version: platforms have Sparks of their own.
"""

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock.spark_plugin.errors import MissingLibraryError

__all__ = [
    "CHECKPOINT_FILE_MANAGER",
    "SPARK_TELLS_LIMITS",
    "SPARK_USES_UNIX_SOCKETS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "tell_lines",
]

if find_spec("pyspark") is None:
    path = " (its folders `python` and `python/lib/py4j-*-src.zip` are for PYTHONPATH)"
    raise MissingLibraryError.of("PYSPARK_UNUSABLE", version=None, python=sys.executable, found="has none", path=path)

import pyspark  # after the check above: other import errors explain themselves

try:
    from pyspark.sql import SparkSession, datasource
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
except ImportError as error:
    if getattr(error, "name", None) not in ("pyspark.sql", "pyspark.sql.datasource"):
        raise
    version = pyspark.__version__
    raise MissingLibraryError.of(
        "PYSPARK_UNUSABLE", version=version, python=sys.executable, found=f"has {version}", path=""
    ) from error

SPARK_TELLS_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether `latestOffset` is asked with a start and a limit, and `Trigger.AvailableNow` is announced."""

_IS_4_1 = hasattr(datasource, "DataSourceStreamArrowWriter")

SPARK_USES_UNIX_SOCKETS = _IS_4_1
"""Whether workers are reached by Unix sockets where `spark.python.unix.domain.socket.enabled` says so."""

_STREAMING = "org.apache.spark.sql.execution.streaming"
CHECKPOINT_FILE_MANAGER = f"{_STREAMING}{'.checkpointing' if _IS_4_1 else ''}.FileSystemBasedCheckpointFileManager"
"""Spark's class that writes checkpoints as plain files."""


def tell_lines(spark: SparkSession) -> None:
    """Let PySpark remember the lines that build frames, unless the session says otherwise.

    It looks once in a process, when the first frame or column is made. Is no session active in the thread that does
    it, nothing has lines from then on.
    """
    from pyspark.errors import utils

    if getattr(utils, "_enable_debugging_cache", None) is False:
        wanted = spark.conf.get("spark.python.sql.dataFrameDebugging.enabled", "true")
        utils._enable_debugging_cache = str(wanted).lower() == "true"  # type: ignore[assignment]  # None at first


if TYPE_CHECKING or _IS_4_1:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):
        """A writer of micro-batches that gets Arrow batches.

        Spark 4.0 has no such class, and gives rows to a `DataSourceStreamWriter`. But if the writer is a
        `DataSourceArrowWriter`, Spark passes the batches as they are.
        """


if TYPE_CHECKING or SPARK_TELLS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """How much of a source a micro-batch reads."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        """All that is there."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """So many rows at most."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """So many bytes at most."""

        max_bytes: int

    class SupportsTriggerAvailableNow(ABC):
        """A source that learns when a run reads what is there and ends; before Spark 4.2 it learns nothing."""

        @abstractmethod
        def prepareForTriggerAvailableNow(self) -> None:
            """Remember where the run ends."""
