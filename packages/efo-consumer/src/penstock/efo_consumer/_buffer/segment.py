"""What a buffer is made of, and what it gives of a range."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer._model.positions import ShardPosition, after_record

SEGMENT_OVERHEAD_BYTES = 4096
"""What a segment costs beside its records: Arrow buffers, padding and Python objects."""


@dataclass(slots=True)
class Segment:
    """The records of one event, or (evicted) what is still known of several neighbouring ones.

    Attributes:
        first: sequence number of the first record.
        last: sequence number of the last record.
        arrived_millis: arrival time of the last record, in milliseconds since the epoch.
        first_micros: arrival time of the first record, in microseconds since the epoch.
        latest_micros: the latest arrival time of any record, in microseconds since the epoch.
        stop: the furthest position that has no record between it and `last`.
        rows: number of records.
        nbytes: their data and partition keys.
        records: WIRE_SCHEMA; None once evicted.
        promised_at: when a caller was first given a position at or beyond `last`; seconds of the owner's clock.
        delivered: whether the records were fetched.
    """

    first: int
    last: int
    arrived_millis: int
    first_micros: int
    latest_micros: int
    stop: ShardPosition
    rows: int
    nbytes: int
    records: pa.RecordBatch | None
    promised_at: float | None = None
    delivered: bool = False

    @property
    def last_position(self) -> ShardPosition:
        """After the last record."""
        return after_record(str(self.last), self.arrived_millis)

    @property
    def held_bytes(self) -> int:
        """Memory that the segment holds, about."""
        return 0 if self.records is None else self.nbytes + SEGMENT_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Part:
    """Records of one segment: those beyond a position, or the first of these.

    Attributes:
        segment: the segment.
        skip: leading records of the segment that are at or before the position.
        rows: how many records the part has.
        nbytes: their data and partition keys, in bytes.
        first_micros: arrival time of the first of them, in microseconds since the epoch.
        latest_micros: the latest arrival time of any of them.
        stop: the position after them; where the segment ends, the furthest one with no record in between.
    """

    segment: Segment
    skip: int
    rows: int
    nbytes: int
    first_micros: int
    latest_micros: int
    stop: ShardPosition

    @classmethod
    def beyond(cls, segment: Segment, position: ShardPosition) -> Self:
        """Give the records after a position, or all records of an evicted segment that contains it."""
        whole = cls(segment, 0, segment.rows, segment.nbytes, segment.first_micros, segment.latest_micros, segment.stop)
        if (1, segment.first) > position.rank or (records := segment.records) is None:
            return whole
        skip = rows_upto(records, position.rank[1])
        rest = records.slice(skip)
        times = arrived_micros(rest)
        return cls(
            segment, skip, rest.num_rows, payload_bytes(rest), times[0].as_py(), pc.max(times).as_py(), segment.stop
        )

    def first(self, rows: int) -> Part:
        """Give the first records of a part that has more, and is not evicted."""
        records = self.records
        assert records is not None
        kept = records.slice(0, rows)
        latest = pc.max(arrived_micros(kept)).as_py()
        stop = position_at(kept, rows - 1)
        return Part(self.segment, self.skip, rows, payload_bytes(kept), self.first_micros, latest, stop)

    @property
    def is_evicted(self) -> bool:
        """Whether the records are gone, so that the part cannot be cut."""
        return self.segment.records is None

    @property
    def records(self) -> pa.RecordBatch | None:
        """The records; None if they were evicted."""
        records = self.segment.records
        return None if records is None else records.slice(self.skip, self.rows)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a range: records in (after, upto], in memory or to be read from Kinesis again."""

    after: ShardPosition
    upto: ShardPosition
    records: pa.RecordBatch | None = None
    is_whole: bool = False
    """Whether all of the records are known to be in the piece, so that its bounds need not be searched for."""

    @property
    def is_missing(self) -> bool:
        """Whether the records are not held."""
        return self.records is None

    def load(self) -> pa.RecordBatch | None:
        """Give exactly the records of the piece; None when they are not held."""
        records = self.records
        if records is None or self.is_whole:
            return records
        rows = records.num_rows
        first, end = 0, rows
        if self.after.sequence_number is not None:
            first = rows_upto(records, int(self.after.sequence_number))
        if self.upto.sequence_number is not None:
            end = max(first, rows_upto(records, int(self.upto.sequence_number)))
        return records if end - first == rows else records.slice(first, end - first)


def rows_upto(records: pa.RecordBatch, sequence_number: int) -> int:
    """Count the leading records whose sequence number is not larger, as integers."""
    column, rows = records.column("sequenceNumber"), int(records.num_rows)
    # Most callers ask for all rows or for no row.
    if not rows or int(column[rows - 1].as_py()) <= sequence_number:
        return rows
    return bisect_right(range(records.num_rows), sequence_number, key=lambda row: int(column[row].as_py()))


def sequence_number_at(records: pa.RecordBatch, row: int) -> int:
    """Give the sequence number of a row."""
    return int(records.column("sequenceNumber")[row].as_py())


def arrived_millis_at(records: pa.RecordBatch, row: int) -> int:
    """Give the arrival time of a row, in milliseconds since the epoch."""
    return int(records.column("approximateArrivalTimestamp")[row].value // 1000)


def arrived_micros(records: pa.RecordBatch) -> pa.Int64Array:
    """Give the arrival times of all rows, in microseconds since the epoch, without a copy."""
    return records.column("approximateArrivalTimestamp").view(pa.int64())


def position_at(records: pa.RecordBatch, row: int) -> ShardPosition:
    """Give the position after a row, with what proves continuity beyond it."""
    return after_record(records.column("sequenceNumber")[row].as_py(), arrived_millis_at(records, row))


def payload_bytes(records: pa.RecordBatch) -> int:
    """Count the bytes of data and partition keys."""
    data = pc.sum(pc.binary_length(records.column("data"))).as_py() or 0
    keys = pc.sum(pc.binary_length(records.column("partitionKey"))).as_py() or 0
    return int(data) + int(keys)
