"""The telemetry of this process: made once, by `configure` or when the OpenTelemetry API asks for a provider."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics, trace

from penstock.telemetry._settings import HEADERS_FILE, TelemetrySettings
from penstock.telemetry.errors import TelemetryOptionError

if TYPE_CHECKING:
    from penstock.telemetry._running import RunningTelemetry

_log = logging.getLogger("penstock.telemetry")
_lock = threading.RLock()
_running: RunningTelemetry | None = None
_refused = False
NAME: Final = "penstock"
PROVIDERS: Final = {"OTEL_PYTHON_TRACER_PROVIDER": NAME, "OTEL_PYTHON_METER_PROVIDER": NAME}
_HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
of_headers_file: Final[set[str]] = set()
"""Variables that a file sets: processes on other machines read that file themselves."""


def _new_lock() -> None:
    # Another thread of the parent's may have held it at the fork.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


def running(service_name: str | None = None, *, is_child: bool) -> RunningTelemetry | None:
    """What this process exports with, made now if it is the first to ask; None when nothing is to be exported.

    Args:
        service_name: for a process that the environment gives no name.
        is_child: a process that Spark started, and may kill: it delivers early, and serves no page.

    Raises:
        TelemetryOptionError: a variable cannot be used.
    """
    global _running
    with _lock:
        if _running is None:
            settings = TelemetrySettings.from_environment(os.environ)
            if settings.disabled or not (settings.pushes or (settings.prometheus and not is_child)):
                return None
            read_headers_file()
            # The SDK is loaded by those that export only.
            from penstock.telemetry._running import RunningTelemetry

            _running = RunningTelemetry(settings, os.environ, service_name, is_child=is_child)
        return _running


def forget() -> None:
    """Let the next caller make a new one."""
    global _running, _refused
    with _lock:
        _running, _refused = None, False


def tracer_provider() -> trace.TracerProvider:
    """The entry point `opentelemetry_tracer_provider`. Never raises: a job does not fail for want of telemetry."""
    found = _for_the_api()
    return found.tracer_provider if found is not None else trace.NoOpTracerProvider()


def meter_provider() -> metrics.MeterProvider:
    """The entry point `opentelemetry_meter_provider`. Never raises."""
    found = _for_the_api()
    return found.meter_provider if found is not None else metrics.NoOpMeterProvider()


def _for_the_api() -> RunningTelemetry | None:
    global _refused
    try:
        return running(is_child=True)
    except Exception as error:
        if not _refused:
            _refused = True
            _log.warning("this process exports no telemetry: %s", error)
        return None


def read_headers_file() -> None:
    """Take the headers of OTLP from the file that is named, unless the environment has them.

    Raises:
        TelemetryOptionError: the file cannot be read.
    """
    path = os.environ.get(HEADERS_FILE)
    if not path or os.environ.get(_HEADERS):
        return
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TelemetryOptionError(HEADERS_FILE, f"{path} cannot be read: {type(error).__name__}") from error
    os.environ[_HEADERS] = ",".join(line.strip() for line in lines if line.strip())
    of_headers_file.add(_HEADERS)
