"""The batch that a caller has, how much of it is finished, and the positions behind that part. No I/O."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.efo_consumer._buffer.segment import position_at, rows_upto, sequence_number_at
from penstock.efo_consumer._continuity.lineage import entering
from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions

if TYPE_CHECKING:
    from penstock.efo_consumer._reader.api import PositionsSnapshot

_ShardKey = tuple[str, str]
"""Name of a stream, as the rows have it, and id of a shard."""


class Unfinished:
    """The records of one step of a reader, of which the caller has finished the first ones.

    Args:
        records: READ_SCHEMA, all records between the two positions, at least one; in sequence order within each shard.
        before: where the step begins.
        reached: where the step ends.
    """

    def __init__(self, records: pa.RecordBatch, before: StreamPositions, reached: PositionsSnapshot) -> None:
        self.before = before
        self.after = reached.positions
        self.millis_behind_latest = reached.millis_behind_latest
        self._lineage = reached.lineage
        self.finished = 0
        """How many records the caller has finished, from the first one."""
        self._records = records

    @property
    def is_finished(self) -> bool:
        """Whether the caller has finished all records."""
        return self.finished == int(self._records.num_rows)

    @property
    def rest(self) -> pa.RecordBatch:
        """The records that are not finished."""
        return self._records.slice(self.finished) if self.finished else self._records

    @property
    def positions(self) -> StreamPositions:
        """Behind the finished records and before all others. A consumer that begins there misses nothing.

        A position cannot point into an aggregate: it lies before an aggregate until all of its user records are
        finished. These come again after a restart; nothing else does.

        A shard whose records are all finished stands where the step ends, and so does a shard without records. A shard
        that enters in the step has no position unless its parents are finished to their ends, because a consumer would
        read it before these.
        """
        if not self.finished:
            return self.before
        if self.is_finished:
            return self.after
        unfinished = self._first_unfinished()
        return StreamPositions(
            {stream: self._within(stream, unfinished) for stream in self.after.streams}, self.after.created
        )

    def _within(self, stream: str, unfinished: dict[_ShardKey, int]) -> dict[str, ShardPosition]:
        name, parents = _column_name(stream), self._parents(stream)
        begin, end = self.before.streams.get(stream, {}), self.after.streams[stream]
        found: dict[str, ShardPosition] = {}
        entered: dict[str, ShardPosition | None] = {}
        is_an_end_unfinished = False
        for shard_id, position in end.items():
            first = unfinished.get((name, shard_id))
            if first is not None:
                is_an_end_unfinished |= position.is_shard_end
                cut = self._cut(stream, shard_id, first)
                here = begin.get(shard_id) if cut is None else replace(cut, first_record=position.first_record)
            else:
                here = position
            if here is not None and shard_id in begin:
                found[shard_id] = here
            else:
                entered[shard_id] = here

        def may_enter(shard_id: str) -> bool:
            if shard_id not in parents:
                return not is_an_end_unfinished
            return all(found[one].is_shard_end if one in found else one not in end for one in parents[shard_id])

        while ready := [shard_id for shard_id in entered if may_enter(shard_id)]:
            for shard_id in ready:
                of = (found[one] for one in parents.get(shard_id, ()) if one in found)
                # Either all children of a shard have positions, or no child has one: readers treat the others as read.
                found[shard_id] = entered.pop(shard_id) or entering(of)
        return found

    def _parents(self, stream: str) -> dict[str, tuple[str, ...]]:
        """The parents of shards that may enter, where they are known."""
        lineage = [one for one in self._lineage if one.stream_name == stream]
        # ListShards names other parents for the shards that continue one that is gone.
        return {} if any(one.is_gone for one in lineage) else {one.shard_id: one.parent_shard_ids for one in lineage}

    def _cut(self, stream: str, shard_id: str, first: int) -> ShardPosition | None:
        """The position behind the last record that lies before `first`, an unfinished one; None without such a record.

        The rows do not say which of several streams of one name they are from, in different accounts.
        """
        name = _column_name(stream)
        spans = self._rows[name, shard_id]
        if spans[0][0] >= self.finished or self._names.count(name) > 1:
            return None
        parts = [self._records.slice(start, end - start) for start, end in spans]
        records = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        rows = rows_upto(records, sequence_number_at(self._records, first) - 1)
        return position_at(records, rows - 1) if rows else None

    def _first_unfinished(self) -> dict[_ShardKey, int]:
        """The row of the first unfinished record of each shard that has one."""
        return {
            key: max(start, self.finished)
            for key, spans in self._rows.items()
            if (start := next((start for start, end in spans if end > self.finished), None)) is not None
        }

    @cached_property
    def _names(self) -> list[str]:
        return [_column_name(stream) for stream in self.after.streams]

    @cached_property
    def _rows(self) -> dict[_ShardKey, list[tuple[int, int]]]:
        """The rows of each shard: where a run of neighbours begins, and where it ends; mostly one run."""
        names, ids = self._records.column("streamName"), self._records.column("shardId")
        rows = self._records.num_rows
        changes = pc.or_(*(pc.not_equal(one.slice(1), one.slice(0, rows - 1)) for one in (names, ids)))
        starts = [0, *(row + 1 for row in pc.call_function("indices_nonzero", [changes]).to_pylist())]
        found = defaultdict[_ShardKey, list[tuple[int, int]]](list)
        for start, end in zip(starts, [*starts[1:], rows], strict=True):
            found[names[start].as_py(), ids[start].as_py()].append((start, end))
        return dict(found)


def _column_name(stream: str) -> str:
    """What the column `streamName` holds for a stream that may go by its ARN."""
    return stream.rpartition(":stream/")[2]
