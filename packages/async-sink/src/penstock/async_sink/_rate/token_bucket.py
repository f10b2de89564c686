"""A fixed rate: records, bytes and requests per second."""

import sys

from penstock.async_sink._rate.strategy import RequestInfo, ResultInfo
from penstock.async_sink.errors import SinkOptionError


class _Bucket:
    def __init__(self, rate: float, burst_seconds: float) -> None:
        self.rate = rate
        self.capacity = max(1.0, rate * burst_seconds)
        self.tokens = self.capacity

    def refill(self, seconds: float) -> None:
        self.tokens = min(self.capacity, self.tokens + seconds * self.rate)

    def missing_seconds(self, amount: float) -> float:
        # What is larger than the bucket leaves when it is full, and leaves a debt: else it could never leave.
        return max(0.0, (min(amount, self.capacity) - self.tokens) / self.rate)


class TokenBucketRateLimitingStrategy:
    """Keeps to rates that are known: records, bytes and requests per second, each as far as it is given.

    A bucket holds capacity = max(1, rate x burst_seconds) tokens, is full at first, and fills by rate per second:

        tokens(t) = min(capacity, tokens(s) + rate x (t - s))

    A request leaves when each bucket holds min(need, capacity), and takes its need. Over any t seconds no more than
    capacity + rate x t leaves, plus what one request is larger than the capacity: one of a single entry, or one that
    was refused whole and is bisected. Answers change nothing.

    Raises:
        SinkOptionError: no rate is given, or an argument is not more than 0.
    """

    def __init__(
        self,
        *,
        records_per_second: float | None = None,
        bytes_per_second: float | None = None,
        requests_per_second: float | None = None,
        burst_seconds: float = 1.0,
    ) -> None:
        rates = {
            "records_per_second": records_per_second,
            "bytes_per_second": bytes_per_second,
            "requests_per_second": requests_per_second,
        }
        for name, value in {**rates, "burst_seconds": burst_seconds}.items():
            if value is not None and not value > 0:
                raise SinkOptionError(name, f"{value} must be more than 0")
        if all(rate is None for rate in rates.values()):
            raise SinkOptionError("records_per_second", "give at least one rate")
        self._records, self._bytes, self._requests = (
            None if rate is None else _Bucket(rate, burst_seconds) for rate in rates.values()
        )
        self._updated: float | None = None

    def _needs(self, request: RequestInfo) -> list[tuple[_Bucket, float]]:
        self._refill(request.now)
        needs = ((self._records, request.batch_size), (self._bytes, request.size_in_bytes), (self._requests, 1))
        return [(bucket, amount) for bucket, amount in needs if bucket is not None]

    def _refill(self, now: float) -> None:
        if self._updated is not None and now > self._updated:
            for bucket in (self._records, self._bytes, self._requests):
                if bucket is not None:
                    bucket.refill(now - self._updated)
        self._updated = now if self._updated is None else max(now, self._updated)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Take the request's tokens."""
        for bucket, amount in self._needs(request):
            bucket.tokens -= amount

    def register_completed_request(self, result: ResultInfo) -> None:
        """Nothing: the rates are known."""

    def should_block(self, request: RequestInfo) -> bool:
        """Whether a bucket holds too little, a nanosecond's worth aside."""
        return self._wait(request) > 1e-9

    def _wait(self, request: RequestInfo) -> float:
        return max(bucket.missing_seconds(amount) for bucket, amount in self._needs(request))

    def get_max_batch_size(self) -> int:
        """What the records' bucket holds when it is full; a larger batch would leave a debt."""
        return 1 << 30 if self._records is None else int(self._records.capacity)

    @property
    def max_batch_bytes(self) -> int:
        """What the bytes' bucket holds when it is full; a larger batch would leave a debt."""
        return sys.maxsize if self._bytes is None else int(self._bytes.capacity)

    def paces(self, request: RequestInfo) -> bool:
        """Whether a bucket holds too little."""
        return self.should_block(request)

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """Seconds until each bucket holds enough: the answer never depends on a completion."""
        return self._wait(request)
