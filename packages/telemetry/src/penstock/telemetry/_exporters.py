"""Exporters that survive a fork, and that warn once when no collector accepts what they send."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_log = logging.getLogger("penstock.telemetry")
E = TypeVar("E")
# A channel of the parent's, closed by a child's garbage collector, may wait for threads that the fork left behind.
_abandoned: Final[list[Any]] = []
_NOISY: Final = "opentelemetry.exporter.otlp.proto.grpc.exporter"


class _Quiet(logging.Filter):
    """Drops what the OTLP exporter logs of each attempt: `Outage` logs it once."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(("Transient error", "Failed to export", "Shutdown in progress"))


_quiet = _Quiet()


def quieten() -> None:
    """Leave logging failures of exporters to `Outage`."""
    for name in (_NOISY, _NOISY.rpartition(".")[0]):
        # Adding a filter again changes nothing.
        logging.getLogger(name).addFilter(_quiet)


class Outage:
    """Tells that telemetry is not taken, once, and that it is again."""

    def __init__(self, what: str, where: str) -> None:
        self._what = what
        self._where = where
        self._since_told = False

    def note(self, delivered: bool) -> None:
        """Take note of an attempt."""
        if delivered and self._since_told:
            self._since_told = False
            _log.info("%s are delivered to %s again", self._what, self._where)
        elif not delivered and not self._since_told:
            self._since_told = True
            _log.warning(
                "%s are not taken by %s: they are dropped until they are; nothing waits for it. Check the endpoint, "
                "its certificate, and OTEL_EXPORTER_OTLP_HEADERS",
                self._what,
                self._where,
            )


class PerProcess(Generic[E]):
    """Something that each process has to make for itself, such as a gRPC channel."""

    def __init__(self, make: Callable[[], E]) -> None:
        self._make = make
        self._made = make()
        self._pid = os.getpid()
        self.is_forked = False

    def get(self) -> E:
        """The one of this process."""
        if self._pid != os.getpid():
            _abandoned.append(self._made)
            self._made, self._pid, self.is_forked = self._make(), os.getpid(), True
        return self._made

    def peek(self) -> E | None:
        """The one of this process, if there is one."""
        return self._made if self._pid == os.getpid() else None


def without_metrics(kind: type) -> dict[str, Any]:
    """Options for a part of the SDK whose metrics of its own would have it ask for a meter while providers are made.

    Older releases have no such metrics, and no such option.
    """
    return {"meter_provider": NoOpMeterProvider()} if "meter_provider" in inspect.signature(kind).parameters else {}


def of_this_process(resource: Resource) -> Resource:
    """The resource of a parent, adapted to its forked child: another process, another instance."""
    pid = os.getpid()
    return resource.merge(Resource({"process.pid": pid, "service.instance.id": f"{_instance(resource)}/{pid}"}))


def _instance(resource: Resource) -> str:
    return str(resource.attributes.get("service.instance.id", ""))


class ForkSafeSpanExporter(SpanExporter):
    """Sends by an exporter of the process that it runs in."""

    def __init__(self, make: Callable[[], SpanExporter], outage: Outage) -> None:
        self._exporter = PerProcess(make)
        self._outage = outage

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send; a failure is logged once and never raised."""
        try:
            exporter = self._exporter.get()
            if self._exporter.is_forked:
                spans = [_moved(span) for span in spans]
            result = exporter.export(spans)
        except Exception:
            _log.debug("spans cannot be exported", exc_info=True)
            result = SpanExportResult.FAILURE
        self._outage.note(result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Close what this process has opened."""
        if (exporter := self._exporter.peek()) is not None:
            exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is kept here."""
        return True


def _moved(span: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=of_this_process(span.resource),
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


class ForkSafeMetricExporter(MetricExporter):
    """Sends by an exporter of the process that it runs in, with temporality and aggregation as that one prefers."""

    def __init__(self, make: Callable[[], MetricExporter], outage: Outage) -> None:
        self._exporter = PerProcess(make)
        self._outage = outage
        made = self._exporter.get()
        super().__init__(
            preferred_temporality=made._preferred_temporality,
            preferred_aggregation=made._preferred_aggregation,
        )

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Send; a failure is logged once and never raised."""
        try:
            exporter = self._exporter.get()
            if self._exporter.is_forked:
                moved = [
                    dataclasses.replace(one, resource=of_this_process(one.resource))
                    for one in metrics_data.resource_metrics
                ]
                metrics_data = dataclasses.replace(metrics_data, resource_metrics=moved)
            result = exporter.export(metrics_data, timeout_millis, **kwargs)
        except Exception:
            _log.debug("metrics cannot be exported", exc_info=True)
            result = MetricExportResult.FAILURE
        self._outage.note(result is MetricExportResult.SUCCESS)
        return result

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close what this process has opened."""
        if (exporter := self._exporter.peek()) is not None:
            exporter.shutdown(timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is kept here."""
        return True
