"""Spans of the service: the OpenTelemetry SDK with the exporters that OTEL_TRACES_EXPORTER names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from penstock.rpc import RpcOptionError

_VARIABLE = "OTEL_TRACES_EXPORTER"
_GROUP = "opentelemetry_traces_exporter"


def set_up_tracing(service: str, environment: Mapping[str, str] = os.environ) -> TracerProvider | None:
    """Set a global tracer provider, to be shut down at the end; None when the variable names no exporter.

    Raises:
        RpcOptionError: an exporter is not installed.
    """
    names = {name.strip() for name in environment.get(_VARIABLE, "").split(",")} - {"", "none"}
    if not names:
        return None
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
    for name in sorted(names):
        installed = entry_points(group=_GROUP, name=name)
        if not installed:
            raise RpcOptionError(_VARIABLE, f"the exporter {name!r} is not installed")
        exporter = next(iter(installed)).load()
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)
    return provider
