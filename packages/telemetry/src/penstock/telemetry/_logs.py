"""The pipeline of logs. OpenTelemetry's SDK for Python still keeps its part of this in private modules (`_logs`)."""

from __future__ import annotations

import dataclasses
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry import _logs
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import get_current
from opentelemetry.sdk.resources import Resource

from penstock.telemetry._exporters import Outage, PerProcess, of_this_process, without_metrics
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


_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SEVERITIES: Final = (
    (logging.CRITICAL, "FATAL", SeverityNumber.FATAL),
    (logging.ERROR, "ERROR", SeverityNumber.ERROR),
    (logging.WARNING, "WARN", SeverityNumber.WARN),
    (logging.INFO, "INFO", SeverityNumber.INFO),
    (logging.DEBUG, "DEBUG", SeverityNumber.DEBUG),
)
# What exporters say of their own work would be exported again.
_OWN: Final = "opentelemetry"


class LogHandler(logging.Handler):
    """Emits each record with the ids of the span that it was logged in, and without secrets.

    It stands above the root logger, so to speak as its parent: `logging.basicConfig` sees no handler at the root that
    would keep it from adding one, and `dictConfig` takes none away.
    """

    def __init__(self, provider: _logs.LoggerProvider, redaction: LogRedaction) -> None:
        super().__init__()
        self._provider = provider
        self._redaction = redaction
        self._above = logging.Logger("penstock.telemetry.export")
        self._above.addHandler(self)

    def attach(self) -> None:
        """Take what comes to the root logger from now on."""
        root = logging.getLogger()
        self._above.parent = root.parent
        root.parent = self._above

    def detach(self) -> None:
        """Take nothing more."""
        one: logging.Logger | None = logging.getLogger()
        while one is not None:
            if one.parent is self._above:
                one.parent = self._above.parent
                return
            one = one.parent

    def filter(self, record: logging.LogRecord) -> bool:
        """Not what the exporters log themselves."""
        return record.name.partition(".")[0] != _OWN and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record to the provider; never raises."""
        try:
            self._provider.get_logger(record.name).emit(self._translated(record))
        except Exception:
            self.handleError(record)

    def handle(self, record: logging.LogRecord) -> bool:
        """As any handler. From WARNING on, a record that no other handler takes is shown as without any handler."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and not self._others(record.name):
            last.handle(record)
        return bool(super().handle(record))

    def _others(self, name: str) -> bool:
        one: logging.Logger | None = logging.getLogger(name)
        while one is not None and one is not self._above:
            if one.handlers:
                return True
            one = one.parent
        return one is not None and one.parent is not None and one.parent.hasHandlers()

    def _translated(self, record: logging.LogRecord) -> LogRecord:
        severity = next((each for each in _SEVERITIES if record.levelno >= each[0]), _SEVERITIES[-1])
        return LogRecord(
            timestamp=int(record.created * 1e9),
            observed_timestamp=time.time_ns(),
            context=get_current(),
            severity_text=severity[1],
            severity_number=severity[2],
            body=self._redaction.text(record.getMessage()),
            attributes=self._attributes(record),
        )

    def _attributes(self, record: logging.LogRecord) -> dict[str, str | bool | int | float]:
        found: dict[str, object] = {
            name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD and value is not None
        }
        found |= {
            "code.file.path": record.pathname,
            "code.function.name": record.funcName or "",
            "code.line.number": record.lineno,
        }
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, trace = record.exc_info
            found["exception.type"] = kind.__qualname__
            found["exception.message"] = str(error)
            found["exception.stacktrace"] = "".join(traceback.format_exception(kind, error, trace))
        return {name: self._redaction.attribute(name, value) for name, value in found.items()}
