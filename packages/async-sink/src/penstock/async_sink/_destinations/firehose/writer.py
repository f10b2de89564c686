"""The writer for a delivery stream."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._core.entries import EntryFailure, EntryListener
from penstock.async_sink._core.writer import AsyncSinkWriter
from penstock.async_sink._destinations.aws import AwsSinkWriter
from penstock.async_sink._destinations.columns import binary_values, first_row, read_column
from penstock.async_sink.errors import InvalidRecordError, RecordTooLargeError
from penstock.aws import ErrorKind, JsonClient, classify, classify_code, error_code

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes

DATA = "data"
# The service has no other code for "too much": PutRecordBatch documents it as throttling.
_THROTTLE_CODE = "ServiceUnavailableException"


class FirehoseRequestEntry(msgspec.Struct, frozen=True, rename={"data": "Data"}):
    """A record of PutRecordBatch."""

    data: bytes
    """The record's bytes. Delivered records follow each other without a separator: bring your own."""


class _Response(msgspec.Struct):
    error_code: str | None = msgspec.field(name="ErrorCode", default=None)
    error_message: str | None = msgspec.field(name="ErrorMessage", default=None)


class _Count(msgspec.Struct):
    failed_put_count: int = msgspec.field(name="FailedPutCount", default=0)


class _Responses(msgspec.Struct):
    responses: list[_Response] = msgspec.field(name="RequestResponses")


_encoder = msgspec.json.Encoder()
_count_decoder = msgspec.json.Decoder(_Count)
_responses_decoder = msgspec.json.Decoder(_Responses)


def _kind_of_code(code: str, status: int = 0) -> ErrorKind:
    return ErrorKind.THROTTLED if code == _THROTTLE_CODE else classify_code(code, status)


class FirehoseEntryWriter(AsyncSinkWriter[I, FirehoseRequestEntry]):
    """What writers of Firehose entries share, wherever the entries go."""

    def get_size_in_bytes(self, entry: FirehoseRequestEntry) -> int:
        """The data, before base64, as the service counts it.

        Raises:
            InvalidRecordError: the data is empty, which the service does not take, or no bytes.
        """
        if not isinstance(entry, FirehoseRequestEntry):
            what = f"{type(entry).__name__} is no FirehoseRequestEntry: give the sink a converter that makes one"
            raise InvalidRecordError(self.records_written, what)
        # Text would go on the wire as if it were base64, and arrive as other bytes.
        if not isinstance(entry.data, bytes | bytearray):
            what = f"its data is {type(entry.data).__name__}, not bytes: encode it"
            raise InvalidRecordError(self.records_written, what)
        if not entry.data:
            raise InvalidRecordError(self.records_written, "its data is empty")
        return len(entry.data)

    def get_order_key(self, entry: FirehoseRequestEntry) -> Hashable:
        """None: records of a delivery stream have no key."""
        return None

    async def write_many(
        self, elements: Iterable[I] | pa.RecordBatch, *, listener: EntryListener | None = None
    ) -> None:
        """Write elements, or the rows of a record batch with a column `data` of binaries or strings.

        A record batch is checked as a whole before any of it is written.

        Raises:
            SinkOptionError: there is no column `data`, or it cannot be read as binary.
            RecordError: a row is null, empty or larger than the limit.
            SinkError: the writer has failed.
        """
        if not isinstance(elements, pa.RecordBatch):
            await super().write_many(elements, listener=listener)
            return
        data = read_column(elements, DATA, pa.binary())
        if len(data) == 0:
            return
        if data.null_count:
            raise InvalidRecordError(self.records_written + first_row(pc.is_null(data)), "its data is null")
        lengths = pc.binary_length(data)
        bounds = cast("Any", pc.min_max(lengths)).as_py()
        if bounds["min"] == 0:
            raise InvalidRecordError(self.records_written + first_row(pc.equal(lengths, 0)), "its data is empty")
        limit = self.config.max_record_size_in_bytes
        if bounds["max"] > limit:
            row = first_row(pc.greater(lengths, limit))
            raise RecordTooLargeError(self.records_written + row, lengths[row].as_py(), limit)
        rows, sizes = self.config.max_batch_size, lengths.to_pylist()
        for start in range(0, len(data), rows):
            entries = list(map(FirehoseRequestEntry, binary_values(data, start, min(start + rows, len(data)))))
            await self._write_entries(entries, sizes[start : start + rows], listener=listener, first_index=start)


class FirehoseWriter(AwsSinkWriter[I, FirehoseRequestEntry], FirehoseEntryWriter[I]):
    """Sends entries by PutRecordBatch. Made by `FirehoseSink.create_writer`."""

    SERVICE = "firehose"
    TARGET_PREFIX = "Firehose_20150804"

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._head = _encoder.encode({"DeliveryStreamName": self.destination})[:-1] + b',"Records":'

    def classify(self, error: BaseException) -> ErrorKind:
        """As elsewhere, but ServiceUnavailableException is Firehose's throttle."""
        return ErrorKind.THROTTLED if error_code(error) == _THROTTLE_CODE else classify(error)

    async def send(self, client: JsonClient, entries: Sequence[FirehoseRequestEntry]) -> list[EntryFailure]:
        """Call PutRecordBatch; the answer is in the order of the request."""
        answer = await client.call_raw("PutRecordBatch", b"".join((self._head, _encoder.encode(entries), b"}")))
        if _count_decoder.decode(answer).failed_put_count == 0:
            return []
        responses = _responses_decoder.decode(answer).responses
        if len(responses) != len(entries):
            raise ValueError(f"PutRecordBatch of {len(entries)} records was answered for {len(responses)}")
        return [
            EntryFailure(
                index,
                response.error_code,
                response.error_message or "",
                _kind_of_code(response.error_code) is ErrorKind.THROTTLED,
            )
            for index, response in enumerate(responses)
            if response.error_code
        ]
