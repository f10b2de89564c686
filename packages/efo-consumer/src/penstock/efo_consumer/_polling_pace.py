"""Keeps GetRecords within the reads that a shard allows. No I/O."""

from __future__ import annotations

# Shards that were not read for this long need no memory of it.
_FORGET_AFTER_SECONDS = 60.0


class ReadPace:
    """Spaces out the reads of each shard, whoever makes them.

    GetRecords allows 5 calls/s per shard, shared by all of its readers: one pace belongs to all readers of a process.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._next_at: dict[tuple[str, str], float] = {}

    def reserve(self, stream: str, shard_id: str, now: float) -> float:
        """Take the next free slot; the seconds to wait for it."""
        key = (stream, shard_id)
        slot = max(now, self._next_at.get(key, now))
        if key not in self._next_at:
            self._forget(now)
        self._next_at[key] = slot + self._interval_seconds
        return slot - now

    def postpone(self, stream: str, shard_id: str, until: float) -> None:
        """Let nobody read the shard before this time: the service said that it is read too often."""
        key = (stream, shard_id)
        self._next_at[key] = max(until, self._next_at.get(key, until))

    def _forget(self, now: float) -> None:
        self._next_at = {key: at for key, at in self._next_at.items() if at > now - _FORGET_AFTER_SECONDS}
