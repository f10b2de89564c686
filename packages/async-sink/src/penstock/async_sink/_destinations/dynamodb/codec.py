"""DynamoDB entries as bytes: `[item, delete]` in MessagePack, numbers as the strings that they are on the wire."""

from typing import Any

import msgspec

from penstock.async_sink._destinations.dynamodb.checked import check_item
from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry, size_in_bytes

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[dict[str, dict[str, Any]], bool])


class DynamoDbEntryCodec:
    """An `EntryCodec`."""

    name = "dynamodb"
    version = 1

    def encode(self, entry: DynamoDbRequestEntry) -> bytes:
        """The entry as bytes."""
        return _encoder.encode((entry.item, entry.delete))

    def decode(self, raw: bytes, version: int) -> DynamoDbRequestEntry:
        """The entry of these bytes.

        Raises:
            ValueError: they hold no item.
        """
        item, delete = _decoder.decode(raw)
        check_item(item)
        return DynamoDbRequestEntry(item, delete)

    def get_size_in_bytes(self, entry: DynamoDbRequestEntry) -> int:
        """Bytes of the item, as the service counts them."""
        return size_in_bytes(entry)
