"""Kinds of destinations, and how the contract says their entries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.async_sink._dynamodb._entry import DynamoDbRequestEntry
from penstock.async_sink._dynamodb._entry import size_in_bytes as dynamodb_size
from penstock.async_sink._firehose._writer import FirehoseRequestEntry
from penstock.async_sink._kinesis import _entry as kinesis
from penstock.async_sink._sqs import _entry as sqs
from penstock.async_sink.errors import InvalidRecordError
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

KINESIS: Final = "kinesis"
FIREHOSE: Final = "firehose"
DYNAMODB: Final = "dynamodb"
SQS: Final = "sqs"

_items = msgspec.json.Decoder(dict[str, dict[str, Any]])
_json = msgspec.json.Encoder()


@dataclass(frozen=True)
class DestinationKind:
    """One kind: its entries to the contract's and back."""

    name: str
    to_message: Callable[[Any], pb.Entry]
    """An entry for the gateway."""
    from_message: Callable[[pb.Entry, int], Any]
    """An entry from a client, checked; the number is for the error.

    Raises:
        RecordError: it breaks a rule of the destination.
    """
    size_in_bytes: Callable[[Any], int]
    """Bytes, by the destination's measure."""


def _kinesis_to(entry: kinesis.KinesisRequestEntry) -> pb.Entry:
    hash_key = entry.explicit_hash_key or ""
    return pb.Entry(data=entry.data, partition_key=entry.partition_key, explicit_hash_key=hash_key)


def _kinesis_from(sent: pb.Entry, number: int) -> kinesis.KinesisRequestEntry:
    entry = kinesis.KinesisRequestEntry(sent.data, sent.partition_key, sent.explicit_hash_key or None)
    kinesis.check_entry(entry, number)
    return entry


def _firehose_from(sent: pb.Entry, number: int) -> FirehoseRequestEntry:
    if not sent.data:
        raise InvalidRecordError(number, "its data is empty")
    return FirehoseRequestEntry(sent.data)


def _sqs_to(entry: sqs.SqsRequestEntry) -> pb.Entry:
    return pb.Entry(
        data=entry.body.encode(),
        message_group_id=entry.group_id or "",
        deduplication_id=entry.deduplication_id or "",
        delay_seconds=entry.delay_seconds,
    )


def _sqs_from(sent: pb.Entry, number: int) -> sqs.SqsRequestEntry:
    try:
        body = sent.data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecordError(number, "its body is not UTF-8") from error
    entry = sqs.SqsRequestEntry(
        body,
        sent.message_group_id or None,
        sent.deduplication_id or None,
        sent.delay_seconds if sent.HasField("delay_seconds") else None,
    )
    sqs.check_entry(entry, number)
    return entry


def _dynamodb_from(sent: pb.Entry, number: int) -> DynamoDbRequestEntry:
    try:
        entry = DynamoDbRequestEntry(_items.decode(sent.data), sent.delete)
        dynamodb_size(entry)
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise InvalidRecordError(number, f"its item is no object of attribute values: {error}") from error
    return entry


KINDS: Final[Mapping[str, DestinationKind]] = {
    kind.name: kind
    for kind in (
        DestinationKind(KINESIS, _kinesis_to, _kinesis_from, kinesis.size_in_bytes),
        DestinationKind(
            FIREHOSE, lambda entry: pb.Entry(data=entry.data), _firehose_from, lambda entry: len(entry.data)
        ),
        DestinationKind(
            DYNAMODB,
            lambda entry: pb.Entry(data=_json.encode(entry.item), delete=entry.delete),
            _dynamodb_from,
            dynamodb_size,
        ),
        DestinationKind(SQS, _sqs_to, _sqs_from, sqs.size_in_bytes),
    )
}
