"""A rate limit for each shard of a stream, learned from answers."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import md5
from math import cbrt, floor
from typing import Any

from penstock.async_sink._config import check_positive
from penstock.async_sink._rate.strategy import LaneLimiter, LaneObservation, RequestInfo, ResultInfo


class ShardMap:
    """Learns the hash key ranges of shards from records whose shard an answer names.

    Open shards partition the space of hash keys, so a hash key between two hash keys of a shard belongs to that shard.
    In a gap between two shards the nearer shard is a guess until an answer names the shard. A hash key in the range of
    another shard means that the stream was resharded: the old shard is removed.
    """

    def __init__(self) -> None:
        self._lowest: list[int] = []
        self._highest: list[int] = []
        self._shards: list[str] = []

    @property
    def shards(self) -> tuple[str, ...]:
        """Known shards, in the order of their hash keys."""
        return tuple(self._shards)

    def shard_of(self, hash_key: int) -> str | None:
        """The shard of a hash key, which may be a guess; None while no shard is known."""
        shards = self._shards
        if not shards:
            return None
        place = bisect_right(self._lowest, hash_key) - 1
        if place < 0:
            return shards[0]
        above = hash_key - self._highest[place]
        if above <= 0 or place + 1 == len(shards) or above <= self._lowest[place + 1] - hash_key:
            return shards[place]
        return shards[place + 1]

    def known_shard_of(self, hash_key: int) -> str | None:
        """The shard of a hash key; None if answers do not show it."""
        place = bisect_right(self._lowest, hash_key) - 1
        return self._shards[place] if place >= 0 and hash_key <= self._highest[place] else None

    def learn(self, hash_key: int, shard: str) -> None:
        """A record with this hash key went to this shard."""
        place = bisect_right(self._lowest, hash_key) - 1
        if place >= 0 and hash_key <= self._highest[place]:
            if self._shards[place] == shard:
                return
            self._forget(place, place + 1)
        low = high = hash_key
        if shard in self._shards:
            known = self._shards.index(shard)
            low, high = min(low, self._lowest[known]), max(high, self._highest[known])
            self._forget(known, known + 1)
        # A shard inside of the range is closed: ranges of open shards do not overlap.
        self._forget(bisect_left(self._highest, low), bisect_right(self._lowest, high))
        place = bisect_left(self._lowest, low)
        self._lowest.insert(place, low)
        self._highest.insert(place, high)
        self._shards.insert(place, shard)

    def _forget(self, start: int, end: int) -> None:
        del self._lowest[start:end], self._highest[start:end], self._shards[start:end]


_TICK_SECONDS = 0.05


def _tick(now: float) -> int:
    # A timer may fire slightly early: it counts for its tick.
    return floor(now / _TICK_SECONDS + 1e-6)


class ShardBucket:
    """Tokens for the records and bytes per second of a shard, scaled according to its answers.

    The scale is 1 until a record is throttled. When a share f of the records is refused at time t0 and scale S, it
    becomes

        scale(t) = clamp(S x (1 + c x (t - t0 - K)^3), floor, 1)  with  K = cube root of (f / c)

    which is S x (1 - f) at t0, is near S around t0 + K, and then grows faster and faster: CUBIC's curve (RFC 9438) for
    a rate. It decreases once per round trip: answers to requests that were sent before t0 saw the old rate. A
    decrease also empties the bucket and leaves a debt of one tick, so that the destination's own bucket gains a little
    slack to absorb the jitter of the network.

    Tokens arrive in ticks, at the same instants for all shards: entries of many shards share a request.
    """

    FLOOR = 0.05
    GROWTH = 2.0
    """c: the scale returns from 0.1 to 1 in about two seconds."""
    TICK_SECONDS = _TICK_SECONDS
    CAPACITY_SECONDS = 0.5
    """Tokens kept for late callers: half of the second that a shard's own bucket has."""

    def __init__(self, records_per_second: float, bytes_per_second: float, now: float) -> None:
        self._records_per_second = records_per_second
        self._bytes_per_second = bytes_per_second
        # A bucket is created for a shard that has just throttled, so it is empty.
        self._records = -records_per_second * self.TICK_SECONDS
        self._bytes = -bytes_per_second * self.TICK_SECONDS
        self._tick = _tick(now)
        self._scale_before = 1.0
        self._share = 0.0
        self._decreased_at = now

    def scale(self, now: float) -> float:
        """The share of the full rate that is in use."""
        since = max(0.0, now - self._decreased_at)
        rest = cbrt(self._share / self.GROWTH)
        cubic = self._scale_before * (1.0 + self.GROWTH * (since - rest) ** 3)
        return max(self.FLOOR, min(1.0, cubic))

    def answered(self, accepted: int, throttled: int, submitted_at: float, now: float) -> None:
        """Process an answer with these numbers of accepted and throttled entries."""
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
        """When the next tokens arrive."""
        return (_tick(now) + 1) * self.TICK_SECONDS

    def is_idle(self, now: float) -> bool:
        """Whether it is equivalent to a new bucket, because it was not used for a while."""
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


# Slightly below the service's limits, because the clocks differ.
_HEADROOM = 0.995


def hash_key_of(entry: Any) -> int:
    """The hash key that selects the shard: the explicit hash key, or the MD5 of the partition key."""
    if entry.explicit_hash_key:
        return int(entry.explicit_hash_key)
    return int.from_bytes(md5(entry.partition_key.encode(), usedforsecurity=False).digest(), "big")


class PerShardRateLimitingStrategy:
    """Paces each shard by its own limit, so that a hot shard does not delay the other shards.

    It learns from answers which shard has which hash keys, and makes no other call. It has no effect until a shard
    throttles for the first time. From then on, entries of known shards are sent at the pace of the shard (see
    `ShardBucket` for the formula), and entries of unknown shards freely. If other clients write to the stream, the pace
    follows the throttles.

    It limits only shards: combine it with congestion control with `All`.

    Raises:
        SinkOptionError: a rate is not more than 0.
    """

    def __init__(
        self,
        *,
        records_per_second: float = 1_000.0,
        bytes_per_second: float = 1_048_576.0,
        hash_key: Callable[[Any], int] = hash_key_of,
    ) -> None:
        """Take the limits of a shard; the defaults are the limits of PutRecords."""
        check_positive(records_per_second=records_per_second, bytes_per_second=bytes_per_second)
        self._records_per_second = records_per_second * _HEADROOM
        self._bytes_per_second = bytes_per_second * _HEADROOM
        self._hash_key = hash_key
        self._map = ShardMap()
        self._buckets: dict[str, ShardBucket] = {}
        self._active = False
        self._pruned_at = 0.0

    @property
    def lane_limiter(self) -> LaneLimiter:
        """The strategy itself: its lanes are the shards."""
        return self

    @property
    def active(self) -> bool:
        """Whether a shard has throttled yet."""
        return self._active

    @property
    def shards(self) -> Sequence[str]:
        """Shards that answers have named."""
        return self._map.shards

    def scale(self, shard: str, now: float) -> float:
        """The share of its full rate that a shard currently gets."""
        bucket = self._buckets.get(shard)
        return 1.0 if bucket is None else bucket.scale(now)

    def lane_of(self, entry: Any) -> str | None:
        """The shard of an entry, which may be a guess; None while no shard is known."""
        return self._map.shard_of(self._hash_key(entry))

    def known_lane_of(self, entry: Any) -> str | None:
        """The shard of an entry; None if answers do not show it."""
        return self._map.known_shard_of(self._hash_key(entry))

    def take(self, lane: str, size_in_bytes: int, now: float) -> bool:
        """Take a shard's tokens."""
        return self._bucket(lane, now).take(size_in_bytes, now)

    def give_back(self, lane: str, size_in_bytes: int) -> None:
        """Undo one `take`."""
        if lane in self._buckets:
            self._buckets[lane].give_back(size_in_bytes)

    def ready_at(self, lane: str, now: float) -> float:
        """The next tick: the same for all shards, so that they share requests."""
        return self._bucket(lane, now).next_tick(now)

    def _bucket(self, shard: str, now: float) -> ShardBucket:
        bucket = self._buckets.get(shard)
        if bucket is None:
            bucket = self._buckets[shard] = ShardBucket(self._records_per_second, self._bytes_per_second, now)
        return bucket

    def observe(self, observations: Sequence[LaneObservation], submitted_at: float, now: float) -> None:
        """Learn shards and their pace from an answer."""
        throttled: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        for each in observations:
            lane = each.lane
            if lane is not None:
                (throttled if each.throttled else accepted)[lane] += 1
        if throttled:
            self._active = True
        if not self._active:
            return
        for each in observations:
            # An entry whose shard was known and is the same adds no information.
            if each.lane is not None and each.lane != each.expected:
                self._map.learn(self._hash_key(each.entry), each.lane)
        for lane, refused in throttled.items():
            self._bucket(lane, now).answered(accepted[lane], refused, submitted_at, now)
        self._prune(now)

    def _prune(self, now: float) -> None:
        if now - self._pruned_at < 60.0:
            return
        self._pruned_at, known = now, set(self._map.shards)
        for shard in [shard for shard, bucket in self._buckets.items() if shard not in known and bucket.is_idle(now)]:
            del self._buckets[shard]

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Does nothing: `take` has counted the entries."""

    def register_completed_request(self, result: ResultInfo) -> None:
        """Does nothing: `observe` gets the answer."""

    def should_block(self, request: RequestInfo) -> bool:
        """False: it holds back entries, not requests."""
        return False

    def get_max_batch_size(self) -> int:
        """No limit of its own."""
        return 1 << 30

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """None: it never blocks a request."""
        return None
