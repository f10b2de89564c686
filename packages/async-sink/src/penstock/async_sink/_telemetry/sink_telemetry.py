"""Spans and instruments of a writer."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Token
from typing import Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span

from penstock.async_sink._core.batches import Batch
from penstock.async_sink._core.runs import Part
from penstock.async_sink._core.settlement import TerminalReason, Termination
from penstock.async_sink._telemetry.metrics import (
    SCOPE,
    SinkGauges,
    SinkMetrics,
    counted_writers,
    distributions,
    watched_writers,
)
from penstock.async_sink._telemetry.request_spans import RequestSpans, per_request

R = TypeVar("R")

_NOWHERE: Final = Context()
"""Of a request without a span of its own: its measurements are not an example of its caller's span."""


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
        """Count a request that leaves, and begin its span; None: it has none of its own."""
        counted = self.metrics
        counted.requests += 1
        counted.submitted += batch.size
        counted.bytes_submitted += batch.size_in_bytes
        counted.flush_reasons[batch.reason] += 1
        return self.spans.start(batch, now)

    @staticmethod
    def enter(span: Span | None, caller: Context | None) -> Token[Context] | None:
        """Make the span current, with the baggage of the caller; without a span, what the caller had."""
        if span is not None:
            return otel_context.attach(trace.set_span_in_context(span, caller))
        return None if caller is None else otel_context.attach(caller)

    @staticmethod
    def leave(token: Token[Context] | None) -> None:
        """Go back to where `enter` came from."""
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
        """Count entries that were given up."""
        expired = sum(each.reason is TerminalReason.EXPIRED for each in terminated)
        self.metrics.expired += expired
        self.metrics.rejected += len(terminated) - expired

    def dead_lettered(self, count: int) -> None:
        """Count entries that the terminal record handler has taken."""
        self.metrics.dead_lettered += count

    def blocked(self, reason: str | None, now: float) -> None:
        """A request that is due waits for this reason from now on; None: no request waits."""
        if reason == self._blocked_by:
            return
        if self._blocked_by is not None:
            self.waited(self._blocked_by, now - self._blocked_since)
        self._blocked_by, self._blocked_since = reason, now

    def waited(self, reason: str, seconds: float) -> None:
        """Somebody has waited for so long."""
        if seconds > 0.0:
            waits = self.metrics.blocked_seconds
            waits[reason] = waits.get(reason, 0.0) + seconds
