"""What a writer says of itself."""

from typing import Generic, TypeVar

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.dispatcher import Dispatcher
from penstock.async_sink._core.pump import RequestPump
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._rate.strategy import CompleteStrategy, RateLimitingStrategy
from penstock.async_sink._telemetry.metrics import SinkGauges, SinkMetrics
from penstock.async_sink._telemetry.sink_telemetry import SinkTelemetry

R = TypeVar("R")


class WriterView(Generic[R]):
    """The parts of a writer, and what they say. `AsyncSinkWriter` makes them."""

    _config: AsyncSinkConfig
    _destination: str
    _strategy: RateLimitingStrategy
    _complete: CompleteStrategy
    _terminal: TerminalRecordHandler | None
    _telemetry: SinkTelemetry
    _dispatcher: Dispatcher[R]
    _pump: RequestPump[R] | None = None
    _records_written: int = 0

    @property
    def config(self) -> AsyncSinkConfig:
        """The writer's limits."""
        return self._config

    @property
    def destination(self) -> str:
        """Name of the destination."""
        return self._destination

    @property
    def records_written(self) -> int:
        """Records written so far, restored ones included."""
        return self._records_written

    @property
    def metrics(self) -> SinkMetrics:
        """Numbers since the writer was made."""
        return self._telemetry.metrics

    @property
    def strategy(self) -> RateLimitingStrategy:
        """The rate limiting strategy in use."""
        return self._strategy

    @property
    def gives_up_records(self) -> bool:
        """Whether a terminal record handler takes records that cannot be written."""
        return self._terminal is not None

    @property
    def buffered_entries(self) -> int:
        """Entries that wait to be sent."""
        return len(self._dispatcher.buffer)

    @property
    def in_flight_requests(self) -> int:
        """Requests that wait for their answer."""
        return len(self._dispatcher.in_flight)

    @property
    def in_flight_messages(self) -> int:
        """Entries that wait for their answer."""
        return self._dispatcher.held.in_flight

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the writer."""
        return self._pump.failure if self._pump is not None else None

    def gauges(self) -> SinkGauges:
        """The writer at this moment."""
        buffer, pump = self._dispatcher.buffer, self._pump
        oldest = buffer.oldest_written_at()
        return SinkGauges(
            buffer_records=len(buffer),
            buffer_bytes=buffer.total_size_in_bytes,
            buffer_age_seconds=0.0 if oldest is None or pump is None else pump.now() - oldest,
            in_flight_requests=self.in_flight_requests,
            in_flight_messages=self.in_flight_messages,
            limit=self._complete.limit,
        )
