"""The providers and exporters of a process, from their construction to its end."""

from __future__ import annotations

import inspect
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, start_http_server

from penstock.telemetry._endings import LAST_SECONDS, Endings, bounded
from penstock.telemetry._exporters import ForkSafeMetricExporter, ForkSafeSpanExporter, Outage, quieten, without_metrics
from penstock.telemetry._settings import TelemetrySettings, endpoint_of
from penstock.telemetry.errors import TelemetryOptionError

if TYPE_CHECKING:
    from penstock.telemetry._logs import LogPipeline


DEFAULT_SERVICE_NAME: Final = "penstock"
_CHILD_SPAN_DELAY_MILLIS: Final = 1000.0
_CHILD_METRIC_INTERVAL_MILLIS: Final = 10_000.0
"""Spark kills a worker with SIGKILL when it was idle for a minute: what it has measured must be away by then."""


_RECONNECT_MILLIS: Final = 10_000
"""A receiver that comes back is found within this; gRPC itself would wait for up to two minutes."""


class _SignalKeeper(SpanProcessor):
    """Has signals watched whenever a span begins: the price is a look at two handlers."""

    def __init__(self, endings: Endings) -> None:
        self._endings = endings

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Watch again, if somebody has taken the handlers away."""
        self._endings.watch_signals()


class _MetricReader(PeriodicExportingMetricReader):
    """One whose lock a fork does not leave held by a thread that is not there."""

    def _at_fork_reinit(self) -> None:
        self._export_lock = threading.Lock()
        super()._at_fork_reinit()  # type: ignore[no-untyped-call]  # published without annotations


def resource_of(environment: Mapping[str, str], service_name: str) -> Resource:
    """What the process is called: by `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, else by the given name."""
    attributes: dict[str, str | int] = {"process.pid": os.getpid()}
    given = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in given:
        attributes["service.name"] = service_name
    if "service.instance.id=" not in given:
        # Two processes that write one time series overwrite each other.
        attributes["service.instance.id"] = uuid.uuid4().hex
    return Resource.create(attributes)


def make_tracer_provider(
    settings: TelemetrySettings,
    environment: Mapping[str, str],
    resource: Resource,
    endings: Endings,
    *,
    is_child: bool,
) -> TracerProvider:
    """A provider with a batch processor per exporter; `OTEL_TRACES_SAMPLER` names the sampler.

    Raises:
        TelemetryOptionError: an exporter is not installed, or cannot be made.
    """
    # Made first: no thread is started if an exporter is unavailable.
    exporters = [
        ForkSafeSpanExporter(_maker("traces", name), _outage("spans", "TRACES", name, environment))
        for name in settings.traces
    ]
    delay = _CHILD_SPAN_DELAY_MILLIS if is_child and not environment.get("OTEL_BSP_SCHEDULE_DELAY") else None
    with taken_by_the_sdk("OTEL_BSP_*"):
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        for exporter in exporters:
            options = without_metrics(BatchSpanProcessor)
            processor = BatchSpanProcessor(exporter, schedule_delay_millis=delay, **options)
            provider.add_span_processor(processor)
    provider.add_span_processor(_SignalKeeper(endings))
    return provider


def make_meter_provider(
    settings: TelemetrySettings,
    environment: Mapping[str, str],
    resource: Resource,
    *,
    page: MetricReader | None,
    is_child: bool,
) -> MeterProvider:
    """A provider with a periodic reader per exporter, and the page that Prometheus reads.

    Raises:
        TelemetryOptionError: an exporter is not installed, or cannot be made.
    """
    exporters = [
        ForkSafeMetricExporter(_maker("metrics", name), _outage("metrics", "METRICS", name, environment))
        for name in settings.metrics
    ]
    short = is_child and not environment.get("OTEL_METRIC_EXPORT_INTERVAL")
    interval = _CHILD_METRIC_INTERVAL_MILLIS if short else None
    with taken_by_the_sdk("OTEL_METRIC_EXPORT_INTERVAL"):
        readers: list[MetricReader] = [_MetricReader(one, export_interval_millis=interval) for one in exporters]
        if page is not None:
            readers.append(page)
        return MeterProvider(readers, resource=resource, shutdown_on_exit=False)


def make_log_pipeline(
    settings: TelemetrySettings, environment: Mapping[str, str], resource: Resource, *, is_child: bool
) -> LogPipeline:
    """Logs to the exporters, from now on.

    Raises:
        TelemetryOptionError: an exporter is not installed, or cannot be made; or the SDK is too old.
    """
    # Loaded by those that export logs only: the SDK's modules for them may change their names.
    from penstock.telemetry._logs import ForkSafeLogExporter, LogPipeline

    exporters = [
        ForkSafeLogExporter(_maker("logs", name), _outage("logs", "LOGS", name, environment)) for name in settings.logs
    ]
    with taken_by_the_sdk("OTEL_BLRP_*"):
        return LogPipeline(exporters, environment, resource, is_child=is_child)


@contextmanager
def taken_by_the_sdk(variables: str) -> Iterator[None]:
    """Tell of numbers that the SDK refuses by the variables that they come from."""
    try:
        yield
    except ValueError as error:
        raise TelemetryOptionError(variables, f"the SDK does not take these numbers: {error}") from error


def _maker(signal: str, name: str) -> Callable[[], Any]:
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    found = list(entry_points(group=f"opentelemetry_{signal}_exporter", name=name))
    if not found:
        package = f"opentelemetry-exporter-{name.replace('_', '-')}"
        raise TelemetryOptionError(variable, f"the exporter {name!r} is not installed: pip install {package}")
    quieten()
    try:
        kind = found[0].load()
    except Exception as error:
        raise TelemetryOptionError(variable, f"the exporter {name!r} cannot be loaded: {error}") from error
    options: dict[str, Any] = {}
    if "channel_options" in inspect.signature(kind).parameters:
        options["channel_options"] = (("grpc.max_reconnect_backoff_ms", _RECONNECT_MILLIS),)

    def make() -> Any:
        try:
            return kind(**options)
        except Exception as error:
            raise TelemetryOptionError(variable, f"the exporter {name!r} cannot be made: {error}") from error

    return make


def _outage(what: str, signal: str, name: str, environment: Mapping[str, str]) -> Outage:
    return Outage(what, endpoint_of(environment, signal) if name.startswith("otlp") else name)


class PrometheusPage:
    """Serves the metrics of this process over HTTP, in Prometheus' text format.

    Args:
        host: address to bind to.
        port: 0 lets the system pick one.

    Raises:
        TelemetryOptionError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int) -> None:
        # A registry of its own: another library's default one may hold the same names.
        registry = CollectorRegistry()
        self.reader = PrometheusMetricReader(registry=registry)
        self._pid = os.getpid()
        self._server: Any
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            reason = f"{host}:{port} cannot be bound ({error.strerror}): choose another, or 0 for any free port"
            raise TelemetryOptionError("OTEL_EXPORTER_PROMETHEUS_PORT", reason) from error
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving; a forked child has no server of its own."""
        if self._pid == os.getpid():
            self._server.shutdown()
            self._server.server_close()


class RunningTelemetry:
    """What exports, from its construction to `shutdown`.

    Raises:
        TelemetryOptionError: an exporter is not installed, or the page's address cannot be bound.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        environment: Mapping[str, str],
        service_name: str | None,
        *,
        is_child: bool,
    ) -> None:
        self.settings = settings
        resource = resource_of(environment, service_name or DEFAULT_SERVICE_NAME)
        self.service_name = str(resource.attributes["service.name"])
        endings = Endings(self.flush)
        self._endings = endings
        self.page = None
        # A provider that exports nothing would still have each measurement and span made.
        self._traces = self._metrics = self._logs = None
        try:
            if settings.prometheus is not None and not is_child:
                self.page = PrometheusPage(*settings.prometheus)
            if settings.traces:
                self._traces = make_tracer_provider(settings, environment, resource, endings, is_child=is_child)
            page = self.page.reader if self.page is not None else None
            if settings.metrics or page is not None:
                self._metrics = make_meter_provider(settings, environment, resource, page=page, is_child=is_child)
            if settings.logs:
                self._logs = make_log_pipeline(settings, environment, resource, is_child=is_child)
        except BaseException:
            endings.forget()
            for one in (self._traces, self._metrics):
                if one is not None:
                    one.shutdown()
            if self.page is not None:
                self.page.close()
            raise
        if settings.pushes:
            endings.watch_signals()

        self.tracer_provider = self._traces or trace.NoOpTracerProvider()
        self.meter_provider = self._metrics or metrics.NoOpMeterProvider()

    def flush(self) -> None:
        """Deliver what there is; as long as it takes."""
        for one in (self._traces, self._metrics, self._logs):
            if one is not None:
                one.force_flush()

    def shutdown(self, seconds: float = LAST_SECONDS) -> None:
        """Deliver what there is, and end, within a bound."""

        def end() -> None:
            self.flush()
            for one in (self._traces, self._metrics, self._logs):
                if one is not None:
                    one.shutdown()

        bounded(end, seconds)
        self._endings.forget()
        if self.page is not None:
            self.page.close()
