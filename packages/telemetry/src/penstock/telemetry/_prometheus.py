"""The page that Prometheus reads."""

from __future__ import annotations

import os
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, start_http_server

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
