"""Keeps GetRecords within what a shard allows: reads per second, and bytes per second. No I/O."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from penstock.efo_consumer._model.shards import MAX_EVENT_BYTES

# Shards that were not read for this long need no memory of it.
_FORGET_AFTER_SECONDS = 60.0

SHARD_READ_INTERVAL_SECONDS = 0.2
"""GetRecords allows 5 calls/s per shard (API reference)."""

_SHARD_BYTES_PER_SECOND = 2 * 1024 * 1024
_UNKNOWN_RECORD_BYTES = 1024 * 1024

# How long a refusal is remembered: one answer of 10 MiB is refused for 5 s, a reader that catches up takes minutes.
_ADAPT_SECONDS = 300.0


@dataclass(slots=True)
class _Shard:
    next_at: float
    read_at: float | None = None
    record_bytes: float = 0.0
    refused_at: float | None = None


class ReadPace:
    """Spaces out the reads of each shard, and says how many records each read may ask for.

    What GetRecords allows is shared by all readers of a shard: one pace belongs to all readers of a process. Safe to
    share between threads.
    """

    def __init__(self, interval_seconds: float = SHARD_READ_INTERVAL_SECONDS) -> None:
        self._interval_seconds = interval_seconds
        self._shards: dict[tuple[str, str], _Shard] = {}
        self._lock = threading.Lock()

    def reserve(self, stream: str, shard_id: str, now: float) -> float:
        """Take the next free slot; the seconds to wait for it."""
        with self._lock:
            shard = self._shard(stream, shard_id, now)
            slot = max(now, shard.next_at)
            shard.next_at = slot + self._interval_seconds
            return slot - now

    def postpone(self, stream: str, shard_id: str, until: float) -> None:
        """Forbid reads of the shard before this time: the service said that it is read too often."""
        with self._lock:
            shard = self._shard(stream, shard_id, until)
            shard.next_at = max(until, shard.next_at)
            shard.refused_at = until

    def max_records(self, stream: str, shard_id: str, now: float, most: int) -> int:
        """Records that a read at this time may ask for, so that the shard's 2 MiB/s are not exceeded again.

        An answer may hold 10 MiB, and is then paid for by five seconds of refusals, which other readers and alarms see.
        Once that happened, as many records are asked for as the time since the last read is good for, by the average
        size of its records, as Flink's adaptive reads do.

        Args:
            most: the answer while the shard refuses nothing, and the largest.
        """
        with self._lock:
            shard = self._shard(stream, shard_id, now)
            if shard.refused_at is None or now - shard.refused_at > _ADAPT_SECONDS:
                return most
            if shard.read_at is None or not shard.record_bytes:
                return most
            return max(1, min(most, int(self._allowed_bytes(shard, now) / shard.record_bytes)))

    def allowed_bytes(self, stream: str, shard_id: str, now: float) -> int:
        """Bytes that the shard gives at this time without ever being read faster than it allows."""
        with self._lock:
            return self._allowed_bytes(self._shard(stream, shard_id, now), now)

    def records_within(self, stream: str, shard_id: str, now: float, nbytes: int, most: int) -> int:
        """Records, at least one, that so many bytes hold, by the average size of those before.

        Args:
            most: the answer where any number of records is within the bytes, and the largest.
        """
        if nbytes >= MAX_EVENT_BYTES:
            return most
        with self._lock:
            record_bytes = self._shard(stream, shard_id, now).record_bytes or _UNKNOWN_RECORD_BYTES
            return max(1, min(most, int(nbytes / record_bytes)))

    def note_read(self, stream: str, shard_id: str, now: float, *, records: int, nbytes: int) -> None:
        """Enter what a read that was made at this time brought."""
        with self._lock:
            shard = self._shard(stream, shard_id, now)
            shard.read_at = now
            if records:
                shard.record_bytes = nbytes / records

    def _allowed_bytes(self, shard: _Shard, now: float) -> int:
        since_read = 0.0 if shard.read_at is None else now - shard.read_at
        return int(min(MAX_EVENT_BYTES, max(self._interval_seconds, since_read) * _SHARD_BYTES_PER_SECOND))

    def _shard(self, stream: str, shard_id: str, now: float) -> _Shard:
        key = (stream, shard_id)
        shard = self._shards.get(key)
        if shard is None:
            oldest = now - _FORGET_AFTER_SECONDS
            self._shards = {key: shard for key, shard in self._shards.items() if shard.next_at > oldest}
            shard = self._shards[key] = _Shard(now)
        return shard


_process_paces: dict[object, ReadPace] = {}
_process_lock = threading.Lock()


def process_pace(account: object) -> ReadPace:
    """The pace that readers of this process share; `account` identifies account, region and endpoint."""
    with _process_lock:
        return _process_paces.setdefault(account, ReadPace())
