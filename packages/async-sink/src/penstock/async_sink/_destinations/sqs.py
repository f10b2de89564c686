"""The sink for a queue, and its messages: fields, attributes, and bytes in a saved state."""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import pyarrow as pa

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.runs import Rows
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._destinations.aws import AwsDestination, AwsSink, ServiceApi, ServiceLimits, SinkOptions, named
from penstock.async_sink._destinations.columns import RowEntries, RowFault, read_column, texts
from penstock.async_sink._destinations.writer import RowContext
from penstock.async_sink.errors import RecordError
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient, classify_code

AttributeValue = str | int | float | Decimal | bytes
"""A string, a number, or a binary."""

_MAX_ATTRIBUTES = 10
_NAME = re.compile(r"(?!(?i:aws|amazon)\.)(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
# The characters that SendMessage does not take, by its reference.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def wire_attribute(value: AttributeValue) -> dict[str, Any]:
    """The value in the form of the API; numbers are exact."""
    if isinstance(value, str):
        return {"DataType": "String", "StringValue": value}
    if isinstance(value, bytes):
        return {"DataType": "Binary", "BinaryValue": value}
    return {"DataType": "Number", "StringValue": str(value)}


def number_of(text: str) -> int | float | Decimal:
    """The number with all of its digits, as a float if `wire_attribute` makes the same text of that.

    Raises:
        ValueError: it cannot be read as a number.
    """
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"invalid number {text!r}") from None
    if not exact.is_finite():
        raise ValueError(f"invalid number {text!r}: it must be finite")
    number = float(exact)
    return number if str(number) == text else exact


def attribute_size_in_bytes(name: str, value: AttributeValue) -> int:
    """Bytes as the service counts them: name, type and value."""
    wire = wire_attribute(value)
    content = value if isinstance(value, bytes) else wire["StringValue"].encode()
    return len(name.encode()) + len(wire["DataType"]) + len(content)


def _fault(name: Any, value: Any) -> str | None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        return "has a name that is not of 1 to 256 letters, digits, _, - and single dots, or begins with AWS."
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal | bytes):
        return f"is {type(value).__name__}, not a string, a number or bytes"
    if isinstance(value, str) and (found := _FORBIDDEN.search(value)) is not None:
        return f"holds {found[0]!r}, which an attribute cannot have"
    if isinstance(value, str | bytes):
        return None if value else "is empty"
    return None if Decimal(value).is_finite() else "is not finite"


def check_attributes(attributes: Mapping[str, AttributeValue], record_number: int) -> None:
    """Check what the service would refuse.

    Raises:
        RecordError: there are too many, or one breaks a rule.
    """
    if len(attributes) > _MAX_ATTRIBUTES:
        raise RecordError(record_number, f"it has {len(attributes)} attributes, more than {_MAX_ATTRIBUTES}")
    for name, value in attributes.items():
        fault = _fault(name, value)
        if fault is not None:
            raise RecordError(record_number, f"its attribute {name!r} {fault}")


MAX_DELAY_SECONDS = 900
_ID = re.compile("[!-~]{1,128}")


class SqsRequestEntry(msgspec.Struct, frozen=True):
    """A message of SendMessageBatch."""

    body: str
    """The message's text: 1 character at least."""
    group_id: str | None = None
    """Message group: messages of a group keep their order in a FIFO queue."""
    deduplication_id: str | None = None
    """By which a FIFO queue drops repeats for five minutes: with it, a message that is sent again is there once."""
    delay_seconds: int | None = None
    """Seconds, up to 900, before the message can be received; None for the queue's own delay."""
    attributes: Mapping[str, AttributeValue] = {}
    """Message attributes: strings, numbers (exact) or binaries, 10 at most."""


def to_wire(entry: SqsRequestEntry, place: int) -> dict[str, Any]:
    """The entry in the form of the API; its id is its place in the request."""
    wire: dict[str, Any] = {"Id": str(place), "MessageBody": entry.body}
    if entry.delay_seconds is not None:
        wire["DelaySeconds"] = entry.delay_seconds
    if entry.group_id is not None:
        wire["MessageGroupId"] = entry.group_id
    if entry.deduplication_id is not None:
        wire["MessageDeduplicationId"] = entry.deduplication_id
    if entry.attributes:
        wire["MessageAttributes"] = {name: wire_attribute(value) for name, value in entry.attributes.items()}
    return wire


def size_in_bytes(entry: SqsRequestEntry) -> int:
    """Bytes as the service counts them: the body, and the attributes' names, types and values."""
    size = len(entry.body) if entry.body.isascii() else len(entry.body.encode())
    return size + sum(attribute_size_in_bytes(name, value) for name, value in entry.attributes.items())


def measure(entry: SqsRequestEntry, record_number: int) -> int:
    """Check the rules of the service, and return the bytes as it counts them.

    Raises:
        RecordError: a field breaks a rule of SendMessageBatch.
    """
    if not isinstance(entry, SqsRequestEntry):
        what = f"expected an SqsRequestEntry, got {type(entry).__name__}: give the sink a converter"
        raise RecordError(record_number, what)
    if entry.body is None:
        raise RecordError(record_number, "its body is null")
    if not isinstance(entry.body, str):
        what = f"its body is {type(entry.body).__name__}, not str: a message is text, and bytes go into it as base64"
        raise RecordError(record_number, what)
    if not entry.body:
        raise RecordError(record_number, "its body is empty")
    found = _FORBIDDEN.search(entry.body)
    if found is not None:
        raise RecordError(record_number, f"its body holds {found[0]!r}, which a message cannot have")
    delay = entry.delay_seconds
    if delay is not None and not (isinstance(delay, int) and 0 <= delay <= MAX_DELAY_SECONDS):
        raise RecordError(record_number, f"its delay is {delay!r} s, not 0 to {MAX_DELAY_SECONDS}")
    for name, value in (("message group", entry.group_id), ("deduplication id", entry.deduplication_id)):
        if value is not None and not (isinstance(value, str) and _ID.fullmatch(value)):
            rule = "must be 1 to 128 letters, digits and punctuation marks of ASCII"
            raise RecordError(record_number, f"its {name} {rule}, not {value!r}")
    if entry.attributes:
        check_attributes(entry.attributes, record_number)
    return size_in_bytes(entry)


_state_encoder = msgspec.msgpack.Encoder()
# A binary is itself; a number is the digits that it has on the wire.
_state_decoder = msgspec.msgpack.Decoder(
    tuple[str, str | None, str | None, int | None, dict[str, tuple[str, Any]]],
)


def _attribute(kind: str, value: Any) -> AttributeValue:
    match kind, value:
        case "String", str():
            return value
        case "Number", str():
            return number_of(value)
        case "Binary", bytes():
            return value
        case _:
            raise ValueError(f"an attribute of type {kind!r} has a value of type {type(value).__name__}")


_COLUMNS = {
    "body": ("body", pa.string()),
    "messageGroupId": ("group_id", pa.string()),
    "messageDeduplicationId": ("deduplication_id", pa.string()),
    "delaySeconds": ("delay_seconds", pa.int32()),
}


class SqsEntries:
    """The entries of SendMessageBatch; an `EntryKind`."""

    name = "sqs"
    version = 1

    def __init__(self, *, is_fifo: bool | None = None) -> None:
        """`is_fifo` is the kind of queue; None if it is not known."""
        self._is_fifo = is_fifo

    get_size_in_bytes = staticmethod(size_in_bytes)

    def measure(self, entry: SqsRequestEntry, record_number: int) -> int:
        """Check the rules of SendMessageBatch and of the kind of queue."""
        size = measure(entry, record_number)
        if self._is_fifo:
            if entry.group_id is None:
                raise RecordError(record_number, "it has no message group, which a FIFO queue needs")
            if entry.delay_seconds:
                raise RecordError(record_number, "it has a delay, which a FIFO queue takes for all messages alone")
        elif self._is_fifo is False and entry.deduplication_id is not None:
            raise RecordError(record_number, "it has a deduplication id, which only a FIFO queue takes")
        return size

    def order_key(self, entry: SqsRequestEntry) -> Hashable:
        """The message group; messages without one have no order."""
        return entry.group_id

    def rows_of(self, batch: pa.RecordBatch, context: RowContext) -> Iterator[Rows[SqsRequestEntry]]:
        """The columns `body` string, and where wanted `messageGroupId` and `messageDeduplicationId` (strings) and
        `delaySeconds` (integer)."""
        yield self._entries(batch, context.config.max_record_size_in_bytes).rows(context.first_number)

    def row_faults(self, batch: pa.RecordBatch, max_record_size_in_bytes: int) -> Iterator[RowFault]:
        """The rules that a record batch breaks, each with the rows that break it.

        Raises:
            SinkOptionError: a column is missing, or of a type that cannot be read.
        """
        return self._entries(batch, max_record_size_in_bytes).faults()

    def _entries(self, batch: pa.RecordBatch, limit: int) -> RowEntries[SqsRequestEntry]:
        columns = {
            field: texts(read_column(batch, name, kind))
            for name, (field, kind) in _COLUMNS.items()
            if name in batch.schema.names or name == "body"
        }

        def make(row: int) -> SqsRequestEntry:
            values: Any = {field: column[row] for field, column in columns.items()}
            return SqsRequestEntry(**values)

        return RowEntries(make, batch.num_rows, self.measure, limit)

    def encode(self, entry: SqsRequestEntry) -> bytes:
        """The entry as bytes."""
        attributes = {}
        for name, value in entry.attributes.items():
            wire = wire_attribute(value)
            attributes[name] = (wire["DataType"], value if isinstance(value, bytes) else wire["StringValue"])
        return _state_encoder.encode(
            (entry.body, entry.group_id, entry.deduplication_id, entry.delay_seconds, attributes),
        )

    def decode(self, raw: bytes, version: int) -> SqsRequestEntry:
        """The entry of these bytes.

        Raises:
            ValueError: they hold no message.
        """
        body, group_id, deduplication_id, delay_seconds, attributes = _state_decoder.decode(raw)
        values = {name: _attribute(kind, value) for name, (kind, value) in attributes.items()}
        return SqsRequestEntry(body, group_id, deduplication_id, delay_seconds, values)


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Without a converter, elements are entries.
    I = TypeVar("I", default="SqsRequestEntry")  # noqa: E741  # FLIP-171's name for what the caller writes
else:
    from typing import TypeVar

    I = TypeVar("I")  # noqa: E741

_THROTTLE_CODES = frozenset({"KmsThrottled", "KMS.ThrottlingException"})


class _Failed(msgspec.Struct):
    id: str = msgspec.field(name="Id")
    sender_fault: bool = msgspec.field(name="SenderFault", default=False)
    code: str = msgspec.field(name="Code", default="")
    message: str | None = msgspec.field(name="Message", default=None)


class _Successful(msgspec.Struct):
    id: str = msgspec.field(name="Id")


class _Answer(msgspec.Struct):
    successful: list[_Successful] | None = msgspec.field(name="Successful", default=None)
    failed: list[_Failed] | None = msgspec.field(name="Failed", default=None)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Answer)


def failures_of(answer: bytes, entry_count: int) -> list[EntryFailure]:
    """The entries that were not accepted. Entries with a sender's fault are not retried.

    Raises:
        msgspec.MsgspecError: the answer is not of SendMessageBatch.
        ValueError: the answer does not have each entry exactly once.
    """
    answered = _decoder.decode(answer)
    successful, failed = answered.successful or [], answered.failed or []
    ids = sorted([int(each.id) for each in successful] + [int(each.id) for each in failed])
    if ids != list(range(entry_count)):
        raise ValueError(f"SendMessageBatch of {entry_count} messages was answered for {len(ids)}")
    failures = []
    for each in failed:
        throttled = each.code in _THROTTLE_CODES or classify_code(each.code) is ErrorKind.THROTTLED
        final = each.sender_fault and not throttled
        failures.append(EntryFailure(int(each.id), each.code, each.message or "", throttled, final=final))
    return sorted(failures, key=lambda failure: failure.index)


class Queue(AwsDestination[SqsRequestEntry]):
    """A queue, written to by SendMessageBatch."""

    api = ServiceApi(
        service="sqs",
        target_prefix="AmazonSQS",
        json_version="1.0",
        kinds_of_codes=dict.fromkeys(_THROTTLE_CODES, ErrorKind.THROTTLED),
    )

    def __init__(self, aws: AwsOptions | AwsSession, url: str) -> None:
        super().__init__(aws, url.rpartition("/")[2], SqsEntries(is_fifo=url.endswith(".fifo")))
        self._head = _encoder.encode({"QueueUrl": url})[:-1] + b',"Entries":'

    async def send(
        self, client: JsonClient, entries: Sequence[SqsRequestEntry], result_handler: ResultHandler[SqsRequestEntry]
    ) -> None:
        """An entry's id is its place."""
        wire = _encoder.encode([to_wire(entry, place) for place, entry in enumerate(entries)])
        answer = await client.submit("SendMessageBatch", b"".join((self._head, wire, b"}")))
        result_handler.retry_failures(failures_of(answer, len(entries)))


# What every queue takes; a queue may be set to take up to 1 MiB.
_DEFAULT_BYTES = 256_000
_LIMITS = ServiceLimits(
    max_batch_size=10,
    max_batch_size_in_bytes=MEBIBYTE,
    max_record_size_in_bytes=MEBIBYTE,
    defaults={
        "max_buffered_requests": 5_000,
        "max_batch_size_in_bytes": _DEFAULT_BYTES,
        "max_record_size_in_bytes": _DEFAULT_BYTES,
    },
)


def sqs_config(**options: Any) -> AsyncSinkConfig:
    """An `AsyncSinkConfig` with SQS's limits as its defaults: 10 messages, 256,000 bytes a request and a message.

    Raises:
        SinkOptionError: an option is wrong.
    """
    return _LIMITS.config(options)


class SqsSink(AwsSink[I, SqsRequestEntry]):
    """Writes to a queue by SendMessageBatch, at least once.

    Without a converter, elements are `SqsRequestEntry`s. Can be pickled if the converter can.

    Raises:
        SinkOptionError: the URL is missing, or a limit is above the service's.
    """

    def __init__(
        self, aws: AwsOptions | AwsSession, queue_url: str, **options: Unpack[SinkOptions[I, SqsRequestEntry]]
    ) -> None:
        """Describe the queue; `options` are `converter`, `config`, `strategy` and `terminal`."""
        super().__init__(aws, partial(Queue, url=named("queue_url", queue_url)), _LIMITS, **options)
