"""Events of a shard that were read and not yet committed. Does no I/O; its owner bounds it.

A buffer covers one interval of a shard's sequence numbers without gap. Its segments are the events that had
records; events of an idle shard only move the end. Four things happen to a segment, in this order: it is
*promised* (a caller was given a position at or beyond its last record), *delivered* (its records were
fetched), and *trimmed* (committed). When room is short it may be *evicted* once it was promised: its numbers
stay, its records are gone and have to be read from Kinesis again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from penstock.efo_consumer._buffer.segment import (
    Part,
    Piece,
    Segment,
    arrived_micros,
    arrived_millis_at,
    payload_bytes,
    position_at,
    rows_upto,
    sequence_number_at,
)
from penstock.efo_consumer._model.positions import PositionType, ShardPosition

if TYPE_CHECKING:
    from penstock.efo_consumer._model.shards import ShardEvent

_MAX_EVICTED_SEGMENTS = 256


class ShardTime:
    """Up to when a shard was read: whatever it brings later arrived then or after that.

    An answer says how far it is behind the tip of its shard. At the end of a closed shard that may be nothing although
    the children hold old records, so such a time counts when a later answer has shown that the shard continued.

    Args:
        known_millis: a time before which nothing can be missing, in milliseconds since the epoch; None if unknown.
    """

    __slots__ = ("_unproved", "millis")

    def __init__(self, known_millis: int | None) -> None:
        self.millis = known_millis
        """In milliseconds since the epoch; None while unknown."""
        self._unproved: int | None = None

    def take(self, event: ShardEvent) -> None:
        """Take the next event of the shard."""
        rows = event.records.num_rows
        if event.child_shards:
            self._unproved = None
        elif rows or event.read_millis is not None:
            self.reached(self._unproved)
            self._unproved = event.read_millis
        if rows:
            self.reached(arrived_millis_at(event.records, rows - 1))

    def reached(self, millis: int | None) -> None:
        """Note that everything that arrived before a time was read; None notes nothing."""
        if millis is not None and (self.millis is None or millis > self.millis):
            self.millis = millis


class ShardBuffer:
    """The buffered interval of one shard.

    Args:
        origin: where the publisher began.
    """

    def __init__(self, origin: ShardPosition) -> None:
        self.origin = origin
        self.first_record: str | None = None
        """Sequence number of the first record since a time or TRIM_HORIZON; None without one."""
        self.time = ShardTime(origin.known_millis)
        """Up to when the shard was read."""
        self.held_bytes = 0
        self._segments: list[Segment] = []
        self.end = origin
        """The furthest position: the last continuation, or SHARD_END."""
        # When the shard was caught up while it was open, as a later answer showed that was not its end. For a
        # closed shard that is always true, and says nothing about the children, which hold records since it was closed.
        self._open_millis = self._moved_millis = origin.caught_up_millis
        self._origin_is_held = True
        # The first position after which every record up to the end is in the segments, by sequence number.
        self._held_after = origin if origin.sequence_number is not None else None

    def with_facts(self, position: ShardPosition, start: ShardPosition | None) -> ShardPosition:
        """Give a position with all that is known of it as the end of a range.

        Args:
            position: at or before the end.
            start: where the range begins; None for a shard that enters.
        """
        if position == self.end:
            position = self.end
        begins_unnamed = start is None or not start.rank[0]
        if begins_unnamed and position.rank[0] and self.first_record is not None:
            position = replace(position, first_record=self.first_record)
        return position

    @property
    def rows(self) -> int:
        """Records that are held in memory."""
        return sum(segment.rows for segment in self._segments if segment.records is not None)

    @property
    def latest_micros(self) -> int | None:
        """When the last buffered record arrived, in microseconds since the epoch; None without one."""
        return self._segments[-1].latest_micros if self._segments else None

    @property
    def nbytes(self) -> int:
        """Bytes (data and partition keys) that are held in memory."""
        return sum(segment.nbytes for segment in self._segments if segment.records is not None)

    def append(self, event: ShardEvent) -> None:
        """Take the next event. Records at or before the end, if a publisher repeats some, are left out.

        An event without continuation and without children has no records either: it only has the lag, and perhaps
        that the shard is caught up.
        """
        self.time.take(event)
        before = self.end
        if event.child_shards:
            caught_up = self._open_millis
        else:
            # Records show that the shard was open when it was caught up before. So does a continuation that moves, but
            # the last answer of a closed shard may move, too: what counts is what was known before the move before.
            # An answer that leads nowhere only has a time at which the shard is known to have been open.
            if event.records.num_rows:
                shown = self._moved_millis = before.caught_up_millis
            elif event.continuation not in (None, before.sequence_number):
                shown, self._moved_millis = self._moved_millis, before.caught_up_millis
            else:
                shown = event.caught_up_millis
            open_millis = (self._open_millis, shown)
            self._open_millis = max((millis for millis in open_millis if millis is not None), default=None)
            known = (before.caught_up_millis, event.caught_up_millis)
            caught_up = max((millis for millis in known if millis is not None), default=None)
        records, nbytes = event.records, event.nbytes
        is_unproved = not before.rank[0] and before.known_millis is None and caught_up is None
        if not event.child_shards and (event.continuation is None or (is_unproved and not records.num_rows)):
            # A position that nothing is known of could not be distinguished from a loss later.
            self.end = replace(before, caught_up_millis=caught_up)
            return
        delivered = int(before.sequence_number or before.record or 0)
        if records.num_rows and delivered:
            repeated = rows_upto(records, delivered)
            if repeated:
                records = records.slice(repeated)
                nbytes = payload_bytes(records)
        # Without a record the facts about the last one stay; none was delivered since a time or TRIM_HORIZON.
        record = before.record if before.rank[0] else before.record or ""
        arrived = before.arrived_millis
        if records.num_rows:
            record = records.column("sequenceNumber")[records.num_rows - 1].as_py()
            arrived = arrived_millis_at(records, records.num_rows - 1)
            if not self.origin.rank[0] and self.first_record is None:
                self.first_record = records.column("sequenceNumber")[0].as_py()
        complete = max((m for m in (caught_up, before.timestamp_millis) if m is not None), default=None)
        number = event.continuation
        if number is not None:
            # A continuation may lie before the last record, and before where reading stands.
            number = str(max(int(number), int(record or 0), delivered))
        end = ShardPosition(
            PositionType.SHARD_END if number is None else PositionType.AFTER_SEQUENCE_NUMBER,
            sequence_number=number,
            caught_up_millis=complete,
            record=record,
            arrived_millis=arrived,
        )
        if records.num_rows:
            first, last = sequence_number_at(records, 0), sequence_number_at(records, records.num_rows - 1)
            times = arrived_micros(records)
            segment = Segment(
                first,
                last,
                arrived or 0,
                times[0].as_py(),
                pc.max(times).as_py(),
                end,
                records.num_rows,
                nbytes,
                records,
            )
            self._segments.append(segment)
            self.held_bytes += segment.held_bytes
        elif self._segments:
            self._segments[-1].stop = end
        if self._held_after is None and self._origin_is_held and end.sequence_number is not None:
            self._held_after = position_at(records, 0) if records.num_rows else end
        self.end = end

    def close(self) -> None:
        """End the shard here: it is gone, and nothing of it can be read any more."""
        self.end = replace(
            ShardPosition.shard_end(),
            record=self.end.record or "",
            arrived_millis=self.end.arrived_millis,
            caught_up_millis=self.end.known_millis,
        )
        if self._segments:
            self._segments[-1].stop = self.end

    def covers(self, position: ShardPosition) -> bool:
        """Whether every record after `position`, up to the end, is in the segments (evicted or not)."""
        if position == self.origin and self._origin_is_held:
            return True
        if position.type is not PositionType.AFTER_SEQUENCE_NUMBER:
            return position == self.end
        return self._held_after is not None and self._held_after.rank <= position.rank <= self.end.rank

    def holds(self, position: ShardPosition) -> bool:
        """Whether `covers(position)` and none of those records is evicted."""
        return self.covers(position) and all(
            segment.records is not None for segment in self._segments[self._index_after(position) :]
        )

    def parts(self, position: ShardPosition) -> list[Part]:
        """Give the records beyond `position`, segment by segment, in order."""
        return [Part.beyond(segment, position) for segment in self._segments[self._index_after(position) :]]

    def pieces(self, after: ShardPosition, upto: ShardPosition) -> list[Piece]:
        """Divide (after, upto] into what is held and what is missing, in order; neighbours that are missing are one."""
        found: list[Piece] = []
        at, begins = after, self._held_begin(after)
        if begins is None or begins.rank >= upto.rank or self.end.rank <= after.rank:
            return [Piece(after, upto)]
        if begins != after:
            found.append(Piece(after, begins))
            at = begins
        for segment in self._segments[self._index_after(at) :]:
            if (1, segment.first) > upto.rank:
                break
            last = segment.last_position
            until = last if last.rank < upto.rank else upto
            if segment.records is None and found and found[-1].is_missing:
                found[-1] = Piece(found[-1].after, until)
            else:
                is_whole = at.rank < (1, segment.first) and (1, segment.last) <= upto.rank
                found.append(Piece(at, until, segment.records, is_whole))
            at = until
        if upto.rank > self.end.rank:
            found.append(Piece(self.end, upto))
        return found

    def _held_begin(self, after: ShardPosition) -> ShardPosition | None:
        """Give the first position from `after` on from which all records are in the segments."""
        if self.covers(after):
            return after
        return None if self._held_after is None or after.rank > self._held_after.rank else self._held_after

    def promise(self, position: ShardPosition, now: float) -> None:
        """Note that a caller was given `position`."""
        for segment in self._segments:
            if (1, segment.last) > position.rank:
                break
            if segment.promised_at is None:
                segment.promised_at = now

    def forget_promises(self, position: ShardPosition) -> None:
        """Note that a new caller begins at `position`: records after it were promised to another caller."""
        for segment in self._segments[self._index_after(position) :]:
            segment.promised_at, segment.delivered = None, False

    def deliver(self, after: ShardPosition, upto: ShardPosition) -> None:
        """Note that the records of (after, upto] were fetched."""
        for segment in self._segments[self._index_after(after) :]:
            if (1, segment.last) > upto.rank:
                break
            segment.delivered = True

    def evict(self, promised_before: float) -> int:
        """Evict the oldest segment that may be evicted, and return the freed bytes; 0 without one.

        A segment may be evicted when it was promised and delivered, or promised no later than `promised_before`: it can
        be read again.
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

    def clear(self) -> None:
        """Drop all records."""
        for segment in self._segments:
            segment.records = None
        self.held_bytes = 0

    def trim(self, position: ShardPosition) -> None:
        """Forget the segments up to `position`: they were committed."""
        count = self._index_after(position)
        if not count:
            return
        last = self._segments[count - 1].last_position
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

    def _merge_evicted(self, end: int) -> None:
        """Make one segment of those before `end`: the oldest are evicted first, so all of these are."""
        evicted = self._segments[:end]
        self._segments[:end] = [
            Segment(
                evicted[0].first,
                evicted[-1].last,
                evicted[-1].arrived_millis,
                evicted[0].first_micros,
                max(segment.latest_micros for segment in evicted),
                evicted[-1].stop,
                sum(segment.rows for segment in evicted),
                sum(segment.nbytes for segment in evicted),
                None,
                promised_at=evicted[0].promised_at,
                delivered=True,
            )
        ]
