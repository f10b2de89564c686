"""The one place in which a writer calls code of its user, and what that code may be: strategies, lanes, listeners."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from penstock.async_sink._rate.strategy import CompleteStrategy, HasPace, LaneLimiter, RateLimitingStrategy, RequestInfo
from penstock.async_sink.errors import SinkError

T = TypeVar("T")
U = TypeVar("U")
_logger = logging.getLogger(__name__)


class Guard:
    """Calls code of the user. An error of that code is kept, and the caller continues with a harmless value.

    So no error interrupts a change of the writer's state: an answer is counted to its end, and what did not leave is
    still in the buffer. The pump asks for `error` when the change is complete, and ends the writer with it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.error: Exception | None = None
        """The first error."""
        self._has_logged = False

    def call(self, otherwise: U, function: Callable[..., T], *arguments: object) -> T | U:
        """The value of a function, or `otherwise` if it raises."""
        try:
            return function(*arguments)
        except (Exception, asyncio.CancelledError) as error:
            self.caught(error)
            return otherwise

    def ran(self, function: Callable[..., object], *arguments: object) -> bool:
        """Call a function. Returns whether it did not raise."""
        try:
            function(*arguments)
        except (Exception, asyncio.CancelledError) as error:
            self.caught(error)
            return False
        return True

    def caught(self, error: Exception | asyncio.CancelledError) -> None:
        """Keep the first error, and log the first one that differs from it."""
        if isinstance(error, asyncio.CancelledError):
            # Raised again, it would look like a cancellation of the writer's caller.
            cancelled = SinkError(f"{self._name}: code that it was given was cancelled")
            cancelled.__cause__ = error
            error = cancelled
        if self.error is None:
            self.error = error
        elif not self._has_logged and repr(error) != repr(self.error):
            self._has_logged = True
            _logger.warning("%s has ended by %r; this error came later", self._name, self.error, exc_info=error)


class GuardedStrategy:
    """A strategy whose errors end the writer. After an error nothing leaves any more."""

    def __init__(
        self, strategy: RateLimitingStrategy, guard: Guard, max_batch_size: int, max_batch_size_in_bytes: int
    ) -> None:
        self._guard, self._strategy = guard, (complete := CompleteStrategy(strategy))
        self._max_batch_size, self._max_batch_size_in_bytes = max_batch_size, max_batch_size_in_bytes
        self._get_max_batch_size, self._should_block = strategy.get_max_batch_size, strategy.should_block
        self._pace = strategy if isinstance(strategy, HasPace) else None
        self.register_in_flight_request = partial(guard.call, None, complete.register_in_flight_request)
        self.register_completed_request = partial(guard.call, None, complete.register_completed_request)
        self.ask_again_after = partial(guard.call, None, complete.ask_again_after)
        self.paces = partial(guard.call, False, complete.paces)
        self.lane_limiter: LaneLimiter | None = None
        if complete.lane_limiter is not None:
            self.lane_limiter = cast("LaneLimiter", _GuardedLanes(complete.lane_limiter, guard))

    def should_block(self, request: RequestInfo) -> bool:
        """Whether this request has to wait."""
        try:
            return self._guard.error is not None or self._should_block(request)
        except (Exception, asyncio.CancelledError) as error:
            self._guard.caught(error)
            return True

    def batch_limits(self) -> tuple[int, int]:
        """Entries, at least 1, and bytes that a batch may hold at present, by the writer's limits too."""
        try:
            entries = self._get_max_batch_size()
            if not isinstance(entries, int) or entries < 1:
                raise SinkError.of("MAX_BATCH_SIZE", size=entries)
            size = self._max_batch_size_in_bytes
            if self._pace is not None and (most := self._pace.max_batch_bytes) < size:
                size = most
            return entries if entries < self._max_batch_size else self._max_batch_size, size
        except (Exception, asyncio.CancelledError) as error:
            self._guard.caught(error)
            return 1, 1

    @property
    def limit(self) -> int | None:
        """The present limit; None if there is none."""
        return self._guard.call(None, lambda: self._strategy.limit)


# What the buffer gets for a call that raised: no lane, no room, and no time at which there is some.
_WITHOUT_ROOM = {"lane_of": None, "take": False, "give_back": None, "ready_at": float("inf"), "observe": None}


class _GuardedLanes:
    def __init__(self, limiter: LaneLimiter, guard: Guard) -> None:
        self._limiter, self._guard = limiter, guard

    @property
    def active(self) -> bool:
        return self._guard.call(False, lambda: self._limiter.active)

    def __getattr__(self, name: str) -> Any:
        guarded = partial(self._guard.call, _WITHOUT_ROOM.get(name), getattr(self._limiter, name))
        # Looked up once: the buffer calls these for each entry.
        self.__dict__[name] = guarded
        return guarded
