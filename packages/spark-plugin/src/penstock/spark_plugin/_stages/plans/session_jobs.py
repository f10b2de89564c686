"""What a run needs of a session, for the two kinds of sessions that there are."""

import contextlib
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pyspark.core.status import StatusTracker
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark_plugin._for_stages import TRACEPARENT_PROPERTY, tell_lines
from penstock.spark_plugin._stages.plans.plans import is_connect

_log = logging.getLogger(__name__)
_OF_JOBS = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class SessionJobs(Protocol):
    """Names and ends the jobs of a session, and knows its settings."""

    def group(self, name: str, description: str, traceparent: str | None) -> AbstractContextManager[None]:
        """Name the jobs that this thread starts, and let their tasks know the trace where a session can."""

    def cancel(self, name: str) -> None:
        """End the jobs of that name."""

    def tracker(self) -> StatusTracker | None:
        """Counts tasks; None where the session cannot."""

    def shuffle_partitions(self) -> int:
        """How many partitions a shuffle makes."""

    def broadcast_bytes(self) -> int:
        """The largest side of a join that is sent to all tasks; -1: none is."""

    def qualified(self, path: str) -> str:
        """A path as a URL, as the session would take it; as it is where that cannot be seen."""

    def reaches(self, path: str) -> bool:
        """Whether the session has a file system for a URL."""

    def is_batch_writer(self, value: object) -> bool:
        """Whether something is a `df.write…`."""

    def is_stream_writer(self, value: object) -> bool:
        """Whether something is a `df.writeStream…`."""

    def tell_lines(self) -> None:
        """Let the frames that this thread builds know the lines that build them, unless the session says otherwise."""


def jobs_of(spark: SparkSession) -> SessionJobs:
    """For a session."""
    if is_connect(spark):
        from penstock.spark_plugin._stages.plans.connect.jobs import ConnectJobs

        return ConnectJobs(spark)
    return ClassicJobs(spark)


class ClassicJobs:
    """See `SessionJobs`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @contextlib.contextmanager
    def group(self, name: str, description: str, traceparent: str | None) -> Iterator[None]:
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
        self._spark.sparkContext.cancelJobGroup(name)

    def tracker(self) -> StatusTracker | None:
        return self._spark.sparkContext.statusTracker()

    def shuffle_partitions(self) -> int:
        return int(self._spark._jsparkSession.sessionState().conf().numShufflePartitions())

    def broadcast_bytes(self) -> int:
        # The public way gives texts such as 10MB.
        return int(self._spark._jsparkSession.sessionState().conf().autoBroadcastJoinThreshold())

    def qualified(self, path: str) -> str:
        found = self._spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
        configuration = self._spark._jsparkSession.sessionState().newHadoopConf()
        return str(found.getFileSystem(configuration).makeQualified(found).toString())

    def reaches(self, path: str) -> bool:
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
        return isinstance(value, DataFrameWriter)

    def is_stream_writer(self, value: object) -> bool:
        return isinstance(value, DataStreamWriter)

    def tell_lines(self) -> None:
        jvm: Any = self._spark._jvm
        if not jvm.SparkSession.getActiveSession().isDefined():
            # PySpark asks the session that is active in the thread, which in a thread of our own none is.
            jvm.SparkSession.setActiveSession(self._spark._jsparkSession)
        tell_lines(self._spark)
