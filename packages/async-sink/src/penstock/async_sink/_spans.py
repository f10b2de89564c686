"""Spans and instruments of a writer, and which requests share a span."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode

from penstock.async_sink._core.runs import Batch, Part
from penstock.async_sink._core.settlement import TerminalReason, Termination
from penstock.async_sink._metrics import (
    SCOPE,
    SinkGauges,
    SinkMetrics,
    counted_writers,
    distributions,
    watched_writers,
)

R = TypeVar("R")

_NOWHERE: Final = Context()
"""Context of a request without its own span: its measurements are not exemplars of the caller's span."""


class SinkTelemetry:
    """Makes the spans of requests and counts. Uses the OpenTelemetry API only: without an SDK it costs little."""

    def __init__(
        self,
        destination: str,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        max_batch_size: int = 1,
        gauges: Callable[[], SinkGauges] | None = None,
    ) -> None:
        """`gauges` is a bound method; it is held weakly, as a meter keeps what it observes for ever."""
        self._attributes = {"stream": destination}
        self._blocked_by: str | None = None
        self._blocked_since = 0.0
        tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self.spans = RequestSpans(self._attributes, tracer, every=per_request())
        self._distributions = distributions.of(meter_provider)
        self.metrics = SinkMetrics(max_batch_size=max_batch_size)
        counted_writers.of(meter_provider).add(self, self.metrics, self._attributes)
        if gauges is not None:
            watched_writers.of(meter_provider).add(gauges, self._attributes)

    def start(self, batch: Batch[R], now: float) -> Span | None:
        """Count a request that is sent, and start its span; None if it has no own span."""
        counted = self.metrics
        counted.requests += 1
        counted.submitted += batch.size
        counted.bytes_submitted += batch.size_in_bytes
        counted.flush_reasons[batch.reason] += 1
        return self.spans.start(batch, now)

    @staticmethod
    def enter(span: Span | None, caller: Context | None) -> Token[Context] | None:
        """Make the span current, with the caller's baggage; without a span, the caller's context."""
        if span is not None:
            return otel_context.attach(trace.set_span_in_context(span, caller))
        return None if caller is None else otel_context.attach(caller)

    @staticmethod
    def leave(token: Token[Context] | None) -> None:
        """Restore the context before `enter`."""
        if token is not None:
            otel_context.detach(token)

    def end(
        self,
        span: Span | None,
        batch: Batch[R],
        now: float,
        *,
        acknowledged: Sequence[Part[R]],
        accepted: int,
        accepted_bytes: int,
        failed: int,
        retried: int,
        throttled: int,
        throttled_lanes: Counter[str] | None,
        error: BaseException | None,
    ) -> None:
        """Count an answer and end its span."""
        counted, context = self.metrics, _NOWHERE if span is None else None
        counted.records_out += accepted
        counted.bytes_out += accepted_bytes
        counted.failed += failed
        counted.retried += retried
        counted.throttled += throttled
        if throttled_lanes:
            counted.throttled_by_lane.update(throttled_lanes)
        # Observed by another thread at any moment: no count goes back.
        counted.throttled_elsewhere += throttled - (throttled_lanes.total() if throttled_lanes else 0)
        counted.current_send_time_ms = (now - batch.submitted_at) * 1000.0
        self._distributions.fill.record(batch.size / counted.max_batch_size, self._attributes, context)
        self._distributions.round_trip.record(counted.current_send_time_ms, self._attributes, context)
        attempts: dict[int, int]
        if len(acknowledged) == 1:
            attempts = {acknowledged[0].attempts: accepted}
        elif len(acknowledged) == accepted:
            attempts = Counter([part.attempts for part in acknowledged])
        else:
            attempts = Counter()
            for part in acknowledged:
                attempts[part.attempts] += part.count
        # One recording for a request's entries of the same number: one for each entry would cost more than sending it.
        for number, count in attempts.items():
            counted.attempts[number] += count
            self._distributions.attempts.record(number, self._attributes, context)
        self.spans.end(span, batch, now, failed=failed, throttled=throttled, error=error)

    def terminated(self, terminated: Sequence[Termination[R]]) -> None:
        """Count abandoned entries."""
        expired = sum(each.reason is TerminalReason.EXPIRED for each in terminated)
        self.metrics.expired += expired
        self.metrics.rejected += len(terminated) - expired

    def dead_lettered(self, count: int) -> None:
        """Count entries that the terminal record handler took."""
        self.metrics.dead_lettered += count

    def blocked(self, reason: str | None, now: float) -> None:
        """From now on a request that is due waits for this reason; None: no request waits."""
        if reason == self._blocked_by:
            return
        if self._blocked_by is not None:
            self.waited(self._blocked_by, now - self._blocked_since)
        self._blocked_by, self._blocked_since = reason, now

    def waited(self, reason: str, seconds: float) -> None:
        """Count a wait of a caller or a request."""
        if seconds > 0.0:
            waits = self.metrics.blocked_seconds
            waits[reason] = waits.get(reason, 0.0) + seconds


SPAN_SUBMIT = "async_sink.submit"
PER_REQUEST: Final = "PENSTOCK_SPANS_PER_REQUEST"
"""Variable of the environment: `true` gives each request a span of its own."""
JOINED_SECONDS: Final = 1.0
"""For this time after a request with its own span, successful requests of the same caller share one span."""
SLOW_SECONDS: Final = 1.0
"""A request that takes longer gets its own span."""
# A request may have entries of many callers; more links would make a trace hard to read.
_MAX_LINKS: Final = 16


@cache
def per_request() -> bool:
    """Whether this process makes a span for each request, which adds up to a tenth of the processor time."""
    return os.environ.get(PER_REQUEST, "").strip().lower() in ("1", "true", "yes")


@dataclass(slots=True)
class _Joined:
    """Successful requests of one caller that have no span yet."""

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
    """The spans `async_sink.submit` of one writer: each request is in exactly one span.

    A request has its own span if it is the first of its caller within a second, has entries of several callers or
    entries that are sent again, failed completely or partly, or took a second. Other requests share a span for each
    second, because thousands of equal spans are expensive and not useful.

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
        """Monotonic seconds at which `flush` is due; None if no request waits for its span."""
        return None if self._joined is None else self._joined.flush_at

    def start(self, batch: Batch[R], now: float) -> Span | None:
        """Start the span of a request, a child of the caller of its first entry; None if it has no span yet."""
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
        """End a request's span, make a span for it, or add it to the shared span."""
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
        """Make the shared span of the successful requests since the last call."""
        joined, self._joined = self._joined, None
        if joined is None:
            return
        span = self._begin(joined.caller, joined.began_ns)
        counts = {"requests": joined.requests, "entries": joined.entries, "bytes": joined.size_in_bytes}
        span.set_attributes({**counts, "attempt": 1, "failed": 0, "throttled": 0})
        span.set_attribute("slowest_ms", joined.slowest * 1000.0)
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
