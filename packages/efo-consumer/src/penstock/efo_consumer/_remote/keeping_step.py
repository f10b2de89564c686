"""How the readers of a fleet keep step: up to which arrival time each gives records, decided without I/O."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.efo_consumer._reader.horizon import NO_RECORD, Horizon, delivered_millis
from penstock.efo_consumer._reader.merge import MOST_POINTS
from penstock.efo_consumer._reader.reach import Bounds, Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.efo_consumer._continuity.lineage import ShardGraph
    from penstock.efo_consumer._model.positions import StreamPositions
    from penstock.efo_consumer._reader.api import ProfilePoint, ShardSkew, ShardsLook


class FleetHorizon:
    """Finds the horizon of a session whose shards several readers follow.

    Args:
        patience_seconds: as `Horizon` takes it.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._horizon = Horizon(patience_seconds)
        self._newest_millis: int | None = None
        self.millis: int | None = None
        """The horizon that was found last, in milliseconds since the epoch; None for any arrival time."""

    def asks_before(self, skew_millis: int) -> int | None:
        """Give the time for `FleetMember.look`: shards that were read less far may hold others back."""
        return None if self._newest_millis is None else self._newest_millis - skew_millis

    def find(
        self,
        start: StreamPositions,
        graphs: Mapping[str, ShardGraph],
        looks: Mapping[str, ShardsLook],
        unseen: Iterable[StreamPositions],
        *,
        skew_millis: int,
        now: float,
    ) -> int | None:
        """Give the latest arrival time that a record may have, in milliseconds since the epoch; None for any.

        Args:
            start: where the caller stands.
            graphs: by stream, which shards follow which.
            looks: what each reader shows.
            unseen: positions of the shards whose readers show nothing now.
            skew_millis: how far a record may be beyond the slowest shard.
            now: monotonic seconds.
        """
        asked_before = self.asks_before(skew_millis)
        shown = [one for look in looks.values() for one in look.slow]
        shards = Standing(
            {(one.stream_name, one.shard_id): one.read_millis for one in shown},
            {(one.stream_name, one.shard_id) for one in shown if one.waits},
        )
        for stream, positions in (item for part in unseen for item in part.streams.items()):
            for shard_id, position in positions.items():
                if not position.is_shard_end:
                    shards.times[stream, shard_id] = position.known_millis
        for stream, positions in start.streams.items():
            ended = [shard_id for shard_id, position in positions.items() if position.is_shard_end]
            if ended and stream in graphs:
                shards.add_children(stream, graphs[stream], positions, ended)
        newest = [look.newest_millis for look in looks.values() if look.newest_millis is not None]
        self._newest_millis = max(newest, default=self._newest_millis)
        self.millis = self._horizon.find(
            shards,
            skew_millis=skew_millis,
            delivered_millis=delivered_millis(start),
            now=now,
            interval_seconds=max((look.interval_seconds for look in looks.values()), default=0.0),
            newest_millis=self._newest_millis,
        )
        left_out = [look.left_out_millis for look in looks.values() if look.left_out_millis is not None]
        if left_out:
            # The rest of such a shard comes later: the others must not get ahead of it.
            limit = min(left_out) + skew_millis
            self.millis = limit if self.millis is None else min(self.millis, limit)
        if self._horizon.left_behind and asked_before is not None:
            # Behind one that is left behind its reader may have others that it did not list.
            limit = asked_before + skew_millis
            self.millis = limit if self.millis is None else min(self.millis, limit)
        return self.millis

    def skew(self, skew_millis: int, latest_millis: int | None, *, holds_back: bool) -> ShardSkew:
        """Give what an answer says of the horizon that was found last; see `Horizon.skew`."""
        self._horizon.holds_back = holds_back
        return self._horizon.skew(skew_millis, latest_millis)


@dataclass(frozen=True)
class _Counted:
    """How many records a reader has up to some times, at most."""

    points: tuple[ProfilePoint, ...]
    times: list[int]
    is_cut: bool

    def upto(self, millis: int) -> tuple[int, int] | None:
        """Records and bytes that arrived at or before a time, or a few more; None if that is not known."""
        if not self.points:
            return 0, 0
        index = bisect_left(self.times, millis)
        if index == len(self.points):
            # Beyond the last one there may be more.
            return None if self.is_cut else (self.points[-1].records, self.points[-1].bytes)
        if self.times[index] > millis and (not index or len(self.points) < MOST_POINTS):
            # Every time at which records arrived is among the points.
            index -= 1
        return (self.points[index].records, self.points[index].bytes) if index >= 0 else (0, 0)


def divide(bounds: Bounds, looks: Mapping[str, ShardsLook]) -> dict[str, Bounds]:
    """Give the bounds of each reader so that together they give what arrived first, within all limits.

    Args:
        bounds: of the step, with its horizon.
        looks: what the readers show, within the same limits.
    """
    if not (bounds.max_records or bounds.max_bytes):
        return dict.fromkeys(looks, bounds)
    counted = {
        name: _Counted(look.profile, [point.arrived_millis for point in look.profile], look.is_cut)
        for name, look in looks.items()
    }
    horizon = bounds.horizon_millis
    times = sorted(
        {millis for one in counted.values() for millis in one.times if horizon is None or millis <= horizon}
        | (set() if horizon is None else {horizon})
    )
    if not any(one.points for one in counted.values()):
        return dict.fromkeys(looks, replace(bounds, horizon_millis=NO_RECORD))

    def fits(millis: int) -> bool:
        upto = [one.upto(millis) for one in counted.values()]
        found = [one for one in upto if one is not None]
        records, nbytes = sum(one[0] for one in found), sum(one[1] for one in found)
        return (
            len(found) == len(upto)
            and (not bounds.max_records or records <= bounds.max_records)
            and (not bounds.max_bytes or nbytes <= bounds.max_bytes)
        )

    # What fits up to a time fits up to an earlier one.
    count = bisect_left(times, True, key=lambda millis: not fits(millis))
    if not count:
        # Records of the same moment: one reader's records go first.
        first = min((one.times[0], name) for name, one in counted.items() if one.points)[1]
        earliest = counted[first].times[0]
        limit = earliest if horizon is None else min(earliest, horizon)
        return {
            name: replace(bounds, horizon_millis=limit if name == first else min(limit, earliest - 1)) for name in looks
        }
    last = times[count - 1]
    divided = {}
    for name, one in counted.items():
        records, nbytes = one.upto(last) or (0, 0)
        # What a reader did not show may be there by now, and is not counted.
        divided[name] = replace(
            bounds,
            horizon_millis=NO_RECORD if not records else last if count < len(times) else horizon,
            max_records=records if bounds.max_records else 0,
            max_bytes=nbytes if bounds.max_bytes else 0,
        )
    return divided
