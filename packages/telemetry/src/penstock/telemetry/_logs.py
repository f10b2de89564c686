"""The pipeline of logs. OpenTelemetry's SDK for Python still keeps its part of this in private modules (`_logs`)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource

from penstock.telemetry._exporters import Outage, PerProcess, of_this_process, without_metrics
from penstock.telemetry._log_handler import LogHandler
from penstock.telemetry._log_secrets import LogRedaction
from penstock.telemetry.errors import TelemetryOptionError

try:
    from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
except ImportError as _error:  # pragma: no cover - an older SDK
    raise TelemetryOptionError(
        "OTEL_LOGS_EXPORTER", "logs need a newer SDK: pip install 'opentelemetry-sdk>=1.39'"
    ) from _error

_log = logging.getLogger("penstock.telemetry")
_CHILD_DELAY_MILLIS: Final = 1000.0


class ForkSafeLogExporter(LogRecordExporter):
    """Sends by an exporter of the process that it runs in."""

    def __init__(self, make: Callable[[], LogRecordExporter], outage: Outage) -> None:
        self._exporter = PerProcess(make)
        self._outage = outage

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Send; a failure is logged once and never raised."""
        try:
            exporter = self._exporter.get()
            if self._exporter.is_forked:
                batch = [dataclasses.replace(one, resource=of_this_process(one.resource)) for one in batch]
            result = exporter.export(batch)
        except Exception:
            _log.debug("logs cannot be exported", exc_info=True)
            result = LogRecordExportResult.FAILURE
        self._outage.note(result is LogRecordExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Close what this process has opened."""
        if (exporter := self._exporter.peek()) is not None:
            exporter.shutdown()  # type: ignore[no-untyped-call]  # published without annotations

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True


class LogPipeline:
    """From Python's root logger to the exporters, until `shutdown`."""

    def __init__(
        self,
        exporters: Sequence[LogRecordExporter],
        environment: Mapping[str, str],
        resource: Resource,
        *,
        is_child: bool,
    ) -> None:
        short = is_child and not environment.get("OTEL_BLRP_SCHEDULE_DELAY")
        options = without_metrics(LoggerProvider)
        self._provider = LoggerProvider(resource=resource, shutdown_on_exit=False, **options)
        for exporter in exporters:
            delay = _CHILD_DELAY_MILLIS if short else None
            options = without_metrics(BatchLogRecordProcessor)
            processor = BatchLogRecordProcessor(exporter, schedule_delay_millis=delay, **options)
            self._provider.add_log_record_processor(processor)
        self._handler = LogHandler(self._provider, LogRedaction(environment))
        self._handler.attach()

    def force_flush(self) -> None:
        """Deliver what there is; as long as it takes."""
        self._provider.force_flush()

    def shutdown(self) -> None:
        """Take no more, deliver what there is, and end."""
        self._handler.detach()
        self._provider.shutdown()
