"""What a run needs of a session: its jobs, settings and paths."""

import contextlib
import copy
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from pyspark.core.status import StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.spark_plugin._for_stages import TRACEPARENT_PROPERTY, tell_lines
from penstock.spark_plugin._stages.plans.plan import is_connect

_log = logging.getLogger(__name__)
_OF_JOBS = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", "spark.job.tags")
_SECONDS_BETWEEN_LOOKS = 0.2
_LONGEST_SECONDS = 300.0
"""The time after which a server of Spark Connect itself abandons the operations of a client that is gone."""
_SIZE = re.compile(r"(-?\d+)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


class SessionJobs:
    """Names and ends the jobs of a classic session, and knows its settings."""

    def __init__(self, spark: SparkSession, scope: str = "") -> None:
        """`scope`: distinguishes jobs of equal names. One driver at a time uses it."""
        self._spark = spark
        self._scope = scope

    @property
    def session(self) -> str:
        """An identifier by which the next driver finds the jobs of this one; see `end_left`."""
        return str(self._spark.sparkContext.applicationId)

    @contextlib.contextmanager
    def group(self, name: str, description: str, traceparent: str | None) -> Iterator[None]:
        """Name the jobs that this thread starts, and let their tasks know the trace where a session can."""
        context = self._spark.sparkContext
        # The thread may be the caller's, with a name for its own jobs.
        before = {one: context.getLocalProperty(one) for one in (*_OF_JOBS, TRACEPARENT_PROPERTY)}
        context.setJobGroup(name, description, interruptOnCancel=False)
        for tag in self._tags(name):
            context.addJobTag(tag)
        if traceparent:
            context.setLocalProperty(TRACEPARENT_PROPERTY, traceparent)
        try:
            yield
        finally:
            for one, value in before.items():
                context.setLocalProperty(one, value)  # type: ignore[arg-type]  # None unsets

    def cancel(self, name: str) -> None:
        """End the jobs of that name."""
        self._spark.sparkContext.cancelJobsWithTag(self._tags(name)[0])

    def end_left(self, session: str) -> None:
        """End the jobs of this scope that a killed driver left in a session, and wait until they have ended.

        Jobs in a session that cannot be reached continue; the log says so.
        """
        if session == self.session:  # its Python has died, and the JVM has not
            _wait(self._has_ended)

    def _has_ended(self) -> bool:
        context: Any = self._spark.sparkContext
        context.cancelJobsWithTag(self._scope)
        jobs = list(context._jsc.sc().statusTracker().getJobIdsForTag(self._scope))
        # A write commits its files after the end of its last job.
        found: Any = self._spark._jsparkSession.sharedState().statusStore().executionsList()
        active = (found.apply(number) for number in range(found.size() if jobs else 0))
        return not any(one.jobs().contains(job) for one in active if one.completionTime().isEmpty() for job in jobs)

    def _tags(self, name: str) -> list[str]:
        """Jobs of the name in the scope, of the name anywhere, as users cancel them, and of the scope. No commas."""
        plain = name.replace(",", "_")
        return [f"{plain} {self._scope}", plain, self._scope] if self._scope else [plain]

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
        for tag in self._tags(name):
            self._spark.addTag(tag)
        try:
            yield
        finally:
            for tag in self._tags(name):
                self._spark.removeTag(tag)

    def cancel(self, name: str) -> None:
        self._spark.interruptTag(self._tags(name)[0])

    @property
    def session(self) -> str:
        return str(self._client._session_id)

    def end_left(self, session: str) -> None:
        from pyspark.sql.connect.client import ChannelBuilder, SparkConnectClient

        try:
            uuid.UUID(session)
        except ValueError:
            return  # a classic session
        # Tags belong to one session. Any client of its user may name that session, too.
        builder = copy.deepcopy(self._client._builder)
        builder.set(ChannelBuilder.PARAM_SESSION_ID, session)
        other: Any = SparkConnectClient(builder, user_id=self._client._user_id)
        try:
            operations = other.interrupt_tag(self._scope)
            # Earlier versions of Spark do not say when an operation has ended.
            if operations and hasattr(other, "_get_operation_statuses"):
                _wait(lambda: _have_ended(other, operations))
        except PySparkException as error:
            _log.warning("the jobs of a killed driver in the session %s cannot be ended: %s", session, error)
        finally:
            other.close()

    @property
    def _client(self) -> Any:
        return self._spark.client

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

    def tell_lines(self) -> None:
        tell_lines(self._spark)


def _have_ended(client: Any, operations: Sequence[str]) -> bool:
    from pyspark.sql.connect.proto import GetStatusResponse

    # The start of a streaming query stays in the state TERMINATING.
    running = GetStatusResponse.OperationStatus.OPERATION_STATE_RUNNING
    found = client._get_operation_statuses(list(operations)).operation_statuses
    return all(one.state != running for one in found)


def _wait(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    if not is_over():
        _log.warning("waiting for the cancelled jobs of a driver that was killed")
        while not is_over():
            if time.monotonic() > deadline:
                _log.warning("the jobs of a driver that was killed do not end; this run continues beside them")
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _size(text: str) -> int:
    """Bytes, of Spark's text for them: `10MB`, `1048576b`, `-1`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    return int(match[1]) << _POWERS[match[2].lower()] if match[1] != "-1" else -1


def is_writer(value: object, kind: Literal["DataFrameWriter", "DataStreamWriter"]) -> bool:
    """Whether something is a `df.write…` or a `df.writeStream…`, of a classic session or of Spark Connect."""
    return any(one.__name__ == kind and one.__module__.startswith("pyspark.sql.") for one in type(value).__mro__)


def jobs_of(spark: SparkSession, scope: str = "") -> SessionJobs:
    """For a session; `scope` as in `SessionJobs`."""
    return ConnectJobs(spark, scope) if is_connect(spark) else SessionJobs(spark, scope)
