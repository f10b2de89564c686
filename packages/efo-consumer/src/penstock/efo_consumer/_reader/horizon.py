"""How far a micro-batch may go in time, so that no shard gets far ahead of another: pure, time is an argument.

Spark keeps one watermark for a query: the latest event time of a micro-batch, less a delay. Later rows that are older
than that are dropped. So a record enters a micro-batch only if it arrived not much later than the time up to which the
slowest shard was read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.efo_consumer._reader.api import ShardSkew

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.efo_consumer._model.positions import StreamPositions
    from penstock.efo_consumer._reader.reach import ShardKey, Standing

_log = logging.getLogger(__name__)
LONGEST_HOLD_SECONDS: Final = 60.0
"""How long a shard without progress holds the others back at most."""
NO_RECORD: Final = -1
"""A horizon that no record is within."""
_NAMED_SHARDS = 3


@dataclass(slots=True)
class _Hold:
    """A shard that holds others back.

    Attributes:
        millis: its time when it was last seen to move.
        since: when that was, in monotonic seconds.
    """

    millis: int | None
    since: float


class Horizon:
    """Finds the horizon of micro-batches: the slowest shard's time and the skew.

    A shard that holds others back without progress is left behind after a while, with a warning, until it has caught
    up. So is one that is later than what was delivered already, as after a stream with old records joined a query.

    Args:
        patience_seconds: how long that takes; at most `LONGEST_HOLD_SECONDS`, which is the meaning of 0.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = min(patience_seconds or LONGEST_HOLD_SECONDS, LONGEST_HOLD_SECONDS)
        self._holds: dict[ShardKey, _Hold] = {}
        self.left_behind: frozenset[ShardKey] = frozenset()
        """Shards that hold nothing back any more."""
        self.slowest: ShardKey | None = None
        """The shard that decided the horizon last; None if none did."""
        self.millis: int | None = None
        """The horizon that was found last, in milliseconds since the epoch; None if there was none."""
        self.holds_back = False
        """Whether records were left out because of it; set by the caller. Only then does a slow shard cost anything."""

    def find(
        self,
        shards: Standing,
        *,
        skew_millis: int,
        delivered_millis: int | None,
        now: float,
        interval_seconds: float = 0.0,
        newest_millis: int | None = None,
    ) -> int | None:
        """Give the latest arrival time that a record may have, in milliseconds since the epoch; None for any.

        Args:
            shards: how far they were read. Those that wait make progress when the caller does.
            skew_millis: how far a record may be beyond the slowest shard.
            delivered_millis: the latest arrival time of what was delivered; None if unknown.
            now: monotonic seconds.
            interval_seconds: time between two answers of a shard that is well, which does not count as standing still.
            newest_millis: the time up to which the shard was read that is furthest, where it is not among `shards`.
        """
        if self.left_behind:
            self._readmit(shards.times, skew_millis, delivered_millis)
        known = [millis for millis in shards.times.values() if millis is not None]
        newest = max([*known, *([] if newest_millis is None else [newest_millis])], default=None)
        if self._holds or self.holds_back:
            limit = self._patience_seconds + interval_seconds
            self._leave_behind(shards, newest, skew_millis, delivered_millis, now, limit)
        live = shards.times
        if self.left_behind:
            live = {key: millis for key, millis in live.items() if key not in self.left_behind}
            known = [millis for millis in live.values() if millis is not None]
        least = min(known, default=None) if len(known) == len(live) else None
        self.slowest = next((key for key, millis in live.items() if millis == least), None)
        self.millis = None if not live else NO_RECORD if least is None else least + skew_millis
        return self.millis

    def skew(self, skew_millis: int, latest_millis: int | None) -> ShardSkew:
        """Give what an answer says of the horizon that was found last.

        Args:
            skew_millis: as `find` was given it.
            latest_millis: the latest arrival time of the answer's records; None without any.
        """
        stream, shard_id = self.slowest or ("", "")
        is_known = self.millis is not None and self.millis != NO_RECORD
        return ShardSkew(
            slowest_stream=stream,
            slowest_shard=shard_id,
            slowest_millis=self.millis - skew_millis if self.millis is not None and is_known else None,
            latest_millis=latest_millis,
            holds_back=self.holds_back,
            left_behind=len(self.left_behind),
        )

    def _readmit(self, times: Mapping[ShardKey, int | None], skew_millis: int, delivered_millis: int | None) -> None:
        def is_behind(key: ShardKey) -> bool:
            millis = times[key]
            return millis is None or (delivered_millis is not None and millis + skew_millis < delivered_millis)

        still = {key for key in self.left_behind if key in times and is_behind(key)}
        if back := (self.left_behind & times.keys()) - still:
            _log.info("%s: caught up with the other shards, and may hold them back again", _names(back))
        self.left_behind = frozenset(still)

    def _leave_behind(
        self,
        shards: Standing,
        newest: int | None,
        skew_millis: int,
        delivered_millis: int | None,
        now: float,
        limit: float,
    ) -> None:
        holds = {}
        for key, millis in shards.times.items() if self.holds_back else ():
            is_near = millis is not None and (newest is None or millis + skew_millis >= newest)
            if is_near or key in self.left_behind:
                continue
            hold = self._holds.get(key)
            is_late = delivered_millis is not None and millis is not None and millis + skew_millis < delivered_millis
            if hold is None or (not is_late and (key in shards.waiting or millis != hold.millis)):
                hold = _Hold(millis, now)
            holds[key] = hold
        left = {key for key, hold in holds.items() if now - hold.since >= limit}
        self._holds = {key: hold for key, hold in holds.items() if key not in left}
        if left:
            _log.warning(
                "%s: held back the other shards for %.0f s without catching up, and is left behind: records that it "
                "brings from now on may be older than a watermark of the query allows. Look at why it is slow (its "
                "condition), or let the query's watermark have a longer delay",
                _names(left),
                limit,
            )
            self.left_behind |= left


def delivered_millis(positions: StreamPositions) -> int | None:
    """Give the latest arrival time of what was delivered before some positions; None if that is unknown."""
    known = [one.arrived_millis for shards in positions.streams.values() for one in shards.values()]
    return max([millis for millis in known if millis is not None], default=None)


def _names(shards: Iterable[ShardKey]) -> str:
    found = sorted(shards)
    shown = ", ".join(f"{stream}/{shard_id}" for stream, shard_id in found[:_NAMED_SHARDS])
    return shown if len(found) <= _NAMED_SHARDS else f"{shown} and {len(found) - _NAMED_SHARDS} more shards"
