"""Distributions over requests: told as they arise, since nothing can observe them later."""

from typing import Final

from opentelemetry import metrics

from penstock.async_sink._telemetry.per_provider import PerProvider


class Distributions:
    """Histograms of a meter, shared by its writers."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.fill = meter.create_histogram("batchFillRatio", "1", "Share of the largest request's entries")
        self.attempts = meter.create_histogram("recordAttempts", "{attempt}", "Submissions of accepted entries")
        self.round_trip = meter.create_histogram("requestRoundTrip", "ms", "Time of requests")


distributions: Final = PerProvider(Distributions)
