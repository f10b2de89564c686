"""What a shard's publisher brought and nobody committed yet: pure, exact, bounded by its owner.

A buffer covers one interval of a shard's sequence numbers without gap. Its segments are the events that had
records; events of an idle shard only move the end. Four things happen to a segment, in this order: it is
*promised* (a caller was given a position at or beyond its last record), *delivered* (its records were
fetched), and *trimmed* (committed). When room is short it may be *evicted* once it was promised: its numbers
stay, its records are gone and have to be read from Kinesis again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer._positions import PositionType, ShardPosition

if TYPE_CHECKING:
    from penstock.efo_consumer._publisher import ShardEvent

SEGMENT_OVERHEAD_BYTES = 4096
"""What a segment costs beside its records: Arrow buffers, padding and Python objects."""

_MAX_EVICTED_SEGMENTS = 256


@dataclass(slots=True)
class Segment:
    """The records of one event, or (evicted) what is still known of several neighbouring ones.

    Attributes:
        last: sequence number of the last record.
        stop: the furthest position that has no record between it and `last`.
        rows: number of records.
        nbytes: their data and partition keys.
        records: WIRE_SCHEMA; None once evicted.
        promised_at: when a caller was first given a position at or beyond `last`; seconds of the owner's
            clock.
        delivered: whether the records were fetched.
    """

    last: int
    stop: ShardPosition
    rows: int
    nbytes: int
    records: pa.RecordBatch | None
    promised_at: float | None = None
    delivered: bool = False

    @property
    def held_bytes(self) -> int:
        """Memory that the segment holds, about."""
        return 0 if self.records is None else self.nbytes + SEGMENT_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class ShardReach:
    """How far one shard's buffer leads from a position: to `end`, over `rows` records of `nbytes` bytes."""

    end: ShardPosition
    rows: int = 0
    nbytes: int = 0


class ShardBuffer:
    """The buffered interval of one shard.

    Args:
        origin: where the publisher began.
    """

    def __init__(self, origin: ShardPosition) -> None:
        self.origin = origin
        self.millis_behind_latest: int | None = None
        self.held_bytes = 0
        self._segments: list[Segment] = []
        self._end = origin
        self._origin_is_held = True
        # The smallest sequence number after which every record up to the end is in the segments.
        self._held_after = int(origin.sequence_number) if origin.sequence_number is not None else None

    @property
    def end(self) -> ShardPosition:
        """The furthest position: the last continuation, or SHARD_END."""
        return self._end

    @property
    def rows(self) -> int:
        """Records that are held in memory."""
        return sum(segment.rows for segment in self._segments if segment.records is not None)

    @property
    def nbytes(self) -> int:
        """Bytes (data and partition keys) that are held in memory."""
        return sum(segment.nbytes for segment in self._segments if segment.records is not None)

    def append(self, event: ShardEvent) -> None:
        """Take the next event. Records at or before the end, if a publisher repeats some, are left out.

        An event without continuation and without children has no records either: it only tells the lag.
        """
        self.millis_behind_latest = event.millis_behind_latest
        if event.continuation is None and not event.child_shards:
            return
        records, nbytes = event.records, event.nbytes
        if self._end.sequence_number is not None and records.num_rows:
            repeated = rows_upto(records, int(self._end.sequence_number))
            if repeated:
                records = records.slice(repeated)
                nbytes = _payload_bytes(records)
        end = ShardPosition.shard_end() if event.continuation is None else ShardPosition.after(event.continuation)
        if records.num_rows:
            last = _sequence_number(records, records.num_rows - 1)
            if end.rank < (1, last):
                end = ShardPosition.after(str(last))
            segment = Segment(last, end, records.num_rows, nbytes, records)
            self._segments.append(segment)
            self.held_bytes += segment.held_bytes
        elif end.rank < self._end.rank:
            end = self._end
        elif self._segments:
            self._segments[-1].stop = end
        if self._held_after is None and self._origin_is_held and end.sequence_number is not None:
            first = _sequence_number(records, 0) if records.num_rows else int(end.sequence_number)
            self._held_after = first
        self._end = end

    def covers(self, position: ShardPosition) -> bool:
        """Tell whether every record after `position`, up to the end, is in the segments (evicted or not)."""
        if position == self.origin and self._origin_is_held:
            return True
        if position.type is not PositionType.AFTER_SEQUENCE_NUMBER:
            return position == self._end
        return self._held_after is not None and self._held_after <= position.rank[1] and position.rank <= self._end.rank

    def holds(self, position: ShardPosition) -> bool:
        """Tell whether `covers(position)` and none of those records is evicted."""
        return self.covers(position) and all(
            segment.records is not None for segment in self._segments[self._index_after(position) :]
        )

    def available(self, position: ShardPosition) -> ShardReach:
        """Tell what lies between `position` and the end."""
        return self.reach(position, None, None)

    def reach(
        self, position: ShardPosition, max_rows: int | None, max_bytes: int | None, *, at_least_one: bool = False
    ) -> ShardReach:
        """Give the furthest position from `position` within the limits; a position beyond the end stays.

        `max_rows` may cut a segment; `max_bytes`, and an evicted segment, may not be cut. With
        `at_least_one`, the first segment is let through though it be larger than `max_bytes`.
        """
        if position.rank > self._end.rank or self._end.rank[0] == 0:
            return ShardReach(position)
        end, rows, nbytes = position, 0, 0
        for segment in self._segments[self._index_after(position) :]:
            skip = 0
            if position.sequence_number is not None and segment.records is not None:
                skip = rows_upto(segment.records, int(position.sequence_number))
            part_rows, part_bytes = segment.rows - skip, segment.nbytes
            if skip and segment.records is not None:
                part_bytes = _payload_bytes(segment.records.slice(skip))
            first = at_least_one and not rows
            if max_bytes is not None and nbytes + part_bytes > max_bytes and not first:
                return ShardReach(end, rows, nbytes)
            if max_rows is not None and rows + part_rows > max_rows:
                take = max_rows - rows
                if segment.records is None:
                    # The records are gone, so is the place to cut at: whole when it is the first, else not at
                    # all.
                    if first and take:
                        return ShardReach(segment.stop, part_rows, part_bytes)
                elif take > 0:
                    part = segment.records.slice(skip, take)
                    cut = ShardPosition.after(str(_sequence_number(part, take - 1)))
                    return ShardReach(cut, rows + take, nbytes + _payload_bytes(part))
                return ShardReach(end, rows, nbytes)
            end, rows, nbytes = segment.stop, rows + part_rows, nbytes + part_bytes
        return ShardReach(self._end, rows, nbytes)

    def read(self, after: ShardPosition, upto: ShardPosition) -> list[pa.RecordBatch] | None:
        """Give the records of (after, upto], or None when not all of them are held."""
        if not self.covers(after) or upto.rank > self._end.rank:
            return None
        batches: list[pa.RecordBatch] = []
        for segment in self._segments[self._index_after(after) :]:
            if segment.records is None:
                return None
            records = segment.records
            if after.sequence_number is not None:
                records = records.slice(rows_upto(records, int(after.sequence_number)))
            if upto.sequence_number is not None and upto.rank < (1, segment.last):
                records = records.slice(0, rows_upto(records, int(upto.sequence_number)))
                if records.num_rows:
                    batches.append(records)
                break
            batches.append(records)
        return batches

    def promise(self, position: ShardPosition, now: float) -> None:
        """Note that a caller was given `position`."""
        for segment in self._segments:
            if (1, segment.last) > position.rank:
                break
            if segment.promised_at is None:
                segment.promised_at = now

    def forget_promises(self, position: ShardPosition) -> None:
        """Note that a new caller begins at `position`: what lies beyond was promised to another only."""
        for segment in self._segments[self._index_after(position) :]:
            segment.promised_at, segment.delivered = None, False

    def deliver(self, after: ShardPosition, upto: ShardPosition) -> None:
        """Note that the records of (after, upto] were fetched."""
        for segment in self._segments[self._index_after(after) :]:
            if (1, segment.last) > upto.rank:
                break
            segment.delivered = True

    def evict(self, promised_before: float) -> int:
        """Let go of the oldest segment that may go, and give the bytes that this freed; 0 when none may.

        One may go when it was promised and delivered, or promised no later than `promised_before`: it can be
        read again.
        """
        for index, segment in enumerate(self._segments):
            if segment.records is None:
                continue
            if segment.promised_at is None or not (segment.delivered or segment.promised_at <= promised_before):
                return 0
            freed = segment.held_bytes
            segment.records = None
            self.held_bytes -= freed
            if index >= _MAX_EVICTED_SEGMENTS:
                self._merge_evicted(index)
            return freed
        return 0

    def trim(self, position: ShardPosition) -> None:
        """Forget the segments up to `position`: they were committed."""
        count = self._index_after(position)
        if not count:
            return
        last = self._segments[count - 1].last
        self.held_bytes -= sum(segment.held_bytes for segment in self._segments[:count])
        del self._segments[:count]
        self._held_after = last
        self._origin_is_held = False

    def _index_after(self, position: ShardPosition) -> int:
        kind, number = position.rank
        if kind == 0:
            return 0
        if kind == 2:
            return len(self._segments)
        return bisect_right(self._segments, number, key=lambda segment: segment.last)

    def _merge_evicted(self, count: int) -> None:
        evicted = self._segments[:count]
        self._segments[:count] = [
            Segment(
                evicted[-1].last,
                evicted[-1].stop,
                sum(segment.rows for segment in evicted),
                sum(segment.nbytes for segment in evicted),
                None,
                evicted[0].promised_at,
                True,
            )
        ]


def rows_upto(records: pa.RecordBatch, sequence_number: int) -> int:
    """Count the leading records whose sequence number is not larger, as integers."""
    column = records.column("sequenceNumber")
    return bisect_right(range(records.num_rows), sequence_number, key=lambda row: int(column[row].as_py()))


def _sequence_number(records: pa.RecordBatch, row: int) -> int:
    return int(records.column("sequenceNumber")[row].as_py())


def _payload_bytes(records: pa.RecordBatch) -> int:
    data = pc.sum(pc.binary_length(records.column("data"))).as_py() or 0
    keys = pc.sum(pc.binary_length(records.column("partitionKey"))).as_py() or 0
    return int(data) + int(keys)
