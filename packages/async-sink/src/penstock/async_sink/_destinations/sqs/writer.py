"""The sink for a queue, and its writer."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

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
from penstock.async_sink._destinations.columns import first_row, read_column
from penstock.async_sink._destinations.sqs.entry import SqsRequestEntry, check_entry, size_in_bytes, to_wire
from penstock.async_sink._rate.defaults import aimd_strategy
from penstock.async_sink._rate.strategy import RateLimitingStrategy
from penstock.async_sink.errors import InvalidRecordError, RecordTooLargeError, SinkOptionError
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient, classify, classify_code, error_code

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


class SqsEntryWriter(AsyncSinkWriter[I, SqsRequestEntry]):
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

    async def write_many(
        self, elements: Iterable[I] | pa.RecordBatch, *, listener: EntryListener | None = None
    ) -> None:
        """Write elements, or the rows of a record batch.

        Its columns: `body` string, and `messageGroupId`, `messageDeduplicationId` (strings), `delaySeconds` (integer)
        where wanted. A record batch is checked as a whole before any of it is written.

        Raises:
            SinkOptionError: there is no column `body`, or a column cannot be read.
            RecordError: a row breaks a rule of SendMessageBatch, or is larger than the limit.
            SinkError: the writer has failed.
        """
        if not isinstance(elements, pa.RecordBatch):
            await super().write_many(elements, listener=listener)
            return
        bodies = read_column(elements, BODY, pa.string())
        if bodies.null_count:
            raise InvalidRecordError(self.records_written + first_row(pc.is_null(bodies)), "its body is null")
        columns = {
            field: read_column(elements, name, kind).to_pylist()
            for name, (field, kind) in _OPTIONAL_COLUMNS.items()
            if name in elements.schema.names
        }
        entries, sizes = [], []
        limit = self.config.max_record_size_in_bytes
        for row, body in enumerate(bodies.to_pylist()):
            entry = SqsRequestEntry(body, **{field: column[row] for field, column in columns.items()})
            check_entry(entry, self.records_written + row)
            size = size_in_bytes(entry)
            if size > limit:
                raise RecordTooLargeError(self.records_written + row, size, limit)
            entries.append(entry)
            sizes.append(size)
        await self._write_entries(entries, sizes, listener=listener, first_index=0)


class SqsWriter(AwsSinkWriter[I, SqsRequestEntry], SqsEntryWriter[I]):
    """Sends entries by SendMessageBatch. Made by `SqsSink.create_writer`."""

    SERVICE = "sqs"
    TARGET_PREFIX = "AmazonSQS"
    JSON_10 = True

    def __init__(self, aws: AwsOptions | AwsSession, *arguments: Any, queue_url: str, **keywords: Any) -> None:
        self._head = _encoder.encode({"QueueUrl": queue_url})[:-1] + b',"Entries":'
        super().__init__(aws, *arguments, **keywords)

    def classify(self, error: BaseException) -> ErrorKind:
        """As elsewhere; a throttle of the queue's key is a throttle too."""
        return ErrorKind.THROTTLED if error_code(error) in _THROTTLE_CODES else classify(error)

    async def send(self, client: JsonClient, entries: Sequence[SqsRequestEntry]) -> list[EntryFailure]:
        """Call SendMessageBatch; an entry's id is its place."""
        wire = _encoder.encode([to_wire(entry, place) for place, entry in enumerate(entries)])
        answer = await client.call_raw("SendMessageBatch", b"".join((self._head, wire, b"}")))
        return failures_of(answer, len(entries))


_MAX_BATCH_SIZE = 10
# What every queue takes; a queue may be set to take up to 1 MiB.
_DEFAULT_BYTES = 256_000
_MAX_BATCH_SIZE_IN_BYTES = MEBIBYTE


def sqs_config(**options: Any) -> AsyncSinkConfig:
    """An `AsyncSinkConfig` with SQS's limits as its defaults: 10 messages, 256,000 bytes a request and a message.

    Raises:
        SinkOptionError: an option is wrong.
    """
    defaults = {
        "max_batch_size": _MAX_BATCH_SIZE,
        "max_buffered_requests": 5_000,
        "max_batch_size_in_bytes": _DEFAULT_BYTES,
        "max_record_size_in_bytes": _DEFAULT_BYTES,
    }
    return AsyncSinkConfig(**{**defaults, **options})


def sqs_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """AIMD +10, x0.5, after a slow start."""
    return aimd_strategy(config, increase_rate=10, decrease_factor=0.5, slow_start=True)


class SqsSink(AsyncSinkBase[I, SqsRequestEntry], Generic[I]):
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
        strategy: Callable[[AsyncSinkConfig], RateLimitingStrategy] = sqs_strategy,
        terminal: Callable[[], TerminalRecordHandler] | None = None,
    ) -> None:
        """Describe the queue.

        `strategy` makes the rate limiting strategy of each writer, `terminal` its handler for records that cannot be
        written; without it they end the writer.
        """
        if not queue_url:
            raise SinkOptionError("queue_url", "must not be empty")
        self._aws = aws
        self._queue_url = queue_url
        self._converter = converter
        self._config = config or sqs_config()
        self._strategy = strategy
        self._terminal = terminal
        check_service_limits(
            self._config, max_batch_size=_MAX_BATCH_SIZE, max_batch_size_in_bytes=_MAX_BATCH_SIZE_IN_BYTES
        )

    def create_writer(self) -> SqsWriter[I]:
        """A writer with an empty buffer, an own connection pool and an own rate limit."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[SqsRequestEntry]]) -> SqsWriter[I]:
        """A writer that begins with what others left behind."""
        return SqsWriter(
            self._aws,
            self._config,
            queue_url=self._queue_url,
            destination=self._queue_url.rpartition("/")[2],
            converter=self._converter,
            strategy=self._strategy(self._config),
            initial_states=states,
            terminal=None if self._terminal is None else self._terminal(),
        )
