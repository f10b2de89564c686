"""Amazon Data Firehose as a destination."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.entries import ElementConverter, EntryFailure
from penstock.async_sink._core.runs import EntryRows, Rows
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._destinations.aws import AwsSink, AwsSinkWriter, RecordResult, ServiceLimits, failures_by_place
from penstock.async_sink._destinations.columns import ColumnarWriter, binary_values, first_row, read_column
from penstock.async_sink._rate.defaults import StrategyFactory, slow_start_strategy
from penstock.async_sink.errors import InvalidRecordError, RecordTooLargeError, SinkOptionError
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes

DATA = "data"
# The service has no other code for "too much": PutRecordBatch documents it as throttling.
_THROTTLE_CODE = "ServiceUnavailableException"


class FirehoseRequestEntry(msgspec.Struct, frozen=True, rename={"data": "Data"}):
    """A record of PutRecordBatch."""

    data: bytes
    """The record's bytes. Delivered records follow each other without a separator: bring your own."""


class _Count(msgspec.Struct):
    failed_put_count: int = msgspec.field(name="FailedPutCount", default=0)


class _Responses(msgspec.Struct):
    responses: list[RecordResult] = msgspec.field(name="RequestResponses")


_encoder = msgspec.json.Encoder()
_count_decoder = msgspec.json.Decoder(_Count)
_responses_decoder = msgspec.json.Decoder(_Responses)


class FirehoseEntryWriter(ColumnarWriter[I, FirehoseRequestEntry]):
    """What writers of Firehose entries share, wherever the entries go."""

    def get_size_in_bytes(self, entry: FirehoseRequestEntry) -> int:
        """The data, before base64, as the service counts it.

        Raises:
            InvalidRecordError: the data is empty, which the service does not take, or no bytes.
        """
        if not isinstance(entry, FirehoseRequestEntry):
            what = f"expected a FirehoseRequestEntry, got {type(entry).__name__}: give the sink a converter"
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

    def rows_of(self, batch: pa.RecordBatch) -> Iterator[Rows[FirehoseRequestEntry]]:
        """The column `data`, of binaries or strings."""
        data = read_column(batch, DATA, pa.binary())
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
            yield EntryRows.of(entries, sizes[start : start + rows])


class FirehoseWriter(AwsSinkWriter[I, FirehoseRequestEntry], FirehoseEntryWriter[I]):
    """Sends entries by PutRecordBatch. Made by `FirehoseSink.create_writer`."""

    SERVICE = "firehose"
    TARGET_PREFIX = "Firehose_20150804"
    KINDS_OF_CODES: ClassVar = {_THROTTLE_CODE: ErrorKind.THROTTLED}

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._head = _encoder.encode({"DeliveryStreamName": self.destination})[:-1] + b',"Records":'

    async def send(
        self,
        client: JsonClient,
        entries: Sequence[FirehoseRequestEntry],
        result_handler: ResultHandler[FirehoseRequestEntry],
    ) -> tuple[Sequence[EntryFailure], Sequence[str | None]]:
        """Call PutRecordBatch; the answer is in the order of the request."""
        answer = await client.call_raw("PutRecordBatch", b"".join((self._head, _encoder.encode(entries), b"}")))
        if _count_decoder.decode(answer).failed_put_count == 0:
            return (), ()
        responses = _responses_decoder.decode(answer).responses
        return failures_by_place("PutRecordBatch", responses, len(entries), throttle_codes=(_THROTTLE_CODE,)), ()


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


_LIMITS = ServiceLimits(
    max_batch_size=500,
    max_batch_size_in_bytes=4 * MEBIBYTE,
    defaults={"max_record_size_in_bytes": 1000 * 1024},
)


def firehose_config(**options: Any) -> AsyncSinkConfig:
    """An `AsyncSinkConfig` with Firehose's limits as its defaults: 500 records, 4 MiB, 1,024,000 bytes a record.

    Raises:
        SinkOptionError: an option is wrong.
    """
    return _LIMITS.config(options)


class FirehoseSink(AwsSink[I, FirehoseRequestEntry]):
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
        strategy: StrategyFactory = slow_start_strategy,
        terminal: Callable[[], TerminalRecordHandler] | None = None,
    ) -> None:
        """Describe the delivery stream.

        `strategy` makes the rate limiting strategy of each writer, `terminal` its handler for records that cannot be
        written; without it they end the writer.
        """
        if not delivery_stream_name:
            raise SinkOptionError("delivery_stream_name", "must not be empty")
        super().__init__(
            aws,
            FirehoseWriter,
            config=config or firehose_config(),
            strategy=strategy,
            converter=converter,
            terminal=terminal,
            destination=delivery_stream_name,
        )
        _LIMITS.check(self._config)
