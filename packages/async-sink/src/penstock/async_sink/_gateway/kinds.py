"""Kinds of destinations, and how the contract says their entries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.async_sink._destinations.dynamodb.codec import item_from_json
from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry
from penstock.async_sink._destinations.dynamodb.entry import size_in_bytes as dynamodb_size
from penstock.async_sink._destinations.firehose import FirehoseRequestEntry
from penstock.async_sink._destinations.kinesis import entry as kinesis
from penstock.async_sink._destinations.sqs import entry as sqs
from penstock.async_sink._destinations.sqs.entry import AttributeValue, number_of, wire_attribute
from penstock.async_sink.errors import InvalidRecordError
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

KINESIS: Final = "kinesis"
FIREHOSE: Final = "firehose"
DYNAMODB: Final = "dynamodb"
SQS: Final = "sqs"

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
    description: Callable[[str], tuple[str, dict[str, Any], tuple[str, str]]] | None = None
    """The call that describes a destination, and where its answer has the ARN; None: the writer asks when it opens."""


def _kinesis_to(entry: kinesis.KinesisRequestEntry) -> pb.Entry:
    hash_key = entry.explicit_hash_key or ""
    # A row's data may be a bytearray.
    return pb.Entry(data=bytes(entry.data), partition_key=entry.partition_key, explicit_hash_key=hash_key)


def _kinesis_from(sent: pb.Entry, number: int) -> kinesis.KinesisRequestEntry:
    entry = kinesis.KinesisRequestEntry(sent.data, sent.partition_key, sent.explicit_hash_key or None)
    kinesis.check_entry(entry, number)
    return entry


def _firehose_from(sent: pb.Entry, number: int) -> FirehoseRequestEntry:
    if not sent.data:
        raise InvalidRecordError(number, "its data is empty")
    return FirehoseRequestEntry(sent.data)


def _attribute_to(value: AttributeValue) -> pb.MessageAttribute:
    wire = wire_attribute(value)
    if wire["DataType"] == "Binary":
        return pb.MessageAttribute(binary_value=wire["BinaryValue"])
    if wire["DataType"] == "Number":
        return pb.MessageAttribute(number_value=wire["StringValue"])
    return pb.MessageAttribute(string_value=wire["StringValue"])


def _attribute_from(sent: pb.MessageAttribute) -> AttributeValue:
    match sent.WhichOneof("value"):
        case "binary_value":
            return sent.binary_value
        case "number_value":
            return number_of(sent.number_value)
        case _:
            return sent.string_value


def _sqs_to(entry: sqs.SqsRequestEntry) -> pb.Entry:
    return pb.Entry(
        data=entry.body.encode(),
        message_group_id=entry.group_id or "",
        deduplication_id=entry.deduplication_id or "",
        delay_seconds=entry.delay_seconds,
        message_attributes={name: _attribute_to(value) for name, value in entry.attributes.items()},
    )


def _sqs_from(sent: pb.Entry, number: int) -> sqs.SqsRequestEntry:
    try:
        body = sent.data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecordError(number, "its body is not UTF-8") from error
    try:
        attributes = {name: _attribute_from(value) for name, value in sent.message_attributes.items()}
    except ValueError as error:
        raise InvalidRecordError(number, f"an attribute of it cannot be read: {error}") from error
    entry = sqs.SqsRequestEntry(
        body,
        sent.message_group_id or None,
        sent.deduplication_id or None,
        sent.delay_seconds if sent.HasField("delay_seconds") else None,
        attributes,
    )
    sqs.check_entry(entry, number)
    return entry


def _dynamodb_from(sent: pb.Entry, number: int) -> DynamoDbRequestEntry:
    try:
        return DynamoDbRequestEntry(item_from_json(sent.data), sent.delete)
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(number, f"its item is no object of attribute values: {error}") from error


def _kinesis_description(name: str) -> tuple[str, dict[str, Any], tuple[str, str]]:
    parameter = "StreamARN" if name.startswith("arn:") else "StreamName"
    return "DescribeStreamSummary", {parameter: name}, ("StreamDescriptionSummary", "StreamARN")


def _firehose_description(name: str) -> tuple[str, dict[str, Any], tuple[str, str]]:
    parameters = {"DeliveryStreamName": name, "Limit": 1}
    return "DescribeDeliveryStream", parameters, ("DeliveryStreamDescription", "DeliveryStreamARN")


def _sqs_description(url: str) -> tuple[str, dict[str, Any], tuple[str, str]]:
    return "GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["QueueArn"]}, ("Attributes", "QueueArn")


KINDS: Final[Mapping[str, DestinationKind]] = {
    kind.name: kind
    for kind in (
        DestinationKind(KINESIS, _kinesis_to, _kinesis_from, kinesis.size_in_bytes, _kinesis_description),
        DestinationKind(
            FIREHOSE,
            lambda entry: pb.Entry(data=bytes(entry.data)),
            _firehose_from,
            lambda entry: len(entry.data),
            _firehose_description,
        ),
        DestinationKind(
            DYNAMODB,
            lambda entry: pb.Entry(data=_json.encode(entry.item), delete=entry.delete),
            _dynamodb_from,
            dynamodb_size,
        ),
        DestinationKind(SQS, _sqs_to, _sqs_from, sqs.size_in_bytes, _sqs_description),
    )
}
