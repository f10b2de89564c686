"""The sink for a queue, and its writer."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.entries import ElementConverter, EntryFailure
from penstock.async_sink._core.runs import Rows
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._core.terminal import TerminalRecordHandler
from penstock.async_sink._destinations.aws import AwsSink, AwsSinkWriter, ServiceLimits
from penstock.async_sink._destinations.columns import ColumnarWriter, first_row, read_column, sized_rows
from penstock.async_sink._destinations.sqs.entry import SqsRequestEntry, check_entry, size_in_bytes, to_wire
from penstock.async_sink._rate.defaults import StrategyFactory, slow_start_strategy
from penstock.async_sink.errors import InvalidRecordError, SinkOptionError
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient, classify_code

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes

BODY = "body"
_OPTIONAL_COLUMNS = {
    "messageGroupId": ("group_id", pa.string()),
    "messageDeduplicationId": ("deduplication_id", pa.string()),
    "delaySeconds": ("delay_seconds", pa.int32()),
}
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
    """The entries that were not accepted; those with a sender's fault are not worth another try.

    Raises:
        msgspec.MsgspecError: the answer is not of SendMessageBatch.
        ValueError: the answer does not speak of each entry once.
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


class SqsEntryWriter(ColumnarWriter[I, SqsRequestEntry]):
    """What writers of SQS entries share, wherever the entries go."""

    def get_size_in_bytes(self, entry: SqsRequestEntry) -> int:
        """Body and attributes, as the service counts them.

        Raises:
            InvalidRecordError: a field breaks a rule of SendMessageBatch.
        """
        check_entry(entry, self.records_written)
        return size_in_bytes(entry)

    def get_order_key(self, entry: SqsRequestEntry) -> Hashable:
        """The message group; messages without one have no order."""
        return entry.group_id

    def rows_of(self, batch: pa.RecordBatch) -> Iterator[Rows[SqsRequestEntry]]:
        """The columns `body` string, and where wanted `messageGroupId` and `messageDeduplicationId` (strings) and
        `delaySeconds` (integer)."""
        bodies = read_column(batch, BODY, pa.string())
        if bodies.null_count:
            raise InvalidRecordError(self.records_written + first_row(pc.is_null(bodies)), "its body is null")
        columns = {
            field: read_column(batch, name, kind).to_pylist()
            for name, (field, kind) in _OPTIONAL_COLUMNS.items()
            if name in batch.schema.names
        }

        def sized() -> Iterator[tuple[SqsRequestEntry, int]]:
            for row, body in enumerate(bodies.to_pylist()):
                entry = SqsRequestEntry(body, **{field: column[row] for field, column in columns.items()})
                check_entry(entry, self.records_written + row)
                yield entry, size_in_bytes(entry)

        yield sized_rows(sized(), self.records_written, self.config.max_record_size_in_bytes)


class SqsWriter(AwsSinkWriter[I, SqsRequestEntry], SqsEntryWriter[I]):
    """Sends entries by SendMessageBatch. Made by `SqsSink.create_writer`."""

    SERVICE = "sqs"
    TARGET_PREFIX = "AmazonSQS"
    JSON_10 = True
    KINDS_OF_CODES: ClassVar = dict.fromkeys(_THROTTLE_CODES, ErrorKind.THROTTLED)

    def __init__(self, aws: AwsOptions | AwsSession, *arguments: Any, queue_url: str, **keywords: Any) -> None:
        self._head = _encoder.encode({"QueueUrl": queue_url})[:-1] + b',"Entries":'
        super().__init__(aws, *arguments, **keywords)

    async def send(
        self, client: JsonClient, entries: Sequence[SqsRequestEntry], result_handler: ResultHandler[SqsRequestEntry]
    ) -> tuple[Sequence[EntryFailure], Sequence[str | None]]:
        """Call SendMessageBatch; an entry's id is its place."""
        wire = _encoder.encode([to_wire(entry, place) for place, entry in enumerate(entries)])
        answer = await client.call_raw("SendMessageBatch", b"".join((self._head, wire, b"}")))
        return failures_of(answer, len(entries)), ()


# What every queue takes; a queue may be set to take up to 1 MiB.
_DEFAULT_BYTES = 256_000
_LIMITS = ServiceLimits(
    max_batch_size=10,
    max_batch_size_in_bytes=MEBIBYTE,
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
        SinkOptionError: there is no URL, or a limit is above the service's.
    """

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        queue_url: str,
        *,
        converter: ElementConverter[I, SqsRequestEntry] | Callable[[I], SqsRequestEntry] | None = None,
        config: AsyncSinkConfig | None = None,
        strategy: StrategyFactory = slow_start_strategy,
        terminal: Callable[[], TerminalRecordHandler] | None = None,
    ) -> None:
        """Describe the queue.

        `strategy` makes the rate limiting strategy of each writer, `terminal` its handler for records that cannot be
        written; without it they end the writer.
        """
        if not queue_url:
            raise SinkOptionError("queue_url", "must not be empty")
        super().__init__(
            aws,
            SqsWriter,
            config=config or sqs_config(),
            strategy=strategy,
            converter=converter,
            terminal=terminal,
            queue_url=queue_url,
            destination=queue_url.rpartition("/")[2],
        )
        _LIMITS.check(self._config)
