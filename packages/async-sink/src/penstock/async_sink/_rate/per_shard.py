"""A rate limit for each shard of a stream, learnt from the answers."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import md5
from typing import Any

from penstock.async_sink._rate.lanes import LaneLimiter, LaneObservation
from penstock.async_sink._rate.shard_bucket import ShardBucket
from penstock.async_sink._rate.shard_map import ShardMap
from penstock.async_sink._rate.strategy import RequestInfo, ResultInfo
from penstock.async_sink.errors import SinkOptionError

# A little below the service's limits: its clock and ours are not the same.
_HEADROOM = 0.995
_SAMPLE = 16


def hash_key_of(entry: Any) -> int:
    """The hash key by which Kinesis chooses the shard: the explicit one, or MD5 of the partition key."""
    if entry.explicit_hash_key:
        return int(entry.explicit_hash_key)
    return int.from_bytes(md5(entry.partition_key.encode(), usedforsecurity=False).digest(), "big")


class PerShardRateLimitingStrategy:
    """Paces each shard by its own limit, so that a hot shard is not hit harder and the others are not held up.

    Which shard takes which hash keys is learnt from answers that name shards: no other call is made. It says nothing
    until a shard throttles for the first time; from then on entries of known shards leave at the shard's pace (see
    `ShardBucket` for its formula), and entries of unknown ones freely. A shard's limit can turn out to be smaller, when
    others write to the stream as well: the pace follows the throttles.

    It limits nothing but shards: combine it with congestion control by `All`.

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
        """Take the limits of a shard; the defaults are those of PutRecords."""
        for name, value in (("records_per_second", records_per_second), ("bytes_per_second", bytes_per_second)):
            if not value > 0:
                raise SinkOptionError(name, f"{value} must be more than 0")
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

    @property
    def throttled(self) -> Mapping[str, int]:
        """Entries that were refused, by shard."""
        return {shard: bucket.throttled for shard, bucket in self._buckets.items()}

    def scale(self, shard: str, now: float) -> float:
        """The share of its full rate at which a shard is written to."""
        bucket = self._buckets.get(shard)
        return 1.0 if bucket is None else bucket.scale(now)

    def lane_of(self, entry: Any) -> str | None:
        """The shard of an entry."""
        return self._map.shard_of(self._hash_key(entry))

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
        # Of an answer without a throttle a few entries are enough to notice a reshard.
        step = 1 if throttled else max(1, len(observations) // _SAMPLE)
        for each in observations[::step]:
            if each.lane is not None:
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
        """Nothing: entries were counted one by one."""

    def register_completed_request(self, result: ResultInfo) -> None:
        """Nothing: `observe` is told more."""

    def should_block(self, request: RequestInfo) -> bool:
        """Never: it holds back entries, not requests."""
        return False

    def get_max_batch_size(self) -> int:
        """No limit of its own."""
        return 1 << 30

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """None: it never blocks a request."""
        return None
