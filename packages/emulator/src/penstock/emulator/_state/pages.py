"""Which records one GetRecords call gives, decided without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import timedelta

    from penstock.emulator._state.records import RecordSlice
    from penstock.emulator._state.shard import Shard


class Page(NamedTuple):
    """The records of a call, and where the next one starts."""

    records: RecordSlice
    position: int
    since: float
    """The time, in seconds since the epoch, up to which the shard was looked through."""
    millis_behind_latest: int
    is_last: bool
    """Whether the shard has ended, and all of it was read."""


def next_page(
    shard: Shard,
    position: int,
    since: float,
    *,
    max_records: int,
    max_bytes: int,
    now: float,
    lag_seconds: float,
    span: timedelta | None,
) -> Page:
    """Read a page from `position` on.

    Args:
        shard: the shard to read.
        position: the position of the first record that is wanted.
        since: the time up to which earlier pages have looked through the shard.
        max_records: how many records the page may have.
        max_bytes: how many bytes; a single record may have more.
        now: the time of the call.
        lag_seconds: the records of the last so many seconds are not visible yet.
        span: how much time the page may look through; None: all there is.
    """
    visible_until = now - lag_seconds if lag_seconds > 0 else None
    # Nothing arrives in a shard that is closed, so nothing has to be looked through after that.
    end = now if shard.closed is None else min(now, shard.closed)
    stops_at = since + span.total_seconds() if span is not None and since + span.total_seconds() < end else None
    bounds = [bound for bound in (visible_until, stops_at) if bound is not None]
    until = min(bounds) if bounds else None
    records = shard.read(position, max_records=max_records, max_bytes=max_bytes, until=until)
    if records:
        position = records.last_counter + 1
    if records and shard.has_records(position, until=until):
        # The page is full: the next one goes on at the same time.
        return Page(records, position, records[-1].arrival_ms / 1000, shard.millis_behind(position, now), False)
    if stops_at is not None:
        assert until is not None
        return Page(records, position, max(since, until), max(1, int((now - until) * 1000)), False)
    behind = 0 if visible_until is not None else shard.millis_behind(position, now)
    return Page(records, position, max(since, end if until is None else until), behind, shard.exhausted(position))
