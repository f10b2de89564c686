"""Which requests have a span of their own, and which share one."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode

from penstock.async_sink._core.batches import Batch
from penstock.async_sink._core.runs import Part

R = TypeVar("R")

SPAN_SUBMIT = "async_sink.submit"
PER_REQUEST: Final = "PENSTOCK_SPANS_PER_REQUEST"
"""Variable of the environment: `true` gives each request a span of its own."""
JOINED_SECONDS: Final = 1.0
"""For so long after a request that has a span of its own, requests of the same caller that go well share one."""
SLOW_SECONDS: Final = 1.0
"""A request that takes longer is no neighbour of others."""
# A request may carry entries of many callers; past this number of links a trace is no easier to read.
_MAX_LINKS: Final = 16


@cache
def per_request() -> bool:
    """Whether this process makes a span for each request: that costs up to a tenth of what the records do."""
    return os.environ.get(PER_REQUEST, "").strip().lower() in ("1", "true", "yes")


@dataclass(slots=True)
class _Joined:
    """Requests of one caller that went well, and have no span yet."""

    caller: Context | None
    flush_at: float
    began_ns: int
    ended_ns: int
    slowest: float
    requests: int
    entries: int
    size_in_bytes: int


def _is_first_try_of(caller: Context | None, parts: Sequence[Part[R]]) -> bool:
    # A loop: a request of an element each has hundreds of parts, one of columns has one.
    for part in parts:  # noqa: SIM110
        if part.context is not caller or part.attempts != 1:
            return False
    return True


def _link_other_callers(span: Span, parts: Sequence[Part[R]]) -> None:
    links = 0
    seen = {id(parts[0].context)}
    for part in parts:
        caller = part.context
        if caller is None or id(caller) in seen:
            continue
        seen.add(id(caller))
        span_context = trace.get_current_span(caller).get_span_context()
        if span_context.is_valid:
            span.add_link(span_context)
            links += 1
            if links == _MAX_LINKS:
                return


class RequestSpans:
    """The spans of one writer's requests, all of them `async_sink.submit`: each request is in exactly one.

    A request has a span of its own when it is the first of its caller within a second, when it carries entries of
    several callers or entries that are sent again, and when it failed, in part or whole, or took a second. The others
    share a span for each second: a trace of thousands of equal spans costs much and says little.

    Args:
        attributes: of each span.
        every: give each request its own.
        wall: nanoseconds since the epoch.
    """

    def __init__(
        self,
        attributes: Mapping[str, str],
        tracer: trace.Tracer,
        *,
        every: bool = False,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._attributes = attributes
        self._tracer = tracer
        self._every = every
        self._wall = wall
        self._caller: Context | None = None
        self._until = -1.0
        self._unrecorded: Span | None = None
        self._joined: _Joined | None = None

    @property
    def flush_at(self) -> float | None:
        """Monotonic seconds at which `flush` is due; None: no request waits for its span."""
        return None if self._joined is None else self._joined.flush_at

    def start(self, batch: Batch[R], now: float) -> Span | None:
        """The span of a request that leaves, a child of what wrote the first of its entries; None: it has none yet."""
        parts = batch.parts
        caller = parts[0].context
        if now < self._until and caller is self._caller:
            if self._unrecorded is not None:
                # The sampler does not want its neighbours either.
                return self._unrecorded
            if _is_first_try_of(caller, parts):
                return None
        span = self._begin(caller)
        is_recording = span.is_recording()
        if is_recording:
            _link_other_callers(span, parts)
        if not self._every:
            self._caller, self._until = caller, now + JOINED_SECONDS
            self._unrecorded = None if is_recording else span
        return span

    def end(
        self,
        span: Span | None,
        batch: Batch[R],
        now: float,
        *,
        failed: int,
        throttled: int,
        error: BaseException | None,
    ) -> None:
        """A request got its answer: end its span, make it one after all, or count it among its neighbours."""
        if span is not None:
            if span.is_recording():
                self._describe(span, batch, failed, throttled, error)
            span.end()
            return
        caller, seconds, ended = batch.parts[0].context, now - batch.submitted_at, self._wall()
        began = ended - int(seconds * 1e9)
        # An error has failed entries.
        if failed or seconds >= SLOW_SECONDS:
            span = self._begin(caller, began)
            if span.is_recording():
                self._describe(span, batch, failed, throttled, error)
            span.end(ended)
            return
        joined = self._joined
        if joined is not None and joined.caller is not caller:
            self.flush()
            joined = None
        if joined is None:
            self._joined = _Joined(
                caller, now + JOINED_SECONDS, began, ended, seconds, 1, batch.size, batch.size_in_bytes
            )
            return
        joined.requests += 1
        joined.entries += batch.size
        joined.size_in_bytes += batch.size_in_bytes
        joined.began_ns, joined.ended_ns = min(joined.began_ns, began), ended
        joined.slowest = max(joined.slowest, seconds)

    def flush(self) -> None:
        """Make the span of the requests that went well since the last one."""
        joined, self._joined = self._joined, None
        if joined is None:
            return
        span = self._begin(joined.caller, joined.began_ns)
        if span.is_recording():
            span.set_attributes(
                {
                    "requests": joined.requests,
                    "entries": joined.entries,
                    "bytes": joined.size_in_bytes,
                    "attempt": 1,
                    "failed": 0,
                    "throttled": 0,
                    "slowest_ms": joined.slowest * 1000.0,
                }
            )
        span.end(joined.ended_ns)

    def _begin(self, caller: Context | None, began_ns: int | None = None) -> Span:
        return self._tracer.start_span(
            SPAN_SUBMIT,
            context=caller,
            kind=trace.SpanKind.CLIENT,
            attributes=self._attributes,
            start_time=began_ns,
        )

    @staticmethod
    def _describe(span: Span, batch: Batch[R], failed: int, throttled: int, error: BaseException | None) -> None:
        span.set_attributes(
            {
                "requests": 1,
                "entries": batch.size,
                "bytes": batch.size_in_bytes,
                "attempt": batch.attempt,
                "failed": failed,
                "throttled": throttled,
            }
        )
        if error is not None:
            span.record_exception(error)
            span.set_status(StatusCode.ERROR, str(error))
