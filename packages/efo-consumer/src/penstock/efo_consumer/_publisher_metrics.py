"""What publishers count, by FLIP-128's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import metrics

if TYPE_CHECKING:
    from penstock.efo_consumer._kpl import DeaggregationCounts
    from penstock.efo_consumer._publisher import ShardEvent

INSTRUMENTATION = "penstock.efo_consumer"


class PublisherMetrics:
    """Instruments of the record publishers; without a configured SDK they cost next to nothing."""

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(INSTRUMENTATION)
        self._subscriptions = meter.create_counter(
            "subscriptions", unit="{subscription}", description="SubscribeToShard calls that ended, by outcome"
        )
        self._bytes = meter.create_counter("bytesRead", unit="By", description="Data and partition keys that were read")
        self._records = meter.create_counter("recordsRead", unit="{record}", description="Records read")
        self._bytes_per_read = meter.create_histogram(
            "bytesPerRead", unit="By", description="Data and partition keys of one event or GetRecords answer"
        )
        self._records_per_read = meter.create_histogram(
            "recordsPerRead", unit="{record}", description="Records of one event or GetRecords answer"
        )
        self._aggregated = meter.create_counter(
            "numberOfAggregatedRecords", unit="{record}", description="Aggregates that were taken apart"
        )
        self._deaggregated = meter.create_counter(
            "numberOfDeaggregatedRecords", unit="{record}", description="User records that aggregates gave"
        )
        self._malformed = meter.create_counter(
            "numberOfMalformedAggregates",
            unit="{record}",
            description="Records that begin like an aggregate and are none: each was delivered whole",
        )
        self._behind = meter.create_gauge(
            "millisBehindLatest", unit="ms", description="Time between the last answer and the shard's tip"
        )

    def subscription_ended(self, *, stream: str, shard_id: str, transport: str, outcome: str) -> None:
        """Count a SubscribeToShard call that ended, or was refused."""
        self._subscriptions.add(1, {"stream": stream, "shard": shard_id, "transport": transport, "outcome": outcome})

    def event_read(self, event: ShardEvent, *, stream: str, shard_id: str) -> None:
        """Count an event or a GetRecords answer."""
        attributes = {"stream": stream, "shard": shard_id}
        self._behind.set(event.millis_behind_latest, attributes)
        if event.records.num_rows:
            self._records.add(event.records.num_rows, attributes)
            self._bytes.add(event.nbytes, attributes)
            self._bytes_per_read.record(event.nbytes, attributes)
            self._records_per_read.record(event.records.num_rows, attributes)

    def deaggregated(self, counts: DeaggregationCounts, *, stream: str, shard_id: str) -> None:
        """Count what taking aggregates apart gave."""
        attributes = {"stream": stream, "shard": shard_id}
        for counter, number in (
            (self._aggregated, counts.aggregates),
            (self._deaggregated, counts.user_records),
            (self._malformed, counts.malformed),
        ):
            if number:
                counter.add(number, attributes)
