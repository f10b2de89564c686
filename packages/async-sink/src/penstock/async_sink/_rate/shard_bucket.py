"""The pace of one shard."""

from math import cbrt, floor

_TICK_SECONDS = 0.05


def _tick(now: float) -> int:
    # A timer that fires a hair's breadth early has met its tick.
    return floor(now / _TICK_SECONDS + 1e-6)


class ShardBucket:
    """Tokens for records and bytes that a shard takes per second, scaled by what its answers allow.

    The scale is 1 as long as nothing is throttled. When a share f of what was sent is refused, at time t0, at the scale
    S, it becomes

        scale(t) = clamp(S x (1 + c x (t - t0 - K)^3), floor, 1)  with  K = cube root of (f / c)

    which is S x (1 - f) at t0, rests near S around t0 + K, and grows ever faster after that: CUBIC's curve (RFC 9438)
    over a rate. One round trip decreases it once: answers to requests that were sent before t0 saw the old rate. A
    decrease also empties the bucket and leaves a debt of one tick, so that the destination's own bucket gains a little
    slack to absorb the jitter of the network.

    Tokens arrive in ticks, at the same instants for all shards: entries of many shards share a request.
    """

    FLOOR = 0.05
    GROWTH = 2.0
    """c: from a tenth back to the whole in about two seconds."""
    TICK_SECONDS = _TICK_SECONDS
    CAPACITY_SECONDS = 0.5
    """Kept for a caller that comes late; half of the second that a shard's own bucket holds."""

    def __init__(self, records_per_second: float, bytes_per_second: float, now: float) -> None:
        self._records_per_second = records_per_second
        self._bytes_per_second = bytes_per_second
        # A bucket is made for a shard that has just throttled: it is empty, and its rate is not in doubt.
        self._records = -records_per_second * self.TICK_SECONDS
        self._bytes = -bytes_per_second * self.TICK_SECONDS
        self._tick = _tick(now)
        self._scale_before = 1.0
        self._share = 0.0
        self._decreased_at = now
        self.throttled = 0
        """Entries that were refused."""

    def scale(self, now: float) -> float:
        """The share of the full rate that is in use."""
        since = max(0.0, now - self._decreased_at)
        rest = cbrt(self._share / self.GROWTH)
        cubic = self._scale_before * (1.0 + self.GROWTH * (since - rest) ** 3)
        return max(self.FLOOR, min(1.0, cubic))

    def answered(self, accepted: int, throttled: int, submitted_at: float, now: float) -> None:
        """So many entries of a request were accepted, and so many refused as too many."""
        self.throttled += throttled
        if not throttled or submitted_at < self._decreased_at:
            return
        self._scale_before = self.scale(now)
        self._share = throttled / (accepted + throttled)
        self._decreased_at = now
        scale = self.scale(now)
        self._refill(now)
        self._records = min(self._records, 0.0) - self._records_per_second * scale * self.TICK_SECONDS
        self._bytes = min(self._bytes, 0.0) - self._bytes_per_second * scale * self.TICK_SECONDS

    def take(self, size_in_bytes: int, now: float) -> bool:
        """Take a record and its bytes. A large record may leave a debt of bytes."""
        self._refill(now)
        if self._records < 1.0 or self._bytes < min(size_in_bytes, self._bytes_per_second * self.CAPACITY_SECONDS):
            return False
        self._records -= 1.0
        self._bytes -= size_in_bytes
        return True

    def give_back(self, size_in_bytes: int) -> None:
        """Undo one `take`."""
        self._records += 1.0
        self._bytes += size_in_bytes

    def next_tick(self, now: float) -> float:
        """When tokens arrive next."""
        return (_tick(now) + 1) * self.TICK_SECONDS

    def is_idle(self, now: float) -> bool:
        """Whether it says no more than a new one would: nothing was taken or refused for a while."""
        return now - self._tick * self.TICK_SECONDS > 60.0

    def _refill(self, now: float) -> None:
        tick = _tick(now)
        seconds = (tick - self._tick) * self.TICK_SECONDS
        if seconds <= 0:
            return
        self._tick = tick
        scale, capacity = self.scale(now), self.CAPACITY_SECONDS
        # At least one whole record fits, however slow the shard is.
        most = max(1.0, self._records_per_second * scale * capacity)
        self._records = min(most, self._records + seconds * scale * self._records_per_second)
        self._bytes = min(self._bytes_per_second * capacity, self._bytes + seconds * scale * self._bytes_per_second)
