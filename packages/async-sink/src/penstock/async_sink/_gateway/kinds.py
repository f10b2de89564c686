"""Kinds of destinations, and their entries in the contract."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, Final

import msgspec

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._destinations.dynamodb import dynamodb_config
from penstock.async_sink._destinations.dynamodb_items import DynamoDbEntries, DynamoDbRequestEntry, item_from_json
from penstock.async_sink._destinations.firehose import FirehoseEntries, FirehoseRequestEntry, firehose_config
from penstock.async_sink._destinations.kinesis.entry import MAX_PARTITION_KEY_LENGTH, KinesisRequestEntry
from penstock.async_sink._destinations.kinesis.rows import KinesisEntries
from penstock.async_sink._destinations.sqs import (
    AttributeValue,
    SqsEntries,
    SqsRequestEntry,
    number_of,
    sqs_config,
    wire_attribute,
)
from penstock.async_sink._destinations.writer import EntryKind
from penstock.async_sink.errors import RecordError
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

KINESIS: Final = "kinesis"

_json = msgspec.json.Encoder()


@dataclass(frozen=True)
class DestinationKind:
    """One kind: converts entries to messages of the contract and back."""

    make: Callable[[], EntryKind[Any]]
    """Makes the entry kind of a client's writer."""
    config: Callable[[], AsyncSinkConfig]
    """Default limits of a client's writer."""
    to_message: Callable[[Any], pb.Entry]
    """An entry for the gateway."""
    read: Callable[[pb.Entry], Any]
    """An entry from a client, not checked yet.

    Raises:
        ValueError: the entry is not one of this kind.
    """
    description: Callable[[str], tuple[str, dict[str, Any], tuple[str, str]]] | None = None
    """The call that describes a destination, and where its answer has the ARN; None: the writer asks when it opens."""
    read_all: Callable[[Sequence[pb.Entry]], tuple[list[Any], list[int]] | None] = lambda _: None
    """All entries of a batch and their bytes, if a fast check shows that they are valid; otherwise None."""
    entries: EntryKind[Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", self.make())

    @property
    def name(self) -> str:
        """The name in the contract."""
        return self.entries.name

    def from_messages(self, sent: Sequence[pb.Entry]) -> tuple[list[Any], list[int]]:
        """The entries of a client's batch, checked, and the bytes of each.

        Raises:
            RecordError: one breaks a rule of the destination; its number is the index in the batch.
        """
        if (read := self.read_all(sent)) is not None:
            return read
        entries, sizes = [], []
        for number, one in enumerate(sent):
            try:
                entry = self.read(one)
            except (ValueError, RecursionError) as error:
                raise RecordError(number, str(error)) from error
            entries.append(entry)
            sizes.append(self.entries.measure(entry, number))
        return entries, sizes


def _kinesis_to(entry: KinesisRequestEntry) -> pb.Entry:
    hash_key = entry.explicit_hash_key or ""
    # A row's data may be a bytearray.
    return pb.Entry(data=bytes(entry.data), partition_key=entry.partition_key, explicit_hash_key=hash_key)


def _kinesis_from(sent: pb.Entry) -> KinesisRequestEntry:
    return KinesisRequestEntry(sent.data, sent.partition_key, sent.explicit_hash_key or None)


def _plain_kinesis(sent: Sequence[pb.Entry]) -> tuple[list[KinesisRequestEntry], list[int]] | None:
    """Fast path for entries with an ASCII partition key, which nearly all have."""
    data, keys = [one.data for one in sent], [one.partition_key for one in sent]
    lengths = list(map(len, keys))
    if not 0 < min(lengths) <= max(lengths) <= MAX_PARTITION_KEY_LENGTH or not "".join(keys).isascii():
        return None
    if any(one.explicit_hash_key for one in sent):
        return None
    return list(map(KinesisRequestEntry, data, keys)), list(map(add, map(len, data), lengths))


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


def _sqs_to(entry: SqsRequestEntry) -> pb.Entry:
    return pb.Entry(
        data=entry.body.encode(),
        message_group_id=entry.group_id or "",
        deduplication_id=entry.deduplication_id or "",
        delay_seconds=entry.delay_seconds,
        message_attributes={name: _attribute_to(value) for name, value in entry.attributes.items()},
    )


def _sqs_from(sent: pb.Entry) -> SqsRequestEntry:
    try:
        body = sent.data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("its body is not UTF-8") from error
    try:
        attributes = {name: _attribute_from(value) for name, value in sent.message_attributes.items()}
    except ValueError as error:
        raise ValueError(f"an attribute of it cannot be read: {error}") from error
    return SqsRequestEntry(
        body,
        sent.message_group_id or None,
        sent.deduplication_id or None,
        sent.delay_seconds if sent.HasField("delay_seconds") else None,
        attributes,
    )


def _dynamodb_from(sent: pb.Entry) -> DynamoDbRequestEntry:
    try:
        return DynamoDbRequestEntry(item_from_json(sent.data), sent.delete)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its item is not an object of attribute values: {error}") from error


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
        DestinationKind(
            KinesisEntries, AsyncSinkConfig, _kinesis_to, _kinesis_from, _kinesis_description, _plain_kinesis
        ),
        DestinationKind(
            FirehoseEntries,
            firehose_config,
            lambda entry: pb.Entry(data=bytes(entry.data)),
            lambda sent: FirehoseRequestEntry(sent.data),
            _firehose_description,
        ),
        DestinationKind(
            DynamoDbEntries,
            dynamodb_config,
            lambda entry: pb.Entry(data=_json.encode(entry.item), delete=entry.delete),
            _dynamodb_from,
        ),
        DestinationKind(SqsEntries, sqs_config, _sqs_to, _sqs_from, _sqs_description),
    )
}
