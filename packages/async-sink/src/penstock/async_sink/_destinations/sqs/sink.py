"""The sink for a queue."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.converter import ElementConverter
from penstock.async_sink._core.sink import AsyncSinkBase
from penstock.async_sink._core.state import BufferedRequestState
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._destinations.aws import check_service_limits
from penstock.async_sink._destinations.sqs.entry import SqsRequestEntry
from penstock.async_sink._destinations.sqs.writer import SqsWriter
from penstock.async_sink._rate.defaults import aimd_strategy
from penstock.async_sink._rate.strategy import RateLimitingStrategy
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsOptions, AwsSession

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes

_MAX_BATCH_SIZE = 10
# What every queue takes; a queue may be set to take up to 1 MiB.
_DEFAULT_BYTES = 256_000
_MAX_BATCH_SIZE_IN_BYTES = MEBIBYTE


def sqs_config(**options: Any) -> AsyncSinkConfig:
    """An `AsyncSinkConfig` with SQS's limits as its defaults: 10 messages, 256,000 bytes a request and a message.

    Raises:
        SinkOptionError: an option is wrong.
    """
    defaults = {
        "max_batch_size": _MAX_BATCH_SIZE,
        "max_buffered_requests": 5_000,
        "max_batch_size_in_bytes": _DEFAULT_BYTES,
        "max_record_size_in_bytes": _DEFAULT_BYTES,
    }
    return AsyncSinkConfig(**{**defaults, **options})


def sqs_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """AIMD +10, x0.5, after a slow start."""
    return aimd_strategy(config, increase_rate=10, decrease_factor=0.5, slow_start=True)


class SqsSink(AsyncSinkBase[I, SqsRequestEntry], Generic[I]):
    """Writes to a queue by SendMessageBatch, at least once.

    Without a converter, elements are `SqsRequestEntry`s. Can be pickled if the converter can.

    Raises:
        SinkOptionError: there is no URL, or a limit is above the service's.
    """

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        queue_url: str,
        *,
        converter: ElementConverter[I, SqsRequestEntry] | Callable[[I], SqsRequestEntry] | None = None,
        config: AsyncSinkConfig | None = None,
        strategy: Callable[[AsyncSinkConfig], RateLimitingStrategy] = sqs_strategy,
        terminal: Callable[[], TerminalRecordHandler] | None = None,
    ) -> None:
        """Describe the queue.

        `strategy` makes the rate limiting strategy of each writer, `terminal` its handler for records that cannot be
        written; without it they end the writer.
        """
        if not queue_url:
            raise SinkOptionError("queue_url", "must not be empty")
        self._aws = aws
        self._queue_url = queue_url
        self._converter = converter
        self._config = config or sqs_config()
        self._strategy = strategy
        self._terminal = terminal
        check_service_limits(
            self._config, max_batch_size=_MAX_BATCH_SIZE, max_batch_size_in_bytes=_MAX_BATCH_SIZE_IN_BYTES
        )

    def create_writer(self) -> SqsWriter[I]:
        """A writer with an empty buffer, an own connection pool and an own rate limit."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[SqsRequestEntry]]) -> SqsWriter[I]:
        """A writer that begins with what others left behind."""
        return SqsWriter(
            self._aws,
            self._config,
            queue_url=self._queue_url,
            destination=self._queue_url.rpartition("/")[2],
            converter=self._converter,
            strategy=self._strategy(self._config),
            initial_states=states,
            terminal=None if self._terminal is None else self._terminal(),
        )
