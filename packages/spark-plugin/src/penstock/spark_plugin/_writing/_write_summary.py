"""What writes did: the sinks' commit messages."""

from collections.abc import Sequence

from pyspark.sql.datasource import WriterCommitMessage

from penstock import async_sink


class WriteSummary(async_sink.WriteSummary, WriterCommitMessage):
    """What one write task did; the sink's commit message.

    `dead_letters` are the records in `deadLetterPath`; of several tasks, `seconds` are those of the longest.
    """


def total(messages: Sequence[WriterCommitMessage | None]) -> WriteSummary:
    """The sum of the commit messages of a micro-batch or job; tasks without one count nothing."""
    return WriteSummary.total(one for one in messages if isinstance(one, WriteSummary))
