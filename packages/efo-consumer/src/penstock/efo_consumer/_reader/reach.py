"""The furthest positions that buffers lead to within limits, shared fairly over shards: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.efo_consumer._continuity.lineage import entering
from penstock.efo_consumer._model.positions import StreamPositions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.efo_consumer._buffer.buffer import ShardBuffer, ShardReach
    from penstock.efo_consumer._continuity.lineage import ShardGraph
    from penstock.efo_consumer._model.positions import ShardPosition

ShardKey = tuple[str, str]
"""Stream name and shard id."""


@dataclass(frozen=True)
class Reach:
    """Where the buffers lead from some start.

    Attributes:
        positions: the furthest positions; the start itself when nothing moved.
        rows: records in between.
        nbytes: their data and partition keys, in bytes.
        jumped: whether a shard moved over records that are in no buffer and could not be counted.
    """

    positions: StreamPositions
    rows: int
    nbytes: int
    jumped: bool = False


def reach(
    start: StreamPositions,
    buffers: Mapping[ShardKey, ShardBuffer],
    graphs: Mapping[str, ShardGraph],
    *,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    max_rows_per_shard: int | None = None,
    turn: int = 0,
) -> Reach:
    """Give the furthest positions from `start` within the limits.

    Every shard gets an equal share of the limits; what one does not need goes to the others, and what is left
    over to whoever is first in turn. No shard gets more than
    `max_rows_per_shard`. Children enter as soon as all of their parents stand at SHARD_END in the
    answer, and bring records in a later one than the last of their parents': the shards of one answer are read
    side by side. Parents whose children were all in `start` leave. At least one segment is let through when any
    is there, though it exceed `max_bytes`.
    """
    walk = _Walk(start, buffers, graphs, max_rows, max_bytes, max_rows_per_shard)
    while True:
        walk.settle()
        waiting = walk.waiting(turn)
        if not waiting or walk.is_full():
            break
        if not (walk.share_out(waiting) or walk.take_leftovers(waiting) or walk.force_first(waiting)):
            break
    return walk.result(start)


class _Walk:
    def __init__(
        self,
        start: StreamPositions,
        buffers: Mapping[ShardKey, ShardBuffer],
        graphs: Mapping[str, ShardGraph],
        max_rows: int | None,
        max_bytes: int | None,
        max_rows_per_shard: int | None,
    ) -> None:
        self._positions = {stream: dict(shards) for stream, shards in start.streams.items()}
        self._buffers = buffers
        self._graphs = graphs
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._max_rows_per_shard = max_rows_per_shard
        self._taken: dict[ShardKey, int] = {}
        self._bringing = set[ShardKey]()
        self._rows = 0
        self._nbytes = 0
        self._jumped = False
        # Of thousands of shards most are idle: each is looked at once, and again when it has moved.
        self._unsettled = [(stream, shard_id) for stream, shards in start.streams.items() for shard_id in shards]
        self._waiting: dict[ShardKey, ShardReach] = {}

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
        self._waiting.pop(key, None)
        if buffer is None or position is buffer.end or position.is_shard_end:
            return
        rest = buffer.available(position)
        if rest.rows:
            self._waiting[key] = rest
        elif rest.end != position:
            self._note_jump(key, buffer, position)
            self._positions[stream][shard_id] = rest.end

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

    def waiting(self, turn: int) -> list[tuple[ShardKey, ShardReach]]:
        """Give the shards that have more records, in turn order, with what they have."""
        found = sorted(self._waiting.items(), key=lambda item: item[0])
        if self._max_rows_per_shard is not None:
            lefts = ((key, rest, self._shard_rows_left(key)) for key, rest in found)
            found = [(key, replace(rest, rows=min(rest.rows, left))) for key, rest, left in lefts if left]
        first = turn % len(found) if found else 0
        return found[first:] + found[:first]

    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return self._rows_left() == 0 or (self._max_bytes is not None and self._nbytes >= self._max_bytes)

    def share_out(self, waiting: Sequence[tuple[ShardKey, ShardReach]]) -> bool:
        """Give every shard its share; return whether any record was taken."""
        rows = _shares([rest.rows for _, rest in waiting], self._rows_left())
        nbytes = _shares([rest.nbytes for _, rest in waiting], self._bytes_left())
        taken = False
        for (key, _), max_rows, max_bytes in zip(waiting, rows, nbytes, strict=True):
            taken |= self._advance(key, max_rows, max_bytes)
        return taken

    def take_leftovers(self, waiting: Sequence[tuple[ShardKey, ShardReach]]) -> bool:
        """Let the first shard that can use it have all that is left; return whether one could."""
        return any(self._advance(key, self._rows_left(), self._bytes_left()) for key, _ in waiting)

    def force_first(self, waiting: Sequence[tuple[ShardKey, ShardReach]]) -> bool:
        """Let one segment through when nothing was taken at all: limits never stop a reader for good."""
        if self._rows:
            return False
        return self._advance(waiting[0][0], self._rows_left(), self._bytes_left(), at_least_one=True)

    def result(self, start: StreamPositions) -> Reach:
        """Give the answer, without the shards that may leave when anything else moved."""
        if all(self._positions[stream] == dict(shards) for stream, shards in start.streams.items()):
            return Reach(start, 0, 0)
        for stream, graph in self._graphs.items():
            for shard_id in graph.leavers(start.streams.get(stream, {})):
                del self._positions[stream][shard_id]
        return Reach(StreamPositions(self._positions, start.created), self._rows, self._nbytes, self._jumped)

    def _advance(
        self, key: ShardKey, max_rows: int | None, max_bytes: int | None, *, at_least_one: bool = False
    ) -> bool:
        stream, shard_id = key
        buffer, position = self._buffers[key], self._positions[stream][shard_id]
        left = self._shard_rows_left(key)
        if left is not None:
            max_rows = left if max_rows is None else min(max_rows, left)
            # A segment that cannot be cut any more must not wait for ever: other shards use up no limit of this one.
            at_least_one |= max_bytes is None and key not in self._taken
        step = buffer.reach(position, max_rows, max_bytes, at_least_one=at_least_one)
        if step.rows:
            self._bringing.add(key)
            self._note_jump(key, buffer, position)
        self._positions[stream][shard_id] = step.end
        self._unsettled.append(key)
        self._rows += step.rows
        self._taken[key] = self._taken.get(key, 0) + step.rows
        self._nbytes += step.nbytes
        return step.rows > 0

    def _shard_rows_left(self, key: ShardKey) -> int | None:
        return None if self._max_rows_per_shard is None else max(0, self._max_rows_per_shard - self._taken.get(key, 0))

    def _rows_left(self) -> int | None:
        return None if self._max_rows is None else max(0, self._max_rows - self._rows)

    def _bytes_left(self) -> int | None:
        return None if self._max_bytes is None else max(0, self._max_bytes - self._nbytes)


def _shares(wants: Sequence[int], limit: int | None) -> list[int | None]:
    """Divide a limit max-min fairly: nobody gets more than wanted, and the least share is largest."""
    if limit is None:
        return [None] * len(wants)
    shares: list[int | None] = [0] * len(wants)
    left = limit
    by_want = sorted(range(len(wants)), key=lambda index: (wants[index], index))
    for place, index in enumerate(by_want):
        share = min(wants[index], left // (len(wants) - place))
        shares[index] = share
        left -= share
    return shares
