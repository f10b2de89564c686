"""The furthest positions that buffers lead to within limits, in the order of arrival times: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from penstock.efo_consumer._buffer.segment import Part, arrived_micros
from penstock.efo_consumer._continuity.lineage import ShardGraph, entering
from penstock.efo_consumer._model.positions import ShardPosition, StreamPositions
from penstock.efo_consumer._reader.merge import profile, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.efo_consumer._buffer.buffer import ShardBuffer
    from penstock.efo_consumer._reader.api import Limits, PositionsOptions, ProfilePoint

ShardKey = tuple[str, str]
"""Stream name and shard id."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What an answer may hold; 0 and None do not bound.

    Attributes:
        max_records: most records.
        max_bytes: most bytes of data and partition keys.
        max_records_per_shard: most records of any one shard.
        skew_millis: how much later than the slowest shard's time a record may have arrived.
        horizon_millis: no record may have arrived later than this, in milliseconds since the epoch.
    """

    max_records: int = 0
    max_bytes: int = 0
    max_records_per_shard: int = 0
    skew_millis: int | None = None
    horizon_millis: int | None = None

    @classmethod
    def of(cls, options: PositionsOptions) -> Bounds:
        """Give those that a caller asks for."""
        skew = options.get("max_shard_skew_seconds")
        return cls(
            max_records=options.get("max_records", 0),
            max_bytes=options.get("max_bytes", 0),
            max_records_per_shard=options.get("max_records_per_shard", 0),
            skew_millis=None if skew is None else round(skew * 1000),
            horizon_millis=options.get("horizon_millis"),
        )

    @property
    def limits(self) -> Limits:
        """The limits in number."""
        return {
            "max_records": self.max_records,
            "max_bytes": self.max_bytes,
            "max_records_per_shard": self.max_records_per_shard,
        }


@dataclass(frozen=True)
class Reach:
    """Where the buffers lead from some start.

    Attributes:
        positions: the furthest positions; the start itself when nothing moved.
        rows: records in between.
        nbytes: their data and partition keys, in bytes.
        jumped: whether a shard moved over records that are in no buffer and could not be counted.
        latest_millis: the latest arrival time of these records, in milliseconds since the epoch; None without any.
        holds_back: whether records that are buffered arrived later than the horizon.
    """

    positions: StreamPositions
    rows: int
    nbytes: int
    jumped: bool = False
    latest_millis: int | None = None
    holds_back: bool = False


_UNBOUNDED = Bounds()


def reach(
    start: StreamPositions,
    buffers: Mapping[ShardKey, ShardBuffer],
    graphs: Mapping[str, ShardGraph],
    bounds: Bounds = _UNBOUNDED,
    *,
    horizon: Callable[[Standing], int | None] | None = None,
) -> Reach:
    """Give the furthest positions from `start` within the bounds.

    Records are taken in the order of their arrival times, whatever shard they are in, so a limit cuts all shards at the
    same time. At least one record is taken if any may be, though it exceed `bounds.max_bytes`.

    Children enter as soon as all of their parents are at SHARD_END in the answer, and bring records in a later
    answer than the last of their parents': the shards of one answer are read side by side. Parents whose children were
    all in `start` leave.

    Args:
        start: where to begin.
        buffers: what was read of each shard.
        graphs: by stream, which shards follow which.
        bounds: limits.
        horizon: gives the latest arrival time that a record may have, beside `bounds.horizon_millis`; None for any. It
            takes how far each shard was read that may bring records in a later answer.
    """
    walk = Walk(start, buffers, graphs)
    walk.settle()
    waiting = walk.waiting()
    limits = [bounds.horizon_millis]
    if horizon is not None:
        limits.append(horizon(walk.standing()))
    if bounds.max_records_per_shard:
        capped_millis = cap(waiting, bounds.max_records_per_shard)
        if bounds.skew_millis is not None and capped_millis is not None:
            # The rest of that shard comes later: the others must not get ahead of it.
            limits.append(capped_millis + bounds.skew_millis)
    cut_millis = min((millis for millis in limits if millis is not None), default=None)
    holds_back = cut_millis is not None and _cut(waiting, cut_millis * 1000 + 999)
    chosen = within([*waiting.values()], bounds.max_records or None, bounds.max_bytes or None)
    for key, parts in zip(waiting, chosen, strict=True):
        if parts:
            walk.take(key, parts)
    walk.settle()
    return walk.result(start, holds_back=holds_back)


def profile_within(waiting: Mapping[ShardKey, list[Part]], bounds: Bounds) -> tuple[tuple[ProfilePoint, ...], bool]:
    """Count the records that are within limits by their arrival times, and return whether the limits leave any out.

    Without a limit in records or bytes nothing is counted.
    """
    if not (bounds.max_records or bounds.max_bytes):
        return (), False
    rows = sum(part.rows for parts in waiting.values() for part in parts)
    found = within([*waiting.values()], bounds.max_records or None, bounds.max_bytes or None)
    return profile(found), sum(part.rows for parts in found for part in parts) < rows


def cap(waiting: Mapping[ShardKey, list[Part]], most: int) -> int | None:
    """Leave at most so many records of each shard.

    Returns the arrival time of the first record that is left out, in milliseconds; None if none is.
    """
    left_out = []
    for parts in waiting.values():
        rows = 0
        for index, part in enumerate(parts):
            keep = most - rows
            rows += part.rows
            if part.rows <= keep or (part.is_evicted and not index):
                # An evicted part cannot be cut, and must not wait without end.
                continue
            records = part.records
            left_out.append(part.first_micros if records is None else arrived_micros(records)[keep].as_py())
            parts[index:] = [part.first(keep)] if keep and records is not None else []
            break
    return min(left_out) // 1000 if left_out else None


def _cut(waiting: Mapping[ShardKey, list[Part]], micros: int) -> bool:
    """Leave out what arrived after a time, and what follows such a record in its shard; return whether any did."""
    is_cut = False
    for parts in waiting.values():
        for index, part in enumerate(parts):
            if part.latest_micros <= micros:
                continue
            is_cut = True
            records = None if part.first_micros > micros else part.records
            keep = 0 if records is None else pc.index(pc.greater(arrived_micros(records), micros), True).as_py()
            parts[index:] = [part.first(keep)] if keep else []
            break
    return is_cut


def latest(times: Iterable[int | None]) -> int | None:
    """Give the latest of the times that are known; None if none is."""
    return max((millis for millis in times if millis is not None), default=None)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far shards were read that may bring records in a later answer.

    Attributes:
        times: the time before which each of them brings none, in milliseconds since the epoch; None while unknown.
        waiting: shards that bring no records before some buffered records were delivered: their own, or their parents'
            records.
    """

    times: dict[ShardKey, int | None]
    waiting: set[ShardKey]

    def add_children(
        self, stream: str, graph: ShardGraph, positions: Mapping[str, ShardPosition], ended: Iterable[str]
    ) -> None:
        """Add the shards that are to enter the positions.

        A child's records arrived after all of its parents were closed, so it has the latest time of its parents, and of
        what these come of where they have not entered themselves. A shard at its end after which nothing is known yet
        represents its children, unless its own time is unknown: nothing may follow it, as a caller names it.

        Args:
            stream: the stream.
            graph: which of its shards follow which.
            positions: where its shards stand.
            ended: those at their end.
        """

        def add(shard_id: str) -> int | None:
            position, key = positions.get(shard_id), (stream, shard_id)
            if position is not None:
                return position.known_millis if position.is_shard_end else self.times.get(key)
            parents = graph.parents(shard_id)
            self.times[key] = latest([add(parent) for parent in parents])
            if any((stream, parent) in self.waiting for parent in parents):
                self.waiting.add(key)
            return self.times[key]

        for shard_id in ended:
            if graph.children(shard_id):
                for child in graph.awaited(shard_id, positions):
                    add(child)
            elif (known := positions[shard_id].known_millis) is not None:
                self.times[stream, shard_id] = known


class Walk:
    """Positions that move from a start to where buffers lead; see `reach`."""

    def __init__(
        self, start: StreamPositions, buffers: Mapping[ShardKey, ShardBuffer], graphs: Mapping[str, ShardGraph]
    ) -> None:
        self._start = start
        self._positions = {stream: dict(shards) for stream, shards in start.streams.items()}
        self._buffers = buffers
        self._graphs = graphs
        self._waiting = set[ShardKey]()
        self._bringing = set[ShardKey]()
        self._jumped = False
        self._rows = 0
        self._nbytes = 0
        self._latest_micros: int | None = None
        # Most of thousands of shards are idle: each is looked at once, and again when it has moved.
        self._unsettled = [(stream, shard_id) for stream, shards in start.streams.items() for shard_id in shards]

    def settle(self) -> None:
        """Move shards without further records to their ends, and let children enter, until nothing moves."""
        while self._unsettled:
            streams = set()
            for key in self._unsettled:
                self._settle(key)
                streams.add(key[0])
            self._unsettled = [
                (stream, shard_id) for stream in streams if stream in self._graphs for shard_id in self._enter(stream)
            ]

    def _settle(self, key: ShardKey) -> None:
        stream, shard_id = key
        position, buffer = self._positions[stream][shard_id], self._buffers.get(key)
        self._waiting.discard(key)
        # A buffer that has not moved yet, or is behind the position, leads nowhere.
        if buffer is None or not buffer.end.rank[0] or position is buffer.end or position.rank > buffer.end.rank:
            return
        if buffer.parts(position):
            self._waiting.add(key)
        elif buffer.end != position:
            self._note_jump(key, buffer, position)
            self._positions[stream][shard_id] = buffer.end

    def _note_jump(self, key: ShardKey, buffer: ShardBuffer, position: ShardPosition) -> None:
        if not buffer.covers(position):
            self._jumped = True
            self._bringing.add(key)

    def _enter(self, stream: str) -> list[str]:
        graph, shards = self._graphs[stream], self._positions[stream]
        entrants = graph.entrants(shards)
        for shard_id in entrants:
            shards[shard_id] = entering(shards[one] for one in graph.parents(shard_id) if one in shards)
        return [
            shard_id
            for shard_id in entrants
            if not any((stream, parent) in self._bringing for parent in graph.parents(shard_id))
        ]

    def standing(self) -> Standing:
        """Give how far the shards were read that may bring records in a later answer."""
        found = Standing({}, set(self._waiting))
        for stream, shards in self._positions.items():
            ended = []
            for shard_id, position in shards.items():
                key = stream, shard_id
                if position.is_shard_end:
                    ended.append(shard_id)
                else:
                    buffer = self._buffers.get(key)
                    found.times[key] = position.known_millis if buffer is None else buffer.time.millis
            if ended and stream in self._graphs:
                found.add_children(stream, self._graphs[stream], shards, ended)
            for shard_id in () if stream in self._graphs else ended:
                # The caller adds the children, once it knows that the shard has ended.
                if (start := self._start.get(stream, shard_id)) is not None and not start.is_shard_end:
                    found.times[stream, shard_id] = shards[shard_id].known_millis
        return found

    def waiting(self) -> dict[ShardKey, list[Part]]:
        """Give the records of each shard that has any, in the order of streams and shards."""
        return {
            (stream, shard_id): self._buffers[stream, shard_id].parts(self._positions[stream][shard_id])
            for stream, shard_id in sorted(self._waiting)
        }

    def take(self, key: ShardKey, parts: list[Part]) -> None:
        """Move a shard over its first records."""
        stream, shard_id = key
        self._bringing.add(key)
        self._note_jump(key, self._buffers[key], self._positions[stream][shard_id])
        self._positions[stream][shard_id] = parts[-1].stop
        self._unsettled.append(key)
        self._rows += sum(part.rows for part in parts)
        self._nbytes += sum(part.nbytes for part in parts)
        self._latest_micros = max(self._latest_micros or 0, *(part.latest_micros for part in parts))

    def result(self, start: StreamPositions, *, holds_back: bool) -> Reach:
        """Give the answer, without the shards that may leave when anything else moved."""
        if all(self._positions[stream] == dict(shards) for stream, shards in start.streams.items()):
            return Reach(start, 0, 0, holds_back=holds_back)
        for stream, graph in self._graphs.items():
            for shard_id in graph.leavers(start.streams.get(stream, {})):
                del self._positions[stream][shard_id]
        return Reach(
            StreamPositions(self._positions, start.created),
            self._rows,
            self._nbytes,
            self._jumped,
            None if self._latest_micros is None else self._latest_micros // 1000,
            holds_back,
        )
