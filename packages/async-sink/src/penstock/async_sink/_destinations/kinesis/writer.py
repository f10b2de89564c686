"""The writer for a stream."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.runs import Rows
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._destinations.aws import AwsSinkWriter
from penstock.async_sink._destinations.columns import ColumnarWriter
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry, check_entry, size_in_bytes
from penstock.async_sink._destinations.kinesis.partition_key import PartitionKey
from penstock.async_sink._destinations.kinesis.put_records import PutRecords, WireFormat
from penstock.async_sink._destinations.kinesis.rows import check_rows
from penstock.async_sink.errors import InvalidRecordError
from penstock.aws import AwsOptions, AwsSession, JsonClient


class KinesisEntryWriter(ColumnarWriter[Any, KinesisRequestEntry]):
    """What writers of Kinesis entries share, wherever the entries go."""

    partition_key: PartitionKey | None = None
    """Where the keys of record batches come from; None for their column `partitionKey`."""

    def _rows_leave_in_cbor(self) -> bool:
        """Whether rows are best written in CBOR as they come, because they leave so, and as they came."""
        return False

    def get_size_in_bytes(self, entry: KinesisRequestEntry) -> int:
        """Data and partition key, as the service counts a record.

        Raises:
            InvalidRecordError: a key breaks a rule of PutRecords.
        """
        check_entry(entry, self.records_written)
        try:
            return size_in_bytes(entry)
        except UnicodeEncodeError as error:
            what = (
                f"its partition key {entry.partition_key!r} cannot be encoded in UTF-8: it has half of a surrogate pair"
            )
            raise InvalidRecordError(self.records_written, what) from error

    def rows_of(self, batch: pa.RecordBatch) -> Iterator[Rows[KinesisRequestEntry]]:
        """The columns `data`, `partitionKey` and perhaps `explicitHashKey`. Entries are made slice by slice, as the
        buffer has room."""
        yield check_rows(
            batch,
            first_number=self.records_written,
            partition_key=self.partition_key,
            max_record_size_in_bytes=self.config.max_record_size_in_bytes,
            in_cbor=self._rows_leave_in_cbor(),
        )


class KinesisStreamsWriter(AwsSinkWriter[Any, KinesisRequestEntry], KinesisEntryWriter):
    """Sends entries by PutRecords. Made by `KinesisStreamsSink.create_writer`."""

    SERVICE = "kinesis"
    TARGET_PREFIX = "Kinesis_20131202"

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        config: AsyncSinkConfig | None = None,
        *,
        stream_name: str | None,
        stream_arn: str | None,
        wire_format: WireFormat | None = None,
        partition_key: PartitionKey | None = None,
        **arguments: Any,
    ) -> None:
        self.partition_key = partition_key
        self._put_records = PutRecords(stream_name=stream_name, stream_arn=stream_arn, wire_format=wire_format)
        super().__init__(aws, config, destination=stream_name or (stream_arn or "").rpartition("/")[2], **arguments)

    def _rows_leave_in_cbor(self) -> bool:
        """By the endpoint; runs of rows that have keys or lanes to wait for fall apart."""
        return (
            self._client is not None and self._put_records.is_in_cbor(self._client) and self._dispatcher.buffer.is_plain
        )

    async def send(
        self,
        client: JsonClient,
        entries: Sequence[KinesisRequestEntry],
        result_handler: ResultHandler[KinesisRequestEntry],
    ) -> tuple[Sequence[EntryFailure], Sequence[str | None]]:
        """Call PutRecords; shards are read when a record was refused, or the strategy goes by them already."""
        answer = await self._put_records.call(client, entries)
        failures = self._put_records.codec.failures(answer, len(entries))
        return failures, self._put_records.codec.shards(answer) if failures or result_handler.wants_lanes else ()
