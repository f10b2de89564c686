"""What became of stages, counted."""

from typing import Final

from opentelemetry import metrics

from penstock.operator_attributes._schedule.events import StageEvent

DRIVER: Final = "penstock.operator_attributes"
SERVICE: Final = "penstock.operator_attributes.service"
"""A job that reports to a service is counted by both."""


class StageMetrics:
    """Counts events by job and kind: started, finished, reused, failed, lost, interrupted, restarted."""

    def __init__(self, instrumentation: str, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(instrumentation)
        self._events = meter.create_counter(
            "stageEvents", unit="{event}", description="What happened to stages, by job and event"
        )

    def count(self, job_name: str, event: StageEvent) -> None:
        """Count an event that was applied."""
        kind = type(event).__name__.removeprefix("Stage").lower()
        self._events.add(1, {"penstock.job.name": job_name, "event": kind})
