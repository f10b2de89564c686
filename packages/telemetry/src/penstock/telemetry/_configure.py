"""One call for a driver, a service or a script."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from opentelemetry import metrics, trace

from penstock.telemetry import _process
from penstock.telemetry._endings import LAST_SECONDS, bounded
from penstock.telemetry._log_secrets import holds_secret
from penstock.telemetry._settings import HEADERS_FILE, PROMETHEUS, endpoint_of

if TYPE_CHECKING:
    from penstock.telemetry._running import RunningTelemetry

_log = logging.getLogger("penstock.telemetry")


class SparkBuilder(Protocol):
    """The part of `SparkSession.builder` that is used."""

    def config(self, key: str, value: str) -> Any:
        """Set a setting."""
        ...


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What `configure` did. A context manager: on exit, `shutdown`."""

    service_name: str = ""
    """Of this process; empty when nothing is exported."""
    traces: tuple[str, ...] = ()
    """Where spans go, without secrets."""
    metrics: tuple[str, ...] = ()
    """Where metrics go, without secrets."""
    logs: tuple[str, ...] = ()
    """Where logs go, without secrets."""
    prometheus_address: str | None = None
    """`host:port` of the page `/metrics`; None without such a page."""
    executor_environment: dict[str, str] = field(default_factory=dict)
    """Variables that executors were given, by Spark's setting `spark.executorEnv.*`."""
    withheld: tuple[str, ...] = ()
    """Variables that were not given to executors, because they hold secrets."""
    replaced_by: str = ""
    """The class of a provider that somebody else has set, which therefore gets this process' spans or metrics."""
    _running: RunningTelemetry | None = field(default=None, repr=False, compare=False)

    @property
    def is_on(self) -> bool:
        """Whether anything is exported."""
        return bool(self.traces or self.metrics or self.logs)

    def describe(self) -> str:
        """The same, in a few lines for people."""
        if not self.is_on:
            return "telemetry is off: set OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER"
        lines = [f"another provider was set before: {self.replaced_by}"] if self.replaced_by else []
        lines += [
            f"telemetry of {self.service_name}",
            f"spans to {', '.join(self.traces) or 'nowhere'}",
            f"metrics to {', '.join(self.metrics) or 'nowhere'}",
            *((f"logs to {', '.join(self.logs)}",) if self.logs else ()),
        ]
        if self.executor_environment:
            lines.append(f"executors were given {', '.join(sorted(self.executor_environment))}")
        if self.withheld:
            cure = f"set them in the executors' own environment, or use {HEADERS_FILE}"
            lines.append(f"executors were not given {', '.join(self.withheld)}, which Spark would show: {cure}")
        return "\n".join(lines)

    def flush(self, seconds: float = LAST_SECONDS) -> None:
        """Deliver what there is, within a bound."""
        if self._running is not None:
            bounded(self._running.flush, seconds)

    def shutdown(self, seconds: float = LAST_SECONDS) -> None:
        """Deliver what there is and export no more, within a bound. This also happens when the process ends."""
        if self._running is not None:
            self._running.shutdown(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def configure(service_name: str = "penstock", *, spark: SparkBuilder | None = None) -> Telemetry:
    """Export spans, metrics and logs as the `OTEL_*` variables say, from this process and from those that it starts.

    Call it before the Spark session is made: the JVM hands its environment on to the source process and to the workers
    of this machine, and the builder's settings to executors elsewhere. Called again, it changes nothing here.

    Args:
        service_name: for a process that neither `OTEL_SERVICE_NAME` nor `OTEL_RESOURCE_ATTRIBUTES` names.
        spark: `SparkSession.builder`, to be given what executors need.

    Returns: what was done.

    Raises:
        TelemetryOptionError: a variable cannot be used; it says which, and what to do.
    """
    running = _process.running(service_name, is_child=False)
    if running is None:
        done = Telemetry()
        _log.info("%s", done.describe())
        return done
    # By these the API finds the providers, here and in every process that is started from here.
    for name, value in _process.PROVIDERS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("OTEL_SERVICE_NAME", running.service_name)
    others = [
        type(found).__name__
        for found, ours in (
            (trace.get_tracer_provider(), running.tracer_provider),
            (metrics.get_meter_provider(), running.meter_provider),
        )
        if found is not ours
    ]
    settings = running.settings
    children = child_environment(os.environ, running.service_name) if settings.pushes else {}
    if spark is not None and settings.pushes:
        for name, value in executor_configuration(os.environ, running.service_name).items():
            spark.config(name, value)
    missing = tuple(name for name in withheld(os.environ) if name not in _process.of_headers_file)
    address = running.page.address if running.page is not None else None
    done = Telemetry(
        service_name=running.service_name,
        traces=tuple(_told(name, "TRACES") for name in settings.traces),
        metrics=(
            *(_told(name, "METRICS") for name in settings.metrics),
            *((f"http://{address}/metrics",) if address else ()),
        ),
        logs=tuple(_told(name, "LOGS") for name in settings.logs),
        prometheus_address=address,
        executor_environment=children if spark is not None else {},
        withheld=missing if spark is not None and settings.pushes else (),
        replaced_by=", ".join(others),
        _running=running,
    )
    _log.info("%s", done.describe())
    return done


def _told(name: str, signal: str) -> str:
    return f"{endpoint_of(os.environ, signal)} ({name})" if name.startswith("otlp") else name


_OTHERS: Final = (HEADERS_FILE, "PENSTOCK_METRICS_PER_SHARD", "PENSTOCK_SPANS_PER_REQUEST")
"""Variables of Penstock's packages that say what is measured."""


def child_environment(environment: Mapping[str, str], service_name: str) -> dict[str, str]:
    """The variables of a process that Spark starts: all of `OTEL_*` but secrets, what of Penstock's says what is
    measured, and the providers of this package."""
    # Spark shows its configuration in its web page and its event log.
    variables = {
        name: value for name, value in environment.items() if name.startswith("OTEL_") and not holds_secret(name, value)
    }
    variables |= {name: environment[name] for name in _OTHERS if name in environment}
    exporters = [one.strip() for one in variables.get("OTEL_METRICS_EXPORTER", "").split(",") if one.strip()]
    if PROMETHEUS in exporters:
        # A page for each worker could not be found.
        others = [one for one in exporters if one != PROMETHEUS]
        variables["OTEL_METRICS_EXPORTER"] = ",".join(others) or "none"
    variables.setdefault("OTEL_SERVICE_NAME", service_name)
    return {**variables, **_process.PROVIDERS}


def executor_configuration(environment: Mapping[str, str], service_name: str) -> dict[str, str]:
    """The same as Spark's settings for executors."""
    return {f"spark.executorEnv.{name}": value for name, value in child_environment(environment, service_name).items()}


def withheld(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that are set here and that executors are not given."""
    found = [name for name, value in environment.items() if name.startswith("OTEL_") and holds_secret(name, value)]
    return tuple(sorted(found))
