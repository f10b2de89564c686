"""Several strategies at once."""

from penstock.async_sink._rate.lanes import LaneLimiter
from penstock.async_sink._rate.strategy import CompleteStrategy, RateLimitingStrategy, RequestInfo, ResultInfo
from penstock.async_sink.errors import SinkOptionError


class All:
    """A request leaves when every strategy lets it: blocked is the or, the batch size the smallest.

    A blocked request is asked about again when the last of those that block says so; at the next answer if one of them
    waits for an answer. At most one of the strategies may have lanes.

    Raises:
        SinkOptionError: there is no strategy, or more than one has lanes.
    """

    def __init__(self, *strategies: RateLimitingStrategy) -> None:
        if not strategies:
            raise SinkOptionError("strategies", "give at least one")
        self._strategies = strategies
        self._parts = [CompleteStrategy(each) for each in strategies]
        limiters = [each.lane_limiter for each in self._parts if each.lane_limiter is not None]
        if len(limiters) > 1:
            raise SinkOptionError("strategies", "only one may limit lanes")
        self._lane_limiter: LaneLimiter | None = limiters[0] if limiters else None

    @property
    def strategies(self) -> tuple[RateLimitingStrategy, ...]:
        """Its parts."""
        return self._strategies

    @property
    def lane_limiter(self) -> LaneLimiter | None:
        """That of the strategy that has one."""
        return self._lane_limiter

    @property
    def limit(self) -> int | None:
        """The smallest limit among those that have one; None if none has."""
        limits = [limit for each in self._parts if (limit := each.limit) is not None]
        return min(limits, default=None)

    def register_in_flight_request(self, request: RequestInfo) -> None:
        """Tell each."""
        for each in self._parts:
            each.register_in_flight_request(request)

    def register_completed_request(self, result: ResultInfo) -> None:
        """Tell each."""
        for each in self._parts:
            each.register_completed_request(result)

    def should_block(self, request: RequestInfo) -> bool:
        """Whether any blocks."""
        return any(each.should_block(request) for each in self._parts)

    def get_max_batch_size(self) -> int:
        """The smallest."""
        return min(each.get_max_batch_size() for each in self._parts)

    def ask_again_after(self, request: RequestInfo) -> float | None:
        """The longest wait among those that block; None if one of them waits for an answer."""
        longest = 0.0
        for each in self._parts:
            if each.should_block(request):
                wait = each.ask_again_after(request)
                if wait is None:
                    return None
                longest = max(longest, wait)
        return longest
