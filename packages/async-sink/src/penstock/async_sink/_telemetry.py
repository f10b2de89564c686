"""Spans and instruments of a writer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, StatusCode

from penstock.async_sink._batches import Batch
from penstock.async_sink._entries import RequestEntryWrapper
from penstock.async_sink._metrics import SinkMetrics

R = TypeVar("R")

_SCOPE = "penstock.async_sink"
SPAN_SUBMIT = "async_sink.submit"
# A request may carry entries of many callers; past this number of links a trace is no easier to read.
_MAX_LINKS = 16


def _other_callers(wrappers: Sequence[RequestEntryWrapper[R]]) -> list[Link]:
    first = wrappers[0].context
    links: list[Link] = []
    seen = {id(first)}
    for wrapper in wrappers:
        caller = wrapper.context
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
    ) -> None:
        self._attributes = {"stream": destination}
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._send_time = meter.create_gauge("currentSendTime", "ms", "Time of the latest request")
        self._bytes = meter.create_counter("numBytesOut", "By", "Bytes of accepted entries")
        self._records = meter.create_counter("numRecordsOut", "{record}", "Accepted entries, each once")
        self._errors = meter.create_counter("numRecordsOutErrors", "{record}", "Entries that came back")
        self._throttled = meter.create_counter("numRecordsThrottled", "{record}", "Entries refused as too many")
        self.metrics = SinkMetrics()

    def start(self, batch: Batch[R]) -> Span:
        """Count a request that leaves, and begin its span: a child of what wrote the first of its entries."""
        counted = self.metrics
        counted.requests += 1
        counted.submitted += len(batch.wrappers)
        counted.bytes_submitted += batch.size_in_bytes
        return self._tracer.start_span(
            SPAN_SUBMIT,
            context=batch.wrappers[0].context,
            kind=trace.SpanKind.CLIENT,
            links=_other_callers(batch.wrappers),
            attributes={
                **self._attributes,
                "entries": len(batch.wrappers),
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
        acknowledged: Sequence[RequestEntryWrapper[R]],
        acknowledged_bytes: int,
        failed: int,
        retried: int,
        rejected: int,
        throttled: int,
        error: BaseException | None,
    ) -> None:
        """Count an answer and end its span."""
        counted = self.metrics
        counted.records_out += len(acknowledged)
        counted.bytes_out += acknowledged_bytes
        counted.failed += failed
        counted.retried += retried
        counted.rejected += rejected
        counted.throttled += throttled
        counted.current_send_time_ms = seconds * 1000.0
        self._send_time.set(counted.current_send_time_ms, self._attributes)
        if acknowledged:
            self._records.add(len(acknowledged), self._attributes)
            self._bytes.add(acknowledged_bytes, self._attributes)
        if failed:
            self._errors.add(failed, self._attributes)
        if throttled:
            self._throttled.add(throttled, self._attributes)
        if span.is_recording():
            span.set_attribute("failed", failed)
            span.set_attribute("throttled", throttled)
            if error is not None:
                span.record_exception(error)
                span.set_status(StatusCode.ERROR, str(error))
        span.end()
