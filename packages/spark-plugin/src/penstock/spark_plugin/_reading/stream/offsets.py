"""Which offset a micro-batch ends at, and its partitions: pure decisions over what the reader's buffers hold."""

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from penstock.efo_consumer import PositionsError, ShardPosition, ShardRange, ShardStats, StreamPositions, ranges_between
from penstock.spark_plugin._spark import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from penstock.spark_plugin.errors import OffsetError

MOST_DEFAULT_PARTITIONS = 8
"""Beyond this, the cost of a partition outweighs what it adds on one host."""

WORTHWHILE_BYTES = 64 * 1024
"""Bytes that are worth a partition: reading less takes no time beside the 2 to 20 ms that a partition costs."""


def default_max_partitions(cores: int | None = None) -> int:
    """Half of the cores, between 1 and 8: reading shares them with the query's own work."""
    return max(1, min(MOST_DEFAULT_PARTITIONS, (cores or os.cpu_count() or 2) // 2))


def worthwhile_partitions(nbytes: int, fewest: int, most: int) -> int:
    """How many partitions `nbytes` of a micro-batch are worth, between `fewest` and `most`."""
    return max(fewest, min(most, -(-nbytes // WORTHWHILE_BYTES)))


def group_ranges(
    ranges: Sequence[ShardRange], weights: Mapping[tuple[str, str], int], max_partitions: int
) -> list[tuple[ShardRange, ...]]:
    """At most `max_partitions` groups of about equal weight; every range is in exactly one.

    `weights`: bytes by stream and shard; one that is not in it weighs as little as can be. The heaviest first into the
    lightest group: within 4/3 of the best, and always the same for the same input.
    """
    if not ranges:
        return []
    count = min(max_partitions, len(ranges))
    groups: list[list[ShardRange]] = [[] for _ in range(count)]
    loads = [0] * count

    def weight(one: ShardRange) -> int:
        return max(1, weights.get((one.stream_name, one.shard_id), 1))

    for one in sorted(ranges, key=lambda one: (-weight(one), one.stream_name, one.shard_id)):
        lightest = loads.index(min(loads))
        groups[lightest].append(one)
        loads[lightest] += weight(one)
    return [tuple(sorted(group, key=lambda one: (one.stream_name, one.shard_id))) for group in groups]


def partition_bounds(least: int | None, most: int | None) -> tuple[int, int]:
    """The fewest and the most partitions, from the options. A least number raises the most of those who gave none."""
    fewest = least or 1
    return fewest, most or max(fewest, default_max_partitions())


def divide_by_cuts(cuts: Sequence[StreamPositions]) -> list[tuple[ShardRange, ...]]:
    """One group of ranges between each two successive positions; together they are what lies between the outer two."""
    steps = (tuple(ranges_between(after, upto)) for after, upto in pairwise(cuts))
    return [step for step in steps if step]


_NO_LIMIT = 2**63 - 1
_OFFSETS_IN_MIND = 4


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """What a micro-batch may hold; 0 and None for no bound."""

    records: int = 0
    bytes: int = 0
    records_per_shard: int = 0
    shard_skew: float | None = None
    """Most seconds between the time up to which the slowest shard was read and the arrival of a record."""

    def cuts(self, records: int, size: int) -> bool:
        """Whether these records and bytes are more than a micro-batch may have."""
        return 0 < self.records < records or 0 < self.bytes < size


class LeastRecords:
    """Whether a micro-batch waits for more records (`minRecordsPerBatch`).

    Args:
        records: that it should have at least.
        delay_seconds: that the first of them waits at most.
    """

    def __init__(self, records: int, delay_seconds: float) -> None:
        self._records = records
        self._delay_seconds = delay_seconds
        self._since: float | None = None

    def holds(self, records: int, now: float, *, is_full: bool) -> bool:
        """Whether these records are too few at this moment. Once there are enough, the next wait begins.

        Buffers, or a micro-batch, that are full get no more: what they hold is read.
        """
        if self._since is None:
            self._since = now
        if 0 < records < self._records and not is_full and now - self._since < self._delay_seconds:
            return True
        self._since = None
        return False


class KnownTips:
    """Whether it is known that there are no records, rather than that none came in a moment.

    `processAllAvailable` ends at the first answer without records. So a query that begins is answered when each of its
    shards has been at its tip, and one that has new shards when each of them has answered; or after a while, as
    whatever else the query reads waits, too.

    Args:
        patience_seconds: how long to wait for shards.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._since: float | None = None
        self._were_seen = False

    def waits(self, stats: Iterable[ShardStats], now: float) -> bool:
        """Whether records may be on their way at this moment. Of shards in trouble none are."""
        lags = (one.millis_behind_latest for one in stats if not one.condition.is_troubled)
        if any(lag < 0 or (lag > 0 and not self._were_seen) for lag in lags):
            self._since = now if self._since is None else self._since
            if now - self._since < self._patience_seconds:
                return True
        else:
            self._since = None
        self._were_seen = True
        return False


def turnover(before: StreamPositions, after: StreamPositions) -> tuple[int, int]:
    """How many shards came to their end between two offsets, and in how many streams others took over."""
    ended = reshards = 0
    for stream, shards in after.streams.items():
        known = before.streams.get(stream)
        if known is None:
            continue  # a stream that was added
        ended += sum(
            position.is_shard_end and not (shard in known and known[shard].is_shard_end)
            for shard, position in shards.items()
        )
        reshards += bool(shards.keys() - known.keys())
    return ended, reshards


def batch_limit(
    limit: ReadLimit,
    max_records: int | None,
    max_bytes: int | None,
    max_records_per_shard: int | None = None,
    max_shard_skew: float | None = None,
) -> BatchLimit:
    """Spark's limit with the options' own. ReadAllAvailable takes precedence over the options, as Spark asks."""
    if isinstance(limit, ReadAllAvailable):
        return BatchLimit()
    records, size = max_records or 0, max_bytes or 0
    if isinstance(limit, ReadMaxRows):
        records = limit.max_rows if limit.max_rows < _NO_LIMIT else 0
    elif isinstance(limit, ReadMaxBytes):
        size = limit.max_bytes
    return BatchLimit(records, size, max_records_per_shard or 0, max_shard_skew)


def default_limit(max_records: int | None, max_bytes: int | None) -> ReadLimit:
    """The limit for Spark, which has no limit on both: records go first, and bytes are added again later.

    Without any it is a limit that nothing reaches: so `ReadAllAvailable` comes with `Trigger.Once` alone.
    """
    if max_records is not None:
        return ReadMaxRows(max_records)
    if max_bytes is not None:
        return ReadMaxBytes(max_bytes)
    return ReadMaxRows(_NO_LIMIT)


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
    """Where a micro-batch started, if not at the end before it. That is the first micro-batch, and one before which
    streams were added or dropped."""
    epoch: int = 0
    """Number of the run that logged it, among the runs of this query at its shard-reader services: each driver that
    continues from here gets a larger one. 0 without services."""
    query: str = ""
    """A name of this query, the same in all runs, by which a run takes the lease of its predecessor over, and of which
    `efoConsumerName` is made where it was left out. Empty by polling, and for a query with a `jobId` and that."""

    def to_json(self) -> dict[str, Any]:
        """For Spark's log."""
        document = self.positions.to_json()
        if self.is_initial:
            document["initial"] = True
        if self.since is not None:
            document["since"] = self.since.to_json()
        if self.epoch:
            document["epoch"] = self.epoch
        if self.query:
            document["query"] = self.query
        return document

    def followed_by(
        self, positions: StreamPositions, begin: StreamPositions | None = None, epoch: int = 0, query: str = ""
    ) -> "Offset":
        """The end of a micro-batch that starts here, or at `begin` where other streams are read from now on."""
        if begin is None and self.is_initial:
            begin = self.positions
        return Offset(positions, since=begin, epoch=max(epoch, self.epoch), query=query)

    def start_for(self, end: "Offset") -> StreamPositions:
        """Where the micro-batch that Spark plans between the two really starts."""
        if self.is_initial and end.is_initial:
            return end.positions
        if not self.is_initial and self.positions == end.positions:
            return self.positions  # nothing, not what was read before it
        return end.since or self.positions


def parse_offset(offset: Mapping[str, Any]) -> Offset:
    """An offset of Spark's log.

    Raises:
        OffsetError: the text is not an offset of this source.
    """
    try:
        since = offset.get("since")
        return Offset(
            StreamPositions.from_json(offset),
            is_initial=bool(offset.get("initial", False)),
            since=StreamPositions.from_json(since) if since is not None else None,
            epoch=int(offset.get("epoch", 0)),
            query=str(offset.get("query", "")),
        )
    except (PositionsError, AttributeError, TypeError, ValueError, OverflowError) as error:
        raise OffsetError(
            f"the checkpoint's offset is not one of the kinesis source, or of a newer version of it ({error}). Use the "
            "checkpoint of this query with the version that wrote it, or begin a new checkpoint with an "
            "initialPosition in sequence numbers or a time"
        ) from error


class OffsetMemory:
    """The last few offsets, as JSON and parsed.

    For one micro-batch Spark asks with the same two about five times, each time with all shards in them. To compare
    documents takes a fraction of parsing one. Callers do not change a document afterwards.
    """

    def __init__(self) -> None:
        self._known: deque[tuple[Mapping[str, Any], Offset]] = deque(maxlen=_OFFSETS_IN_MIND)

    def parse(self, document: Mapping[str, Any]) -> Offset:
        """See `parse_offset`."""
        for known, offset in self._known:
            if known == document:
                return offset
        return self._keep(document, parse_offset(document))

    def to_json(self, offset: Offset) -> dict[str, Any]:
        """For Spark's log; Spark will ask with it."""
        document = offset.to_json()
        self._keep(document, offset)
        return document

    def _keep(self, document: Mapping[str, Any], offset: Offset) -> Offset:
        self._known.appendleft((document, offset))
        return offset


def says_more(latest: StreamPositions, start: StreamPositions) -> bool:
    """Whether there is something to log: another position, or newer facts about one.

    Facts have no part in a comparison of positions. How often they are new is the reader's to decide. A creation time
    alone waits for the next micro-batch.
    """
    return latest.streams != start.streams or any(
        position.with_facts != start.streams[stream][shard].with_facts
        for stream, shards in latest.streams.items()
        for shard, position in shards.items()
    )


def capped(positions: StreamPositions, target: StreamPositions) -> StreamPositions:
    """The positions, nowhere beyond the target. Shards that are not in the target came after it, and are left out."""
    return StreamPositions(
        {
            stream: {
                shard: _capped(position, bound)
                for shard, bound in target.streams.get(stream, {}).items()
                if (position := shards.get(shard)) is not None
            }
            for stream, shards in positions.streams.items()
        },
        positions.created,
    )


def _capped(position: ShardPosition, bound: ShardPosition) -> ShardPosition:
    if position.rank <= bound.rank:
        return position
    first = position.first_record
    if first is None or bound.sequence_number is None or int(first) > int(bound.sequence_number):
        return bound
    return replace(bound, first_record=first)


def with_ended(before: StreamPositions, after: StreamPositions) -> StreamPositions:
    """The later positions, with those shards at their end that the earlier ones have and these do not.

    A shard leaves the positions of a reader in the step after the one that shows its end. Where two steps become one,
    that end would be missing. The first record of the two steps is the first record of the earlier one.
    """
    return StreamPositions(
        {
            stream: {
                **{shard: _ended(position) for shard, position in before.streams.get(stream, {}).items()},
                **{shard: _joined(before.get(stream, shard), position) for shard, position in shards.items()},
            }
            for stream, shards in after.streams.items()
        },
        after.created,
    )


def _ended(position: ShardPosition) -> ShardPosition:
    return position if position.is_shard_end else ShardPosition.shard_end()


def _joined(before: ShardPosition | None, after: ShardPosition) -> ShardPosition:
    if before is None or before.first_record is None or after.first_record == before.first_record:
        return after
    return replace(after, first_record=before.first_record)
