"""Providers of a process, with how they end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, start_http_server

from penstock.telemetry._endings import LAST_SECONDS, Endings, bounded
from penstock.telemetry._providers import (
    DEFAULT_SERVICE_NAME,
    make_log_pipeline,
    make_meter_provider,
    make_tracer_provider,
    resource_of,
)
from penstock.telemetry._settings import TelemetrySettings
from penstock.telemetry.errors import TelemetryOptionError


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
