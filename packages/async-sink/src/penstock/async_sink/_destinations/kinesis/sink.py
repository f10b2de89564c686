"""The sink for a stream."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._destinations.aws import AwsSink, ServiceLimits, SinkOptions, named, of_type
from penstock.async_sink._destinations.columns import RowFault
from penstock.async_sink._destinations.kinesis.aggregate import AggregatedStream, AggregationConfig
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry, PartitionKey
from penstock.async_sink._destinations.kinesis.put_records import KinesisStream, WireFormat
from penstock.async_sink._destinations.kinesis.rows import columns_of_batch, faults_of
from penstock.async_sink._rate.defaults import aggregation_strategy, kinesis_strategy
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsOptions, AwsSession

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Without a converter, elements are entries.
    I = TypeVar("I", default=KinesisRequestEntry)  # noqa: E741  # FLIP-171's name for what the caller writes
else:
    from typing import TypeVar

    I = TypeVar("I")  # noqa: E741

_LIMITS = ServiceLimits(
    max_batch_size=500,
    max_batch_size_in_bytes=10 * MEBIBYTE,
    max_record_size_in_bytes=10 * MEBIBYTE,
    defaults={"max_batch_size_in_bytes": 5 * MEBIBYTE},
    strategy=kinesis_strategy,
)
# Of user records: the requests that their aggregates make are cut to the limits above.
_AGGREGATION_LIMITS = ServiceLimits(
    max_batch_size=sys.maxsize,
    max_batch_size_in_bytes=sys.maxsize,
    max_record_size_in_bytes=10 * MEBIBYTE,
    defaults={
        "max_batch_size": 10_000,
        "max_buffered_requests": 100_000,
        # What frames the user records in their aggregates has room up to the 5 MiB of a request.
        "max_batch_size_in_bytes": 9 * MEBIBYTE // 2,
    },
    strategy=aggregation_strategy,
)


def kinesis_aggregation_config(**options: Any) -> AsyncSinkConfig:
    """An `AsyncSinkConfig` for aggregates: 10,000 user records a request, 4.5 MiB, 100,000 in the buffer.

    Raises:
        SinkOptionError: an option is wrong.
    """
    return _AGGREGATION_LIMITS.config(options)


class KinesisStreamsSink(AwsSink[I, KinesisRequestEntry]):
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
        partition_key: PartitionKey | None = None,
        aggregation: AggregationConfig | None = None,
        wire_format: WireFormat | None = None,
        **options: Unpack[SinkOptions[I, KinesisRequestEntry]],
    ) -> None:
        """Describe the stream.

        `partition_key` is for record batches without a column `partitionKey`. With `aggregation` records travel in
        aggregates of the producer library, which readers split; the default limits are then those that
        `kinesis_aggregation_config` gives. `wire_format` of requests is `cbor` or `json`; the default is CBOR for the
        service's own endpoints, and JSON for others, which may not speak CBOR. `options` are `converter`, `config`,
        `strategy` and `terminal`, as all sinks have them.
        """
        if (stream_name is None) == (stream_arn is None):
            raise SinkOptionError("stream_name", "give either a stream name or a stream ARN")
        for name, given in (("stream_name", stream_name), ("stream_arn", stream_arn)):
            if given is not None:
                named(name, given)
        for name, option, kind in (
            ("partition_key", partition_key, PartitionKey),
            ("aggregation", aggregation, AggregationConfig),
        ):
            if option is not None:
                of_type(name, option, kind)
        if wire_format not in (None, "cbor", "json"):
            raise SinkOptionError("wire_format", f"invalid wire format {wire_format!r} (cbor or json)")
        stream: dict[str, Any] = {
            "stream_name": stream_name,
            "stream_arn": stream_arn,
            "wire_format": wire_format,
            "partition_key": partition_key,
        }
        if aggregation is None:
            super().__init__(aws, partial(KinesisStream, **stream), _LIMITS, **options)
        else:
            make = partial(AggregatedStream, aggregation=aggregation, **stream)
            super().__init__(aws, make, _AGGREGATION_LIMITS, **options)
            size, largest = aggregation.max_aggregate_bytes, self._config.max_record_size_in_bytes
            # Every stream takes 1 MiB, also where the limit of the user's records is smaller.
            if size > max(largest, MEBIBYTE):
                bound = "max_record_size_in_bytes"
                raise SinkOptionError.out_of_bounds("max_aggregate_bytes", size, "at most", largest, bound)

    @staticmethod
    def row_faults(batch: pa.RecordBatch, max_record_size_in_bytes: int) -> Iterator[RowFault]:
        """The rules of PutRecords that a record batch breaks, each with the rows that break it.

        Columns: `data` binary, `partitionKey` string, and `explicitHashKey` string where wanted.

        Raises:
            SinkOptionError: a column is missing or of a type that cannot be read.
        """
        return faults_of(columns_of_batch(batch), max_record_size_in_bytes)
