"""The sink for a stream."""

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.entries import ElementConverter
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._destinations.aws import AwsSink, ServiceLimits
from penstock.async_sink._destinations.kinesis.aggregate import AggregationConfig
from penstock.async_sink._destinations.kinesis.aggregating import AggregatingKinesisWriter
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry
from penstock.async_sink._destinations.kinesis.partition_key import PartitionKey
from penstock.async_sink._destinations.kinesis.put_records import WireFormat
from penstock.async_sink._destinations.kinesis.writer import KinesisStreamsWriter
from penstock.async_sink._rate.defaults import StrategyFactory, aggregation_strategy, kinesis_strategy
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsOptions, AwsSession

_LIMITS = ServiceLimits(max_batch_size=500, max_batch_size_in_bytes=10 * MEBIBYTE)


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


class KinesisStreamsSink(AwsSink[Any, KinesisRequestEntry]):
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
            raise SinkOptionError("wire_format", f"invalid wire format {wire_format!r} (cbor or json)")
        if aggregation is None:
            make_writer: Callable[..., KinesisStreamsWriter] = KinesisStreamsWriter
            config, strategy = config or AsyncSinkConfig(), strategy or kinesis_strategy
            _LIMITS.check(config)
        else:
            make_writer = partial(AggregatingKinesisWriter, aggregation=aggregation)
            config, strategy = config or kinesis_aggregation_config(), strategy or aggregation_strategy
        super().__init__(
            aws,
            make_writer,
            config=config,
            strategy=strategy,
            converter=converter,
            terminal=terminal,
            stream_name=stream_name,
            stream_arn=stream_arn,
            wire_format=wire_format,
            partition_key=partition_key,
        )
