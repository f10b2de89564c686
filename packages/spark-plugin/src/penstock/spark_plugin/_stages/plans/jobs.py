"""What a run needs of a session: its jobs, settings and paths."""

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

from pyspark.core.status import StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark_plugin._for_stages import TRACEPARENT_PROPERTY, tell_lines
from penstock.spark_plugin._stages.plans.plan import is_connect

_log = logging.getLogger(__name__)
_OF_JOBS = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
_SIZE = re.compile(r"(-?\d+)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


class SessionJobs:
    """Names and ends the jobs of a classic session, and knows its settings."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @contextlib.contextmanager
    def group(self, name: str, description: str, traceparent: str | None) -> Iterator[None]:
        """Name the jobs that this thread starts, and let their tasks know the trace where a session can."""
        context = self._spark.sparkContext
        # The thread may be the caller's, with a name for its own jobs.
        before = {one: context.getLocalProperty(one) for one in (*_OF_JOBS, TRACEPARENT_PROPERTY)}
        context.setJobGroup(name, description, interruptOnCancel=False)
        if traceparent:
            context.setLocalProperty(TRACEPARENT_PROPERTY, traceparent)
        try:
            yield
        finally:
            for one, value in before.items():
                context.setLocalProperty(one, value)  # type: ignore[arg-type]  # None unsets

    def cancel(self, name: str) -> None:
        """End the jobs of that name."""
        self._spark.sparkContext.cancelJobGroup(name)

    def tracker(self) -> StatusTracker | None:
        """Counts tasks; None where the session cannot."""
        return self._spark.sparkContext.statusTracker()

    def shuffle_partitions(self) -> int:
        """How many partitions a shuffle makes."""
        return int(self._spark._jsparkSession.sessionState().conf().numShufflePartitions())

    def broadcast_bytes(self) -> int:
        """The largest side of a join that is sent to all tasks; -1: none is."""
        # The public way gives texts such as 10MB.
        return int(self._spark._jsparkSession.sessionState().conf().autoBroadcastJoinThreshold())

    def qualified(self, path: str) -> str:
        """A path as a URL, as the session would take it; unchanged where the session does not show that."""
        found = self._spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
        configuration = self._spark._jsparkSession.sessionState().newHadoopConf()
        return str(found.getFileSystem(configuration).makeQualified(found).toString())

    def reaches(self, path: str) -> bool:
        """Whether the session has a file system for a URL."""
        found = self._spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
        try:
            found.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
        except Exception as error:
            if type(error).__name__ != "Py4JJavaError":
                raise
            # No class for its scheme, or one that is not set up.
            _log.debug("Spark does not reach %s", path, exc_info=True)
            return False
        return True

    def is_batch_writer(self, value: object) -> bool:
        """Whether something is a `df.write…`."""
        return isinstance(value, DataFrameWriter)

    def is_stream_writer(self, value: object) -> bool:
        """Whether something is a `df.writeStream…`."""
        return isinstance(value, DataStreamWriter)

    def tell_lines(self) -> None:
        """Let the frames that this thread builds know the lines that build them, unless the session says otherwise."""
        jvm: Any = self._spark._jvm
        if not jvm.SparkSession.getActiveSession().isDefined():
            # PySpark asks the session that is active in the thread, which in a thread of our own none is.
            jvm.SparkSession.setActiveSession(self._spark._jsparkSession)
        tell_lines(self._spark)


class ConnectJobs(SessionJobs):
    """The same of a Spark Connect session. A client has neither a status tracker nor local properties."""

    @contextlib.contextmanager
    def group(self, name: str, description: str, traceparent: str | None) -> Iterator[None]:
        tag = _tag(name)
        self._spark.addTag(tag)
        try:
            yield
        finally:
            self._spark.removeTag(tag)

    def cancel(self, name: str) -> None:
        self._spark.interruptTag(_tag(name))

    def tracker(self) -> StatusTracker | None:
        return None

    def shuffle_partitions(self) -> int:
        return int(self._spark.conf.get("spark.sql.shuffle.partitions") or 200)

    def broadcast_bytes(self) -> int:
        return _size(self._spark.conf.get("spark.sql.autoBroadcastJoinThreshold") or "10MB")

    def qualified(self, path: str) -> str:
        return path.rstrip("/")

    def reaches(self, path: str) -> bool:
        try:
            self._spark.read.text(path).schema  # noqa: B018  # asks the server
        except PySparkException as error:
            return error.getCondition() == "PATH_NOT_FOUND"
        return True

    def is_batch_writer(self, value: object) -> bool:
        from pyspark.sql.connect.readwriter import DataFrameWriter as ConnectWriter

        return isinstance(value, ConnectWriter)

    def is_stream_writer(self, value: object) -> bool:
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as ConnectStreamWriter

        return isinstance(value, ConnectStreamWriter)

    def tell_lines(self) -> None:
        tell_lines(self._spark)


def _tag(name: str) -> str:
    """A name as a tag, which has no commas."""
    return name.replace(",", "_")


def _size(text: str) -> int:
    """Bytes, of Spark's text for them: `10MB`, `1048576b`, `-1`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    return int(match[1]) << _POWERS[match[2].lower()] if match[1] != "-1" else -1


def jobs_of(spark: SparkSession) -> SessionJobs:
    """For a session."""
    return ConnectJobs(spark) if is_connect(spark) else SessionJobs(spark)
