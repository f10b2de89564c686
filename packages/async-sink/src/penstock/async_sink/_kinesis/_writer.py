"""The writer for a stream."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.async_sink._entries import EntryListener
from penstock.async_sink._kinesis._arrow import EntryBatch
from penstock.async_sink._kinesis._entry import KinesisRequestEntry, check_entry, size_in_bytes
from penstock.async_sink._kinesis._wire import PutRecordsCodec
from penstock.async_sink._result import ResultHandler, all_failed
from penstock.async_sink._writer import AsyncSinkWriter
from penstock.async_sink.errors import DestinationError
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient, classify, error_code


class KinesisEntryWriter(AsyncSinkWriter[KinesisRequestEntry, KinesisRequestEntry]):
    """What writers of Kinesis entries share, wherever the entries go."""

    def get_size_in_bytes(self, entry: KinesisRequestEntry) -> int:
        """Data and partition key, as the service counts a record.

        Raises:
            InvalidRecordError: a key breaks a rule of PutRecords.
        """
        check_entry(entry, self.records_written)
        return size_in_bytes(entry)

    async def write_many(
        self, elements: Iterable[KinesisRequestEntry] | pa.RecordBatch, *, listener: EntryListener | None = None
    ) -> None:
        """Write entries, or the rows of a record batch with `data`, `partitionKey` and perhaps `explicitHashKey`.

        A record batch is checked as a whole before any of it is written, and turned into entries slice by slice as
        the buffer has room.

        Raises:
            SinkOptionError: a column is missing or of a type that cannot be read.
            InvalidRecordError: a field breaks a rule of PutRecords.
            RecordTooLargeError: a record is larger than the limit.
            SinkError: the writer has failed.
        """
        if not isinstance(elements, pa.RecordBatch):
            await super().write_many(elements, listener=listener)
            return
        batch = EntryBatch(
            elements,
            first_number=self.records_written,
            max_record_size_in_bytes=self.config.max_record_size_in_bytes,
        )
        rows = self.config.max_batch_size
        for start, entries in batch.slices(rows):
            sizes = batch.sizes[start : start + rows]
            await self._write_entries(entries, sizes, listener=listener, first_index=start)


class KinesisStreamsWriter(KinesisEntryWriter):
    """Sends entries by PutRecords. Made by `KinesisStreamsSink.create_writer`."""

    def __init__(self, aws: AwsOptions, *, stream_name: str | None, stream_arn: str | None, **arguments: Any) -> None:
        self._aws = aws
        self._codec = PutRecordsCodec(stream_name=stream_name, stream_arn=stream_arn)
        self._client: JsonClient | None = None
        super().__init__(destination=stream_name or (stream_arn or "").rpartition("/")[2], **arguments)

    async def open_destination(self) -> None:
        """Open the connection pool."""
        # Making a session reads configuration files.
        session = await asyncio.to_thread(AwsSession, self._aws)
        self._client = JsonClient(session, connections=self.config.max_in_flight_requests)

    async def close_destination(self) -> None:
        """Close the connection pool."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def submit_request_entries(
        self,
        entries: Sequence[KinesisRequestEntry],
        result_handler: ResultHandler[KinesisRequestEntry],
    ) -> None:
        """Call PutRecords; what it did not accept is sent again.

        Raises:
            DestinationError: the service refused the request for good.
        """
        assert self._client is not None
        try:
            answer = await self._client.call_raw("PutRecords", self._codec.encode(entries))
            failures = self._codec.failures(answer, len(entries))
        except Exception as error:
            kind, code = classify(error), error_code(error) or type(error).__name__
            message = getattr(error, "message", None) or str(error)
            if kind is ErrorKind.FATAL:
                raise DestinationError(
                    self.destination,
                    code,
                    message,
                    entries=len(entries),
                    first_record_number=result_handler.first_record_number,
                ) from error
            throttled = kind is ErrorKind.THROTTLED
            failures = all_failed(len(entries), code=code, message=message, throttled=throttled)
        result_handler.retry_failures(failures)
