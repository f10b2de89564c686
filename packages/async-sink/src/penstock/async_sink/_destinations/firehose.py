"""Amazon Data Firehose as a destination."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.entries import ElementConverter, EntryFailure, EntryListener
from penstock.async_sink._core.sink import AsyncSinkBase
from penstock.async_sink._core.state import BufferedRequestState
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._core.writer import AsyncSinkWriter
from penstock.async_sink._destinations.aws import AwsSinkWriter, check_service_limits
from penstock.async_sink._destinations.columns import binary_values, first_row, read_column
from penstock.async_sink._rate.defaults import aimd_strategy
from penstock.async_sink._rate.strategy import RateLimitingStrategy
from penstock.async_sink.errors import InvalidRecordError, RecordTooLargeError, SinkOptionError
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient, classify, classify_code, error_code

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


class FirehoseEntryCodec:
    """An `EntryCodec`."""

    name = "firehose"
    version = 1

    def encode(self, entry: FirehoseRequestEntry) -> bytes:
        """The entry's data."""
        return bytes(entry.data)

    def decode(self, raw: bytes, version: int) -> FirehoseRequestEntry:
        """The entry with this data."""
        return FirehoseRequestEntry(raw)

    def get_size_in_bytes(self, entry: FirehoseRequestEntry) -> int:
        """Bytes of data."""
        return len(entry.data)


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
