"""The sink for a table."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.converter import ElementConverter
from penstock.async_sink._core.sink import AsyncSinkBase
from penstock.async_sink._core.state import BufferedRequestState
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._destinations.aws import check_service_limits
from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry
from penstock.async_sink._destinations.dynamodb.writer import DynamoDbWriter
from penstock.async_sink._rate.defaults import aimd_strategy
from penstock.async_sink._rate.strategy import RateLimitingStrategy
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsOptions, AwsSession

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes

_MAX_BATCH_SIZE = 25
_MAX_BATCH_SIZE_IN_BYTES = 16_000_000
_MAX_RECORD_SIZE_IN_BYTES = 400_000


def dynamodb_config(**options: Any) -> AsyncSinkConfig:
    """An `AsyncSinkConfig` with DynamoDB's limits as its defaults: 25 items, 16 MB, 400 kB an item.

    Raises:
        SinkOptionError: an option is wrong.
    """
    defaults = {
        "max_batch_size": _MAX_BATCH_SIZE,
        "max_batch_size_in_bytes": _MAX_BATCH_SIZE_IN_BYTES,
        "max_record_size_in_bytes": _MAX_RECORD_SIZE_IN_BYTES,
    }
    return AsyncSinkConfig(**{**defaults, **options})


def dynamodb_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """AIMD +10, x0.5, after a slow start."""
    return aimd_strategy(config, increase_rate=10, decrease_factor=0.5, slow_start=True)


class DynamoDbSink(AsyncSinkBase[I, DynamoDbRequestEntry], Generic[I]):
    """Writes to a table by BatchWriteItem, at least once.

    Without a converter, elements are `DynamoDbRequestEntry`s. Can be pickled if the converter can.

    Raises:
        SinkOptionError: there is no name, or a limit is above the service's.
    """

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        table_name: str,
        *,
        key_names: Sequence[str] = (),
        converter: ElementConverter[I, DynamoDbRequestEntry] | Callable[[I], DynamoDbRequestEntry] | None = None,
        config: AsyncSinkConfig | None = None,
        strategy: Callable[[AsyncSinkConfig], RateLimitingStrategy] = dynamodb_strategy,
        terminal: Callable[[], TerminalRecordHandler] | None = None,
    ) -> None:
        """Describe the table.

        `strategy` makes the rate limiting strategy of each writer, `terminal` its handler for records that cannot be
        written; without it they end the writer.

        `key_names` are the attributes of the table's key, of which a request may hold each value once; each writer asks
        DescribeTable for them if they are not given.
        """
        if not table_name:
            raise SinkOptionError("table_name", "must not be empty")
        self._aws = aws
        self._table_name = table_name
        self._key_names = tuple(key_names)
        self._converter = converter
        self._config = config or dynamodb_config()
        self._strategy = strategy
        self._terminal = terminal
        check_service_limits(
            self._config, max_batch_size=_MAX_BATCH_SIZE, max_batch_size_in_bytes=_MAX_BATCH_SIZE_IN_BYTES
        )

    def create_writer(self) -> DynamoDbWriter[I]:
        """A writer with an empty buffer, an own connection pool and an own rate limit."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[DynamoDbRequestEntry]]) -> DynamoDbWriter[I]:
        """A writer that begins with what others left behind."""
        return DynamoDbWriter(
            self._aws,
            self._config,
            key_names=self._key_names,
            destination=self._table_name,
            converter=self._converter,
            strategy=self._strategy(self._config),
            initial_states=states,
            terminal=None if self._terminal is None else self._terminal(),
        )
