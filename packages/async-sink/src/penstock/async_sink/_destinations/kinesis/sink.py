"""The sink for a stream."""

from collections.abc import Callable, Iterable
from typing import Any

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.entries import ElementConverter
from penstock.async_sink._core.sink import AsyncSinkBase
from penstock.async_sink._core.state import BufferedRequestState
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._destinations.aws import check_service_limits
from penstock.async_sink._destinations.kinesis.aggregate import AggregationConfig
from penstock.async_sink._destinations.kinesis.aggregating import AggregatingKinesisWriter
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry
from penstock.async_sink._destinations.kinesis.partition_key import PartitionKey
from penstock.async_sink._destinations.kinesis.put_records import WireFormat
from penstock.async_sink._destinations.kinesis.writer import KinesisEntryWriter, KinesisStreamsWriter
from penstock.async_sink._rate.defaults import aimd_strategy, paced_strategy
from penstock.async_sink._rate.strategy import RateLimitingStrategy
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsOptions, AwsSession

StrategyFactory = Callable[[AsyncSinkConfig], RateLimitingStrategy]


def kinesis_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """Each shard at its own pace, and congestion control after a slow start: see `paced_strategy`."""
    return paced_strategy(config)


def aggregation_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """AIMD +100, x0.9, after a slow start, in user records: an aggregate takes many of them along."""
    return aimd_strategy(config, increase_rate=100, decrease_factor=0.9, slow_start=True)


def kinesis_aggregation_config(**options: Any) -> AsyncSinkConfig:
    """An `AsyncSinkConfig` for aggregates: 10,000 user records a request, 4.5 MiB, 100,000 in the buffer.

    Raises:
        SinkOptionError: an option is wrong.
    """
    defaults = {
        "max_batch_size": 10_000,
        "max_buffered_requests": 100_000,
        # What frames the user records in their aggregates has room up to the 5 MiB of a request.
        "max_batch_size_in_bytes": 9 * MEBIBYTE // 2,
    }
    return AsyncSinkConfig(**{**defaults, **options})


class KinesisStreamsSink(AsyncSinkBase[Any, KinesisRequestEntry]):
    """Writes to a Kinesis data stream by PutRecords, at least once.

    Can be pickled: a Spark driver makes it, tasks make writers of it.

    Raises:
        SinkOptionError: not exactly one of stream name and stream ARN is given, or a limit is above PutRecords'.
    """

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        stream_name: str | None = None,
        *,
        stream_arn: str | None = None,
        config: AsyncSinkConfig | None = None,
        strategy: StrategyFactory | None = None,
        converter: ElementConverter[Any, KinesisRequestEntry] | Callable[[Any], KinesisRequestEntry] | None = None,
        partition_key: PartitionKey | None = None,
        aggregation: AggregationConfig | None = None,
        terminal: Callable[[], TerminalRecordHandler] | None = None,
        wire_format: WireFormat | None = None,
    ) -> None:
        """Describe the stream.

        `strategy` makes the rate limiting strategy of each writer. Without a `converter`, elements are
        `KinesisRequestEntry`s; `partition_key` is for record batches without a column `partitionKey`. With
        `aggregation` records travel in aggregates of the producer library, which readers take apart; then the default
        limits are those of `kinesis_aggregation_config`. `terminal` makes the handler of each writer for records that
        cannot be written; without it they end the writer.
        `wire_format` is that of requests, `cbor` or `json`; the default is CBOR for the service's own endpoints, and
        JSON for others, which may not speak CBOR.
        """
        if (stream_name is None) == (stream_arn is None):
            raise SinkOptionError("stream_name", "give either a stream name or a stream ARN")
        for name, given in (("stream_name", stream_name), ("stream_arn", stream_arn)):
            if given == "":
                raise SinkOptionError(name, "must not be empty")
        if wire_format not in (None, "cbor", "json"):
            raise SinkOptionError("wire_format", f"{wire_format!r} is none; give cbor or json")
        if aggregation is None and config is not None:
            check_service_limits(config, max_batch_size=500, max_batch_size_in_bytes=10 * MEBIBYTE)
        self._aws = aws
        self._stream_name = stream_name
        self._stream_arn = stream_arn
        self._aggregation = aggregation
        self._config = config or (AsyncSinkConfig() if aggregation is None else kinesis_aggregation_config())
        self._strategy = strategy or (kinesis_strategy if aggregation is None else aggregation_strategy)
        self._converter = converter
        self._partition_key = partition_key
        self._terminal = terminal
        self._wire_format = wire_format

    def create_writer(self) -> KinesisEntryWriter:
        """A writer with an empty buffer, an own connection pool and an own rate limit."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[KinesisRequestEntry]]) -> KinesisEntryWriter:
        """A writer that begins with what others left behind."""
        arguments: dict[str, Any] = {
            "stream_name": self._stream_name,
            "stream_arn": self._stream_arn,
            "wire_format": self._wire_format,
            "config": self._config,
            "strategy": self._strategy(self._config),
            "converter": self._converter,
            "initial_states": states,
            "terminal": None if self._terminal is None else self._terminal(),
        }
        writer: KinesisEntryWriter
        if self._aggregation is None:
            writer = KinesisStreamsWriter(self._aws, **arguments)
        else:
            writer = AggregatingKinesisWriter(self._aws, aggregation=self._aggregation, **arguments)
        writer.partition_key = self._partition_key
        return writer
