"""What writes did: the sinks' commit messages."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True)
class WriteSummary(WriterCommitMessage):
    """What one write task did; the sink's commit message."""

    records: int
    """Acknowledged by the destination, each counted once."""
    bytes: int
    """Their data and partition keys."""
    requests: int
    retries: int
    """Records that were sent again, counted each time."""
    throttled: int
    """Records that were refused because the destination was full, counted each time."""
    dead_letters: int = 0
    """Records that are in `deadLetterPath` instead; not among `records`."""
    seconds: float = 0.0
    """From the first row to the last acknowledgement; of several tasks, the longest."""

    def __str__(self) -> str:
        return (
            f"{self.records} records, {self.bytes} bytes, {self.requests} requests, {self.retries} retries, "
            f"{self.throttled} throttled, {self.dead_letters} dead letters, {self.seconds:.3f} s"
        )


_SUMS = ("records", "bytes", "requests", "retries", "throttled", "dead_letters")


def total(messages: Sequence[WriterCommitMessage | None]) -> WriteSummary:
    """The sum of the commit messages of a micro-batch or job; tasks without one count nothing."""
    summaries = [one for one in messages if isinstance(one, WriteSummary)]
    sums = {name: sum(getattr(one, name) for one in summaries) for name in _SUMS}
    return WriteSummary(**sums, seconds=max((one.seconds for one in summaries), default=0.0))
