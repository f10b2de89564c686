"""Spans and instruments of a writer."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, StatusCode

from penstock.async_sink._batches import Batch
from penstock.async_sink._metrics import SinkGauges, SinkMetrics
from penstock.async_sink._runs import Part
from penstock.async_sink._settlement import TerminalReason, Termination

R = TypeVar("R")

_SCOPE = "penstock.async_sink"
SPAN_SUBMIT = "async_sink.submit"
# A request may carry entries of many callers; past this number of links a trace is no easier to read.
_MAX_LINKS = 16


def _other_callers(parts: Sequence[Part[R]]) -> list[Link]:
    first = parts[0].context
    links: list[Link] = []
    seen = {id(first)}
    for part in parts:
        caller = part.context
        if caller is None or id(caller) in seen:
            continue
        seen.add(id(caller))
        span_context = trace.get_current_span(caller).get_span_context()
        if span_context.is_valid:
            links.append(Link(span_context))
            if len(links) == _MAX_LINKS:
                break
    return links


class SinkTelemetry:
    """Makes the span of each request and counts. Uses the OpenTelemetry API only: without an SDK it costs little."""

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
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._send_time = meter.create_gauge("currentSendTime", "ms", "Time of the latest request")
        self._bytes = meter.create_counter("numBytesOut", "By", "Bytes of accepted entries")
        self._records = meter.create_counter("numRecordsOut", "{record}", "Accepted entries, each once")
        self._errors = meter.create_counter("numRecordsOutErrors", "{record}", "Entries that came back")
        self._throttled = meter.create_counter("numRecordsThrottled", "{record}", "Entries refused as too many")
        self._expired = meter.create_counter("numRecordsExpired", "{record}", "Entries given up: time to live")
        self._dead = meter.create_counter("numRecordsDeadLettered", "{record}", "Entries the terminal handler took")
        self._retried = meter.create_counter("numRecordsRetried", "{record}", "Entries put back to be sent again")
        self._blocked = meter.create_counter("blockedTime", "s", "Waits, by reason")
        self._requests = meter.create_counter("numRequests", "{request}", "Requests, by why they left")
        self._fill = meter.create_histogram("batchFillRatio", "1", "Share of the largest request's entries")
        self._attempts = meter.create_histogram("recordAttempts", "{attempt}", "Submissions of accepted entries")
        self._round_trip = meter.create_histogram("requestRoundTrip", "ms", "Time of requests")
        if gauges is not None:
            _observe(meter, gauges, self._attributes)
        self.metrics = SinkMetrics(max_batch_size=max_batch_size)

    def start(self, batch: Batch[R]) -> Span:
        """Count a request that leaves, and begin its span: a child of what wrote the first of its entries."""
        counted = self.metrics
        counted.requests += 1
        counted.submitted += batch.size
        counted.bytes_submitted += batch.size_in_bytes
        counted.flush_reasons[batch.reason] += 1
        self._requests.add(1, {**self._attributes, "reason": batch.reason})
        self._fill.record(batch.size / counted.max_batch_size, self._attributes)
        return self._tracer.start_span(
            SPAN_SUBMIT,
            context=batch.parts[0].context,
            kind=trace.SpanKind.CLIENT,
            links=_other_callers(batch.parts),
            attributes={
                **self._attributes,
                "entries": batch.size,
                "bytes": batch.size_in_bytes,
                "attempt": batch.attempt,
            },
        )

    @contextmanager
    def inside(self, span: Span, caller: Context | None) -> Iterator[None]:
        """Make the span current, with the baggage of the caller."""
        token = otel_context.attach(trace.set_span_in_context(span, caller))
        try:
            yield
        finally:
            otel_context.detach(token)

    def end(
        self,
        span: Span,
        *,
        seconds: float,
        acknowledged: Sequence[Part[R]],
        accepted: int,
        accepted_bytes: int,
        failed: int,
        retried: int,
        throttled: int,
        throttled_lanes: Counter[str],
        error: BaseException | None,
    ) -> None:
        """Count an answer and end its span."""
        counted = self.metrics
        counted.records_out += accepted
        counted.bytes_out += accepted_bytes
        counted.failed += failed
        counted.retried += retried
        counted.throttled += throttled
        self._count_attempts(acknowledged, accepted)
        counted.current_send_time_ms = seconds * 1000.0
        self._send_time.set(counted.current_send_time_ms, self._attributes)
        if acknowledged:
            self._records.add(accepted, self._attributes)
            self._bytes.add(accepted_bytes, self._attributes)
        if failed:
            self._errors.add(failed, self._attributes)
        if throttled:
            self._count_throttled(throttled, throttled_lanes)
        if retried:
            self._retried.add(retried, self._attributes)
        self._round_trip.record(counted.current_send_time_ms, self._attributes)
        if span.is_recording():
            span.set_attribute("failed", failed)
            span.set_attribute("throttled", throttled)
            if error is not None:
                span.record_exception(error)
                span.set_status(StatusCode.ERROR, str(error))
        span.end()

    def _count_attempts(self, acknowledged: Sequence[Part[R]], accepted: int) -> None:
        if len(acknowledged) == accepted:
            attempts = Counter([part.attempts for part in acknowledged])
        else:
            attempts = Counter()
            for part in acknowledged:
                attempts[part.attempts] += part.count
        self.metrics.attempts.update(attempts)
        # One recording for a request's entries of the same number: one for each entry would cost more than sending it.
        for number in attempts:
            self._attempts.record(number, self._attributes)

    def _count_throttled(self, throttled: int, lanes: Counter[str]) -> None:
        self.metrics.throttled_by_lane.update(lanes)
        for lane, count in lanes.items():
            self._throttled.add(count, {**self._attributes, "shard": lane})
        elsewhere = throttled - lanes.total()
        if elsewhere:
            self._throttled.add(elsewhere, self._attributes)

    def terminated(self, terminated: Sequence[Termination[R]]) -> None:
        """Count entries that were given up."""
        expired = sum(each.reason is TerminalReason.EXPIRED for each in terminated)
        self.metrics.expired += expired
        self.metrics.rejected += len(terminated) - expired
        if expired:
            self._expired.add(expired, self._attributes)

    def dead_lettered(self, count: int) -> None:
        """Count entries that the terminal record handler has taken."""
        self.metrics.dead_lettered += count
        self._dead.add(count, self._attributes)

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
            self._blocked.add(seconds, {**self._attributes, "reason": reason})


_GAUGES = (
    ("bufferedRecords", "{record}", "Entries that wait", "buffer_records"),
    ("bufferedBytes", "By", "Bytes that wait", "buffer_bytes"),
    ("bufferAge", "s", "Age of the oldest entry that waits", "buffer_age_seconds"),
    ("inFlightRequests", "{request}", "Requests without an answer", "in_flight_requests"),
    ("inFlightMessages", "{record}", "Entries without an answer", "in_flight_messages"),
    ("rateLimit", "1", "The strategy's limit", "limit"),
)


def _observe(meter: metrics.Meter, gauges: Callable[[], SinkGauges], attributes: dict[str, str]) -> None:
    reference = weakref.WeakMethod(gauges)

    def reader(field: str) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        def read(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            current = reference()
            value = None if current is None else getattr(current(), field)
            return [] if value is None else [metrics.Observation(value, attributes)]

        return read

    for name, unit, description, field in _GAUGES:
        meter.create_observable_gauge(name, [reader(field)], unit, description)
