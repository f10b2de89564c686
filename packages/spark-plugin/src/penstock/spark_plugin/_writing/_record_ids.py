"""Ids of records that are the same when a micro-batch runs again."""

from dataclasses import dataclass

from penstock.spark_plugin._telemetry import task_property


@dataclass(frozen=True, slots=True)
class WriteAttempt:
    """Which part of which write runs here."""

    job: str
    """The query's id, or that of the job for a write that is no stream."""
    batch: int
    """Of the micro-batch; 0 for a write that is no stream."""
    partition: int
    attempt: int
    """Counts the task's attempts from zero: not part of its records' ids."""
    write: str = ""
    """Tells dead letters of writes apart that go by the same name; not part of ids: those are the same each time."""
    comes_again: bool = False
    """Whether a later run of the same write goes by the same name: the micro-batch of a query."""

    @property
    def record_prefix(self) -> str:
        """What the ids of the task's records begin with."""
        return f"{self.job}-{self.batch}-{self.partition}-"


def this_attempt(job: str | None, write_id: str, *, is_stream: bool) -> WriteAttempt:
    """The attempt of the Spark task that runs here.

    Args:
        job: The name that the user gave to writes that are no query's.
        write_id: Of this write alone, and of all of its tasks.
        is_stream: Whether this is the query's own sink, not a write in its `foreachBatch`.
    """
    from pyspark import TaskContext

    query = task_property("sql.streaming.queryId")
    batch = task_property("streaming.sql.batchId")
    in_query = bool(query and batch)
    # Whatever writes in a `foreachBatch` has the properties of the query.
    by_query = in_query and (is_stream or job is None)
    name = (query if by_query else None) or job or write_id
    comes_again = in_query and (is_stream or job is not None)
    write = ""
    if comes_again and not by_query:
        # With a new checkpoint micro-batches are counted anew, and are others.
        write = query or ""
    elif not is_stream and name != write_id:
        write = write_id
    task = TaskContext.get()
    return WriteAttempt(
        name,
        int(batch or 0) if in_query else 0,
        task.partitionId() if task is not None else 0,
        task.attemptNumber() if task is not None else 0,
        write,
        comes_again=comes_again,
    )


def split_record_id(data: bytes) -> tuple[str, bytes]:
    """The id and the data of a record that was written with `recordIds` and without `valueFormat`.

    Raises:
        ValueError: There is no id before the data.
    """
    head, found, rest = data.partition(b"\n")
    if not found or head.count(b"-") < 3:
        raise ValueError("the data does not begin with a record id and a line break")
    return head.decode(), rest
