"""Which shard a hash key belongs to, as far as answers have shown."""

from bisect import bisect_left, bisect_right


class ShardMap:
    """Learns the shards' ranges of hash keys from records whose shard an answer has named.

    Open shards partition the space of hash keys: what lies between two hash keys of a shard is that shard's. In the gap
    between two shards the nearer one is taken, which the next answers correct. A hash key that turns up in another
    shard's range means that the stream was resharded: the shard that held the range is forgotten.
    """

    def __init__(self) -> None:
        self._lowest: list[int] = []
        self._highest: list[int] = []
        self._shards: list[str] = []

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def shards(self) -> tuple[str, ...]:
        """Known shards, in the order of their hash keys."""
        return tuple(self._shards)

    def shard_of(self, hash_key: int) -> str | None:
        """The shard of a hash key; None while no shard is known."""
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
        # Whoever stands inside of the range now is closed: ranges of open shards do not overlap.
        self._forget(bisect_left(self._highest, low), bisect_right(self._lowest, high))
        place = bisect_left(self._lowest, low)
        self._lowest.insert(place, low)
        self._highest.insert(place, high)
        self._shards.insert(place, shard)

    def _forget(self, start: int, end: int) -> None:
        del self._lowest[start:end], self._highest[start:end], self._shards[start:end]
