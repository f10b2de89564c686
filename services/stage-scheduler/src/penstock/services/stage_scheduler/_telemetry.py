"""Spans of the service: the OpenTelemetry SDK, set up as OTEL_TRACES_EXPORTER says."""

import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import cast

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

_GROUP = "opentelemetry_traces_exporter"


class UnknownExporterError(ValueError):
    """OTEL_TRACES_EXPORTER names an exporter that is not installed."""

    def __init__(self, name: str, installed: tuple[str, ...]) -> None:
        super().__init__(f"OTEL_TRACES_EXPORTER: no exporter {name!r} is installed; there is {', '.join(installed)}")
        self.name = name
        self.installed = installed


def set_up_tracing(service: str, environment: Mapping[str, str] = os.environ) -> TracerProvider | None:
    """Export spans as OTEL_TRACES_EXPORTER says, a list of names of installed exporters.

    Returns the provider, to be shut down at the end; None when the variable is empty or `none`, which is the default.

    Raises:
        UnknownExporterError: An exporter is not installed.
    """
    wanted = [name.strip() for name in environment.get("OTEL_TRACES_EXPORTER", "none").split(",")]
    names = [name for name in wanted if name and name != "none"]
    if not names:
        return None
    known = {entry.name: entry for entry in entry_points(group=_GROUP)}
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
    for name in names:
        if name not in known:
            raise UnknownExporterError(name, tuple(sorted(known)))
        make = cast(Callable[[], SpanExporter], known[name].load())
        provider.add_span_processor(BatchSpanProcessor(make()))
    trace.set_tracer_provider(provider)
    return provider
