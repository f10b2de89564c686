"""What the `OTEL_*` variables ask for; decided here, done elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from penstock.telemetry.errors import TelemetryOptionError

PROMETHEUS: Final = "prometheus"
HEADERS_FILE: Final = "PENSTOCK_OTLP_HEADERS_FILE"
_GRPC, _HTTP = "otlp_proto_grpc", "otlp_proto_http"
_PROTOCOLS: Final = {"grpc": _GRPC, "http/protobuf": _HTTP}
_DEFAULT_PROMETHEUS_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """Which exporters there are, by the names of their entry points."""

    disabled: bool = False
    """`OTEL_SDK_DISABLED`: nothing is made."""
    traces: tuple[str, ...] = ()
    """Entry points of the group `opentelemetry_traces_exporter`."""
    metrics: tuple[str, ...] = ()
    """Entry points of the group `opentelemetry_metrics_exporter`, but for `prometheus`."""
    logs: tuple[str, ...] = ()
    """Entry points of the group `opentelemetry_logs_exporter`; none unless `OTEL_LOGS_EXPORTER` asks for them."""
    prometheus: tuple[str, int] | None = None
    """Host and port of the page for Prometheus; port 0 lets the system pick one. None: no page."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the variables.

        A signal goes where its `OTEL_…_EXPORTER` says; without it, to OTLP if an OTLP endpoint is given, else nowhere.

        Raises:
            TelemetryOptionError: a variable has a value that cannot be used.
        """
        if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return cls(disabled=True)
        metrics = _exporters(environment, "METRICS")
        prometheus = None
        if PROMETHEUS in metrics:
            host = environment.get("OTEL_EXPORTER_PROMETHEUS_HOST", "").strip()
            prometheus = (host or _DEFAULT_PROMETHEUS_HOST, _port(environment))
        return cls(
            traces=_exporters(environment, "TRACES"),
            metrics=tuple(name for name in metrics if name != PROMETHEUS),
            # An endpoint alone does not ask for logs: they may hold what spans and metrics do not.
            logs=_exporters(environment, "LOGS") if environment.get("OTEL_LOGS_EXPORTER", "").strip() else (),
            prometheus=prometheus,
        )

    @property
    def pushes(self) -> bool:
        """Whether anything is exported that a process of Spark's can export too."""
        return bool(self.traces or self.metrics or self.logs)


def endpoint_of(environment: Mapping[str, str], signal: str) -> str:
    """Where OTLP goes, fit to be shown: without user, password and query.

    Raises:
        TelemetryOptionError: the endpoint is not a URL.
    """
    names = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    name = next((name for name in names if environment.get(name)), "")
    text = environment.get(name) or "http://localhost:4317"
    try:
        parts = urlsplit(text if "//" in text else f"//{text}")
    except ValueError as error:
        # Not shown: it may hold a password.
        raise TelemetryOptionError(name, f"is not a URL ({error}); example: http://host:4317") from error
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else f"{host}{parts.path}"


def _exporters(environment: Mapping[str, str], signal: str) -> tuple[str, ...]:
    variable = f"OTEL_{signal}_EXPORTER"
    text = environment.get(variable, "")
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names and (
        environment.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    ):
        names = ["otlp"]
    wanted = [name for name in names if name != "none"]
    if PROMETHEUS in wanted and signal != "METRICS":
        reason = f"{PROMETHEUS!r} is for metrics (OTEL_METRICS_EXPORTER); it may be otlp, console or none"
        raise TelemetryOptionError(variable, reason)
    if "otlp" in wanted:
        endpoint_of(environment, signal)
    return tuple(dict.fromkeys(_by_protocol(environment, signal) if name == "otlp" else name for name in wanted))


def _by_protocol(environment: Mapping[str, str], signal: str) -> str:
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if text := environment.get(variable, "").strip():
            if text not in _PROTOCOLS:
                raise TelemetryOptionError(variable, f"{text!r} is unknown; it may be {' or '.join(_PROTOCOLS)}")
            return _PROTOCOLS[text]
    return _GRPC


def _port(environment: Mapping[str, str]) -> int:
    variable = "OTEL_EXPORTER_PROMETHEUS_PORT"
    text = environment.get(variable, "").strip() or "9464"
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise TelemetryOptionError(variable, f"{text!r} is not a port; 0 lets the system pick one")
    return int(text)
