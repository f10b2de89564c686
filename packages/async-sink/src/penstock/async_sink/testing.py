"""Fakes for tests of sinks: a manual clock and scripted destinations."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._core.writer import AsyncSinkWriter
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry
from penstock.async_sink._destinations.kinesis.rows import KinesisEntries
from penstock.async_sink._destinations.writer import DestinationWriter

__all__ = ["FakeClock", "FakeDestination", "FakeKinesisWriter", "FakeRequest", "FakeWriter", "settle", "wait_until"]

R = TypeVar("R")


async def settle(turns: int = 20) -> None:
    """Run the tasks of the loop until all of them wait for something."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def wait_until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Wait for a condition of code that does real I/O.

    Raises:
        TimeoutError: it did not come true in time.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # the condition is of code that sets no event
            await asyncio.sleep(0.005)


class _FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """A clock that moves only with `advance`."""

    def __init__(self, now: float = 1_000.0) -> None:
        self._now = now
        self._order = count()
        self._timers: list[tuple[float, int, _FakeTimer]] = []

    def now(self) -> float:
        """The time as it was set."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> _FakeTimer:
        """Call back once the time is moved to `when`, or past it."""
        timer = _FakeTimer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def pending(self, within: float = float("inf")) -> int:
        """Number of timers that are due within so many seconds."""
        until = self._now + within
        return sum(1 for when, _, timer in self._timers if timer.callback is not None and when <= until)

    async def advance(self, seconds: float) -> None:
        """Move the time, running due timers in their order and tasks in between."""
        until = self._now + seconds
        await settle()
        # A timer at exactly `until` runs, in spite of the rounding of sums.
        while self._timers and self._timers[0][0] <= until + 1e-9:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
                await settle()
        self._now = until
        await settle()


@dataclass
class FakeRequest:
    """A request as the fake destination got it."""

    entries: list[Any]
    handler: ResultHandler[Any]
    answer: "asyncio.Event" = field(default_factory=asyncio.Event)
    """Set to let a held request be answered."""


Behaviour = Callable[[FakeRequest], Awaitable[None] | None]


class FakeDestination:
    """Keeps accepted entries. `script` handles the next requests; after that it accepts everything.

    An item of the script is called with the request and answers it through its handler, or raises.
    """

    def __init__(self, *script: Behaviour) -> None:
        self.script: list[Behaviour] = list(script)
        self.requests: list[FakeRequest] = []
        """All that came, in order."""
        self.accepted: list[Any] = []
        """Entries that were accepted, in the order of acceptance."""
        self.in_flight = 0
        self.most_in_flight = 0

    @property
    def batches(self) -> list[list[Any]]:
        """The entries of each request, in order."""
        return [request.entries for request in self.requests]

    async def submit(self, entries: Sequence[Any], handler: ResultHandler[Any]) -> None:
        """Take a request."""
        request = FakeRequest(list(entries), handler)
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.script:
                result = self.script.pop(0)(request)
                if result is not None:
                    await result
            else:
                self.accept(request)
        finally:
            self.in_flight -= 1

    def accept(self, request: FakeRequest) -> None:
        """Accept every entry."""
        self.accepted.extend(request.entries)
        request.handler.complete()

    def fail(self, *positions: int, throttled: bool = True, code: str = "Refused") -> Behaviour:
        """Refuse the entries at these places; without any, all of them."""

        def behave(request: FakeRequest) -> None:
            failed = set(positions) or set(range(len(request.entries)))
            self.accepted.extend(entry for index, entry in enumerate(request.entries) if index not in failed)
            request.handler.retry_failures(
                [EntryFailure(index, code, "as told", throttled) for index in sorted(failed)]
            )

        return behave

    def hold(self, then: Behaviour | None = None) -> Behaviour:
        """Keep the request until its `answer` is set, then behave so; accept by default."""

        async def behave(request: FakeRequest) -> None:
            await request.answer.wait()
            result = (then or self.accept)(request)
            if result is not None:
                await result

        return behave

    @staticmethod
    def explode(error: Exception) -> Behaviour:
        """Raise out of the submission."""

        def behave(request: FakeRequest) -> None:
            raise error

        return behave


class FakeWriter(AsyncSinkWriter[Any, Any]):
    """A writer whose entries are their own elements: an int counts as that many bytes, others by their length."""

    def __init__(self, fake: FakeDestination, *arguments: Any, **keywords: Any) -> None:
        self.fake = fake
        super().__init__(*arguments, **keywords)

    async def submit_request_entries(self, entries: Sequence[Any], result_handler: ResultHandler[Any]) -> None:
        """Hand the request to the fake destination."""
        await self.fake.submit(entries, result_handler)

    def get_size_in_bytes(self, entry: Any) -> int:
        """The number itself, or the length."""
        return entry if isinstance(entry, int) else len(entry)


class _Submitting:
    """A destination of Kinesis entries that is a function."""

    name = "simulated"

    def __init__(self, submit: Callable[[Sequence[Any], ResultHandler[Any]], Awaitable[None] | None]) -> None:
        self.kind = KinesisEntries()
        self._submit = submit

    async def open(self, writer: AsyncSinkWriter[Any, Any]) -> None:
        pass

    async def close(self) -> None:
        pass

    async def submit(self, entries: Sequence[Any], result_handler: ResultHandler[Any]) -> None:
        pending = self._submit(entries, result_handler)
        if pending is not None:
            await pending


class FakeKinesisWriter(DestinationWriter[Any, KinesisRequestEntry]):
    """A writer of Kinesis entries and record batches; a function gets its requests and answers them."""

    def __init__(
        self,
        submit: Callable[[Sequence[Any], ResultHandler[Any]], Awaitable[None] | None],
        config: AsyncSinkConfig | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(_Submitting(submit), config, **arguments)
