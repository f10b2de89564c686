"""Spans, and the trace context that crosses Spark's processes."""

import os
from collections.abc import Mapping

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT_PROPERTY = "penstock.traceparent"
"""Spark local property that carries the trace context to tasks, when set before a query or job is started."""

_propagator = TraceContextTextMapPropagator()


def tracer() -> Tracer:
    """The tracer of this package. Fetched when used: the application may set the provider late."""
    return trace.get_tracer("penstock.spark_plugin")


def traceparent_of(span: Span) -> str | None:
    """The W3C text of a span's context; None when nothing records."""
    return _inject(trace.set_span_in_context(span))


def current_traceparent() -> str | None:
    """The W3C text of the current context, if any."""
    return _inject(context_api.get_current())


def parent_context(*candidates: str | None, environ: Mapping[str, str] | None = None) -> Context | None:
    """The first of the given contexts, else the environment's `TRACEPARENT`; None: whatever is current."""
    environ = os.environ if environ is None else environ
    for text in (*candidates, environ.get("TRACEPARENT")):
        if text:
            return _propagator.extract({"traceparent": text}, Context())
    return None


def task_property(name: str) -> str | None:
    """A local property of the Spark task that runs here; None outside of tasks."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return task.getLocalProperty(name) if task is not None else None


def _inject(context: Context) -> str | None:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier.get("traceparent")
