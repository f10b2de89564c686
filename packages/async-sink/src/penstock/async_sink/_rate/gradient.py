"""A limit that follows the destination's latency."""

from math import sqrt

from penstock.async_sink._rate.strategy import RequestInfo, ResultInfo
from penstock.async_sink.errors import SinkOptionError


class GradientRateLimitingStrategy:
    """Limits messages in flight by the gradient of the round trip, for destinations that slow down before they refuse.

    With each answer whose round trip is r:

        usual    += (r - usual) / window                        the round trip as it usually is; the first r at first
        gradient  = clamp(tolerance x usual / r, 0.5, 1)
        target    = limit x gradient + sqrt(limit)              sqrt(limit): the queue that is allowed to form
        limit    := clamp(limit + smoothing x (target - limit), min_limit, max_limit)

    A throttle multiplies the limit by 0.9 instead, once per round trip. While less than half of the limit is in flight
    the limit does not move: a caller that is slower than the destination says nothing about it. `usual` shrinks by 5 %
    at an answer for which it is more than twice r, so that it comes down soon after a time of slowness.

    Raises:
        SinkOptionError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        initial_limit: int = 500,
        min_limit: int = 1,
        max_limit: int = 25_000,
        tolerance: float = 1.5,
        smoothing: float = 0.2,
        window: int = 600,
    ) -> None:
        if not 1 <= min_limit <= initial_limit:
            raise SinkOptionError("min_limit", f"{min_limit} must be at least 1 and at most initial_limit")
        if max_limit < initial_limit:
            raise SinkOptionError("max_limit", f"{max_limit} must be at least initial_limit, {initial_limit}")
        if tolerance < 1.0:
            raise SinkOptionError("tolerance", f"{tolerance} must be at least 1")
        if not 0.0 < smoothing <= 1.0:
            raise SinkOptionError("smoothing", f"{smoothing} must be more than 0 and at most 1")
        if window < 1:
            raise SinkOptionError("window", f"{window} must be at least 1")
        self._limit = float(initial_limit)
        self._min, self._max = float(min_limit), float(max_limit)
        self._tolerance, self._smoothing, self._window = tolerance, smoothing, window
        self._usual: float | None = None
        self._in_flight = 0
        self._last_decrease_at = float("-inf")

    @property
    def limit(self) -> int:
        """The present limit, in messages."""
        return int(self._limit)

    @property
    def usual_round_trip_seconds(self) -> float | None:
        """The round trip as it usually is; None before the first answer."""
        return self._usual

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Count the messages."""
        self._in_flight += request.batch_size

    def register_completed_request(self, result: ResultInfo) -> None:
        """Take the messages off the count, and move the limit."""
        in_use = self._in_flight
        self._in_flight = max(0, self._in_flight - result.batch_size)
        if result.throttled > 0:
            if result.submitted_at >= self._last_decrease_at:
                self._last_decrease_at = result.now
                self._limit = max(self._min, self._limit * 0.9)
            return
        round_trip = result.now - result.submitted_at
        if result.failed_messages > 0 or round_trip <= 0.0:
            return
        usual = round_trip if self._usual is None else self._usual + (round_trip - self._usual) / self._window
        self._usual = usual * 0.95 if usual > 2.0 * round_trip else usual
        if in_use * 2 < self._limit:
            return
        gradient = max(0.5, min(1.0, self._tolerance * usual / round_trip))
        target = self._limit * gradient + sqrt(self._limit)
        moved = self._limit + self._smoothing * (target - self._limit)
        self._limit = max(self._min, min(self._max, moved))

    def should_block(self, request: RequestInfo) -> bool:
        """Whether the limit would be passed."""
        return self._in_flight > 0 and self._in_flight + request.batch_size > self._limit

    def get_max_batch_size(self) -> int:
        """The limit."""
        return max(1, int(self._limit))

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """None: something is in flight whenever this strategy blocks."""
        return None
