"""Penstock's spans, metrics and logs to any OpenTelemetry backend."""

from penstock.telemetry._configure import Telemetry, configure
from penstock.telemetry._reference import MetricReference, Reference, SpanReference, reference
from penstock.telemetry.errors import TelemetryOptionError

__all__ = [
    "MetricReference",
    "Reference",
    "SpanReference",
    "Telemetry",
    "TelemetryOptionError",
    "configure",
    "reference",
]
