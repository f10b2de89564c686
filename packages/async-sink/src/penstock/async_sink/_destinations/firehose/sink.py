"""The sink for a delivery stream."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.converter import ElementConverter
from penstock.async_sink._core.sink import AsyncSinkBase
from penstock.async_sink._core.state import BufferedRequestState
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._destinations.aws import check_service_limits
from penstock.async_sink._destinations.firehose.writer import FirehoseRequestEntry, FirehoseWriter
from penstock.async_sink._rate.defaults import aimd_strategy
from penstock.async_sink._rate.strategy import RateLimitingStrategy
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsOptions, AwsSession

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes

_MAX_BATCH_SIZE = 500
_MAX_BATCH_SIZE_IN_BYTES = 4 * MEBIBYTE
_MAX_RECORD_SIZE_IN_BYTES = 1000 * 1024


def firehose_config(**options: Any) -> AsyncSinkConfig:
    """An `AsyncSinkConfig` with Firehose's limits as its defaults: 500 records, 4 MiB, 1,024,000 bytes a record.

    Raises:
        SinkOptionError: an option is wrong.
    """
    defaults = {
        "max_batch_size": _MAX_BATCH_SIZE,
        "max_batch_size_in_bytes": _MAX_BATCH_SIZE_IN_BYTES,
        "max_record_size_in_bytes": _MAX_RECORD_SIZE_IN_BYTES,
    }
    return AsyncSinkConfig(**{**defaults, **options})


def firehose_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """AIMD +10, x0.5, after a slow start."""
    return aimd_strategy(config, increase_rate=10, decrease_factor=0.5, slow_start=True)


class FirehoseSink(AsyncSinkBase[I, FirehoseRequestEntry], Generic[I]):
    """Writes to a delivery stream by PutRecordBatch, at least once.

    Without a converter, elements are `FirehoseRequestEntry`s. Can be pickled if the converter can.

    Raises:
        SinkOptionError: there is no name, or a limit is above the service's.
    """

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        delivery_stream_name: str,
        *,
        converter: ElementConverter[I, FirehoseRequestEntry] | Callable[[I], FirehoseRequestEntry] | None = None,
        config: AsyncSinkConfig | None = None,
        strategy: Callable[[AsyncSinkConfig], RateLimitingStrategy] = firehose_strategy,
        terminal: Callable[[], TerminalRecordHandler] | None = None,
    ) -> None:
        """Describe the delivery stream.

        `strategy` makes the rate limiting strategy of each writer, `terminal` its handler for records that cannot be
        written; without it they end the writer.
        """
        if not delivery_stream_name:
            raise SinkOptionError("delivery_stream_name", "must not be empty")
        self._aws = aws
        self._name = delivery_stream_name
        self._converter = converter
        self._config = config or firehose_config()
        self._strategy = strategy
        self._terminal = terminal
        check_service_limits(
            self._config, max_batch_size=_MAX_BATCH_SIZE, max_batch_size_in_bytes=_MAX_BATCH_SIZE_IN_BYTES
        )

    def create_writer(self) -> FirehoseWriter[I]:
        """A writer with an empty buffer, an own connection pool and an own rate limit."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[FirehoseRequestEntry]]) -> FirehoseWriter[I]:
        """A writer that begins with what others left behind."""
        return FirehoseWriter(
            self._aws,
            self._config,
            destination=self._name,
            converter=self._converter,
            strategy=self._strategy(self._config),
            initial_states=states,
            terminal=None if self._terminal is None else self._terminal(),
        )
