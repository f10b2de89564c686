"""Amazon Data Firehose as a destination."""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import pyarrow as pa

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.runs import EntryRows, Rows
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._destinations.aws import (
    AwsDestination,
    AwsSink,
    RecordResult,
    ServiceApi,
    ServiceLimits,
    SinkOptions,
    failures_by_place,
    is_success,
    named,
)
from penstock.async_sink._destinations.columns import (
    RowFault,
    binary_values,
    compute,
    null_faults,
    read_column,
    refuse,
    size_faults,
)
from penstock.async_sink._destinations.writer import RowContext
from penstock.async_sink.errors import RecordError
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Without a converter, elements are entries.
    I = TypeVar("I", default="FirehoseRequestEntry")  # noqa: E741  # FLIP-171's name for what the caller writes
else:
    from typing import TypeVar

    I = TypeVar("I")  # noqa: E741

DATA = "data"
# The service has no other code for "too much": PutRecordBatch documents it as throttling.
_THROTTLE_CODE = "ServiceUnavailableException"
_EMPTY = "its data is empty, which Firehose does not take"


class FirehoseRequestEntry(msgspec.Struct, frozen=True, rename={"data": "Data"}):
    """A record of PutRecordBatch."""

    data: bytes | bytearray
    """The record's bytes. Firehose adds no separator between records; add your own."""


class _Responses(msgspec.Struct):
    responses: list[RecordResult] = msgspec.field(name="RequestResponses")
    failed_put_count: int | None = msgspec.field(name="FailedPutCount", default=None)


_encoder = msgspec.json.Encoder()
_responses_decoder = msgspec.json.Decoder(_Responses)


class FirehoseEntries:
    """The entries of PutRecordBatch; an `EntryKind`."""

    name = "firehose"
    version = 1

    def measure(self, entry: FirehoseRequestEntry, record_number: int) -> int:
        """Check that the data is non-empty bytes; they count before base64."""
        if not isinstance(entry, FirehoseRequestEntry):
            what = f"expected a FirehoseRequestEntry, got {type(entry).__name__}: give the sink a converter"
            raise RecordError(record_number, what)
        # Text would be sent as if it were base64, and arrive as other bytes.
        if not isinstance(entry.data, bytes | bytearray):
            raise RecordError(record_number, f"its data is {type(entry.data).__name__}, not bytes: encode it")
        if not entry.data:
            raise RecordError(record_number, _EMPTY)
        return len(entry.data)

    def get_size_in_bytes(self, entry: FirehoseRequestEntry) -> int:
        """The data."""
        return len(entry.data)

    def order_key(self, entry: FirehoseRequestEntry) -> Hashable:
        """None: records of a delivery stream have no key."""
        return None

    def rows_of(self, batch: pa.RecordBatch, context: RowContext) -> Iterator[Rows[FirehoseRequestEntry]]:
        """The column `data`, of binaries or strings."""
        data, config = read_column(batch, DATA, pa.binary()), context.config
        refuse(_faults(data, config.max_record_size_in_bytes), context.first_number, config.max_record_size_in_bytes)
        rows, sizes = config.max_batch_size, compute.binary_length(data).to_pylist()
        for start in range(0, len(data), rows):
            entries = list(map(FirehoseRequestEntry, binary_values(data, start, min(start + rows, len(data)))))
            yield EntryRows.of(entries, sizes[start : start + rows])

    def encode(self, entry: FirehoseRequestEntry) -> bytes:
        """The entry's data."""
        return bytes(entry.data)

    def decode(self, raw: bytes, version: int) -> FirehoseRequestEntry:
        """The entry with this data."""
        return FirehoseRequestEntry(raw)


def _faults(data: Any, max_record_size_in_bytes: int) -> Iterator[RowFault]:
    yield from null_faults(data, "its data")
    lengths = compute.binary_length(data)
    if compute.min(lengths).as_py() == 0:
        yield RowFault(compute.equal(lengths, 0), _EMPTY)
    yield from size_faults(lengths, max_record_size_in_bytes)


class DeliveryStream(AwsDestination[FirehoseRequestEntry]):
    """A delivery stream, written to by PutRecordBatch."""

    api = ServiceApi(
        service="firehose",
        target_prefix="Firehose_20150804",
        kinds_of_codes={_THROTTLE_CODE: ErrorKind.THROTTLED},
    )

    def __init__(self, aws: AwsOptions | AwsSession, name: str) -> None:
        super().__init__(aws, name, FirehoseEntries())
        self._head = _encoder.encode({"DeliveryStreamName": name})[:-1] + b',"Records":'

    async def send(
        self,
        client: JsonClient,
        entries: Sequence[FirehoseRequestEntry],
        result_handler: ResultHandler[FirehoseRequestEntry],
    ) -> None:
        """The answer is in the order of the request."""
        answer = await client.submit("PutRecordBatch", b"".join((self._head, _encoder.encode(entries), b"}")))
        if is_success(answer, b'"FailedPutCount"', b'"RecordId"', len(entries)):
            result_handler.complete()
            return
        read = _responses_decoder.decode(answer)
        failures = failures_by_place(
            "PutRecordBatch",
            read.responses,
            len(entries),
            failed_count=read.failed_put_count,
            throttle_codes=(_THROTTLE_CODE,),
        )
        result_handler.retry_failures(failures)


_MAX_RECORD_BYTES = 1000 * 1024
_LIMITS = ServiceLimits(
    max_batch_size=500,
    max_batch_size_in_bytes=4 * MEBIBYTE,
    max_record_size_in_bytes=_MAX_RECORD_BYTES,
    defaults={"max_record_size_in_bytes": _MAX_RECORD_BYTES},
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
        SinkOptionError: the name is missing, or a limit is above the service's.
    """

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        delivery_stream_name: str,
        **options: Unpack[SinkOptions[I, FirehoseRequestEntry]],
    ) -> None:
        """Describe the delivery stream; `options` are `converter`, `config`, `strategy` and `terminal`."""
        name = named("delivery_stream_name", delivery_stream_name)
        super().__init__(aws, partial(DeliveryStream, name=name), _LIMITS, **options)

    @staticmethod
    def row_faults(batch: pa.RecordBatch, max_record_size_in_bytes: int) -> Iterator[RowFault]:
        """The rules of PutRecordBatch that a record batch breaks, each with the rows that break it.

        Raises:
            SinkOptionError: the column `data` is missing or of a type that cannot be read.
        """
        return _faults(read_column(batch, DATA, pa.binary()), max_record_size_in_bytes)
