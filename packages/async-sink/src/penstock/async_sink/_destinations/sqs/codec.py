"""SQS entries as bytes: `[body, group, deduplication id, delay, {attribute: [type, value]}]` in MessagePack."""

from typing import Any

import msgspec

from penstock.async_sink._destinations.sqs.attributes import AttributeValue, exact_number, wire_attribute
from penstock.async_sink._destinations.sqs.entry import SqsRequestEntry, size_in_bytes

_encoder = msgspec.msgpack.Encoder()
# A binary is itself; a number is the digits that it has on the wire.
_decoder = msgspec.msgpack.Decoder(
    tuple[str, str | None, str | None, int | None, dict[str, tuple[str, Any]]],
)


def _attribute(kind: str, value: Any) -> AttributeValue:
    match kind, value:
        case "String", str():
            return value
        case "Number", str():
            return exact_number(value)
        case "Float", str():
            return float(exact_number(value))
        case "Binary", bytes():
            return value
        case _:
            raise ValueError(f"an attribute of type {kind!r} has a value of type {type(value).__name__}")


class SqsEntryCodec:
    """An `EntryCodec`."""

    name = "sqs"
    version = 1

    def encode(self, entry: SqsRequestEntry) -> bytes:
        """The entry as bytes."""
        attributes = {}
        for name, value in entry.attributes.items():
            wire = wire_attribute(value)
            # On the wire all numbers are alike; here a float comes back as one.
            kind = "Float" if isinstance(value, float) else wire["DataType"]
            attributes[name] = (kind, value if isinstance(value, bytes) else wire["StringValue"])
        return _encoder.encode(
            (entry.body, entry.group_id, entry.deduplication_id, entry.delay_seconds, attributes),
        )

    def decode(self, raw: bytes, version: int) -> SqsRequestEntry:
        """The entry of these bytes.

        Raises:
            ValueError: they hold no message.
        """
        body, group_id, deduplication_id, delay_seconds, attributes = _decoder.decode(raw)
        values = {name: _attribute(kind, value) for name, (kind, value) in attributes.items()}
        return SqsRequestEntry(body, group_id, deduplication_id, delay_seconds, values)

    def get_size_in_bytes(self, entry: SqsRequestEntry) -> int:
        """Body and attributes, as the service counts them."""
        return size_in_bytes(entry)
