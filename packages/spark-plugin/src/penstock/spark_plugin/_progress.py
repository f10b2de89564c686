"""Which offset a micro-batch ends at: pure decisions over what the reader's buffers hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from penstock.efo_consumer import PositionsError, StreamPositions
from penstock.spark_plugin.errors import OffsetError


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """Most records and bytes of a micro-batch; 0 for no bound."""

    records: int = 0
    bytes: int = 0


def batch_limit(limit: ReadLimit, max_records: int | None, max_bytes: int | None) -> BatchLimit:
    """Spark's limit with the options' own. ReadAllAvailable takes precedence over the options, as Spark asks."""
    if isinstance(limit, ReadAllAvailable):
        return BatchLimit()
    records, size = max_records or 0, max_bytes or 0
    if isinstance(limit, ReadMaxRows):
        records = limit.max_rows
    elif isinstance(limit, ReadMaxBytes):
        size = limit.max_bytes
    return BatchLimit(records, size)


def default_limit(max_records: int | None, max_bytes: int | None) -> ReadLimit:
    """The limit that Spark is told of. It knows no limit on both: records go first, and bytes are added again later."""
    if max_records is not None:
        return ReadMaxRows(max_records)
    if max_bytes is not None:
        return ReadMaxBytes(max_bytes)
    return ReadAllAvailable()


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset of Spark's log: positions, and for a query's first micro-batch where it began.

    Spark logs the end of the first micro-batch, but not its start: after a crash it asks for the initial offset again,
    when LATEST is another moment and the oldest shards may be others. So that end says what it was read from.
    """

    positions: StreamPositions
    is_initial: bool = False
    """Whether it is where a query begins, not what a micro-batch has read."""
    since: StreamPositions | None = None
    """Of the end of the first micro-batch: its start."""

    def to_json(self) -> dict[str, Any]:
        """For Spark's log."""
        document = self.positions.to_json()
        if self.is_initial:
            document["initial"] = True
        if self.since is not None:
            document["since"] = self.since.to_json()
        return document

    def followed_by(self, positions: StreamPositions) -> "Offset":
        """The end of a micro-batch that starts here."""
        return Offset(positions, since=self.positions if self.is_initial else None)

    def start_for(self, end: "Offset") -> StreamPositions:
        """Where the micro-batch that Spark plans between the two really starts."""
        if not self.is_initial:
            return self.positions
        if end.is_initial:
            return end.positions
        return end.since or self.positions


def parse_offset(offset: Mapping[str, Any], streams: tuple[str, ...]) -> Offset:
    """An offset of Spark's log.

    Raises:
        OffsetError: It is not one of this source, or of other streams than the query reads.
    """
    try:
        positions = StreamPositions.from_json(offset)
        since = offset.get("since")
        parsed = Offset(
            positions,
            is_initial=bool(offset.get("initial", False)),
            since=StreamPositions.from_json(since) if since is not None else None,
        )
    except PositionsError as error:
        raise OffsetError(f"the checkpoint's offset is not one of the kinesis source: {error}") from error
    if set(positions.streams) != set(streams):
        raise OffsetError(
            f"the checkpoint is of the streams {', '.join(sorted(positions.streams))}; the query reads "
            f"{', '.join(sorted(streams))}. Begin a new checkpoint to read other streams"
        )
    return parsed


def capped(positions: StreamPositions, target: StreamPositions) -> StreamPositions:
    """The positions, nowhere beyond the target. Shards that are not in the target came after it, and are left out."""
    return StreamPositions(
        {
            stream: {
                shard: min(position, bound, key=lambda one: one.rank)
                for shard, bound in target.streams.get(stream, {}).items()
                if (position := shards.get(shard)) is not None
            }
            for stream, shards in positions.streams.items()
        }
    )
