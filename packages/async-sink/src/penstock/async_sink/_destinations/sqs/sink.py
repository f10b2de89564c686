"""The sink for a queue."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

import msgspec

from penstock.async_sink._config import MEBIBYTE, AsyncSinkConfig
from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._destinations.aws import AwsDestination, AwsSink, ServiceApi, ServiceLimits, SinkOptions, named
from penstock.async_sink._destinations.sqs.entry import SqsEntries, SqsRequestEntry, to_wire
from penstock.aws import AwsOptions, AwsSession, ErrorKind, JsonClient, classify_code

I = TypeVar("I")  # noqa: E741  # FLIP-171's name for what the caller writes

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


class Queue(AwsDestination[SqsRequestEntry]):
    """A queue, written to by SendMessageBatch."""

    api = ServiceApi(
        service="sqs",
        target_prefix="AmazonSQS",
        json_version="1.0",
        kinds_of_codes=dict.fromkeys(_THROTTLE_CODES, ErrorKind.THROTTLED),
    )

    def __init__(self, aws: AwsOptions | AwsSession, url: str) -> None:
        super().__init__(aws, url.rpartition("/")[2], SqsEntries())
        self._head = _encoder.encode({"QueueUrl": url})[:-1] + b',"Entries":'

    async def send(
        self, client: JsonClient, entries: Sequence[SqsRequestEntry], result_handler: ResultHandler[SqsRequestEntry]
    ) -> None:
        """An entry's id is its place."""
        wire = _encoder.encode([to_wire(entry, place) for place, entry in enumerate(entries)])
        answer = await client.call_raw("SendMessageBatch", b"".join((self._head, wire, b"}")))
        result_handler.retry_failures(failures_of(answer, len(entries)))


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
        SinkOptionError: the URL is missing, or a limit is above the service's.
    """

    def __init__(
        self, aws: AwsOptions | AwsSession, queue_url: str, **options: Unpack[SinkOptions[I, SqsRequestEntry]]
    ) -> None:
        """Describe the queue; `options` are `converter`, `config`, `strategy` and `terminal`."""
        super().__init__(partial(Queue, aws, named("queue_url", queue_url)), _LIMITS, **options)
