"""Ids of records that are the same when a micro-batch runs again."""

import hashlib
import re
from dataclasses import dataclass

from penstock.spark_plugin._telemetry import task_property

_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class WriteAttempt:
    """Which part of which write runs here."""

    job: str
    """The query's id, or that of the job for a write that is not a stream."""
    batch: int
    """Of the micro-batch; 0 for a write that is not a stream."""
    partition: int
    attempt: int
    """Counts the task's attempts from zero: not part of its records' ids."""
    query: str = ""
    """The query's id, for a write in its `foreachBatch` that is named by its job. Of dead letters alone, as are those
    below: ids are the same each time."""
    run: str = ""
    """Of the query, for such a write, where it is known: a micro-batch that runs again does so in another run."""
    write: str = ""
    """Tells writes apart that go by the same name."""
    is_stream: bool = False
    """Whether it is of a query's own sink, which writes under the same name again when its micro-batch runs again."""

    @property
    def record_prefix(self) -> str:
        """What the ids of the task's records begin with."""
        return f"{self.job}-{self.batch}-{self.partition}-"


def this_attempt(job: str | None, write_id: str, *, is_stream: bool) -> WriteAttempt:
    """The attempt of the Spark task that runs here.

    Args:
        job: The name that the user gave to writes that are not a query's.
        write_id: Of this write alone, and of all of its tasks.
        is_stream: Whether this is the query's own sink, not a write in its `foreachBatch`.
    """
    from pyspark import TaskContext

    query = task_property("sql.streaming.queryId") or ""
    batch = task_property("streaming.sql.batchId")
    in_query = bool(query and batch)
    # Whatever writes in a `foreachBatch` has the properties of the query.
    by_query = in_query and (is_stream or job is None)
    name = (query if by_query else None) or job or write_id
    is_named = in_query and not by_query
    task = TaskContext.get()
    return WriteAttempt(
        name,
        int(batch or 0) if in_query else 0,
        task.partitionId() if task is not None else 0,
        task.attemptNumber() if task is not None else 0,
        # With a new checkpoint micro-batches are counted anew, and are others.
        query=query if is_named else "",
        run=_run() if is_named else "",
        write="" if is_stream or name == write_id else _short(write_id) if is_named else write_id,
        is_stream=is_stream,
    )


def _run() -> str:
    """The query's run, by its group of jobs; empty where `foreachBatch` has set a group of its own for its writes."""
    group = task_property("spark.jobGroup.id") or ""
    # Spark's own is the run's id, and its tasks are interrupted by a stop; those of users seldom are either.
    is_the_querys = _RUN_ID.fullmatch(group) and task_property("spark.job.interruptOnCancel") == "true"
    return _short(group) if is_the_querys else ""


def _short(text: str) -> str:
    # Names of files are 255 bytes at most, and the job's is the user's.
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def split_record_id(data: bytes) -> tuple[str, bytes]:
    """The id and the data of a record that was written with `recordIds` and without `valueFormat`.

    Raises:
        ValueError: the data does not begin with an id.
    """
    head, found, rest = data.partition(b"\n")
    if not found or head.count(b"-") < 3:
        raise ValueError("the data does not begin with a record id and a line break")
    return head.decode(), rest
