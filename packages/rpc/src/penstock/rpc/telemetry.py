"""Spans of a service: the OpenTelemetry SDK, set up as OTEL_TRACES_EXPORTER says.

Only services import this module; it needs the extra `service`, because libraries know the OpenTelemetry API only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from penstock.rpc.errors import RpcOptionError


def set_up_tracing(service: str, environment: Mapping[str, str] = os.environ) -> TracerProvider | None:
    """Export spans by the installed exporters that OTEL_TRACES_EXPORTER names.

    Returns the provider, to be shut down at the end; None when the variable names none, which is the default.

    Raises:
        RpcOptionError: an exporter is not installed.
    """
    wanted = [name.strip() for name in environment.get("OTEL_TRACES_EXPORTER", "").split(",")]
    names = [name for name in wanted if name not in ("", "none")]
    if not names:
        return None
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
    for name in names:
        found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
        if not found:
            raise RpcOptionError("OTEL_TRACES_EXPORTER", f"the exporter {name!r} is not installed")
        exporter: Any = found[0].load()
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)
    return provider
