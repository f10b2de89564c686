"""A write on its way to a table."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from penstock.async_sink._destinations.dynamodb.attributes import Item, attribute_value, item_size_in_bytes


class DynamoDbRequestEntry(msgspec.Struct, frozen=True):
    """A put or a delete of BatchWriteItem."""

    item: Item
    """The item's attribute values by name, such as `{"id": {"S": "UA1545"}}`; of a delete, those of its key."""
    delete: bool = False
    """Whether the item is deleted instead of put."""

    @classmethod
    def put(cls, values: Mapping[str, Any]) -> Self:
        """A put of an item that is given by plain values.

        Raises:
            ValueError: DynamoDB has no such value.
        """
        return cls({name: attribute_value(value) for name, value in values.items()})

    @classmethod
    def delete_key(cls, key: Mapping[str, Any]) -> Self:
        """A delete of the item whose key is given by plain values.

        Raises:
            ValueError: DynamoDB has no such value.
        """
        return cls({name: attribute_value(value) for name, value in key.items()}, delete=True)


def size_in_bytes(entry: DynamoDbRequestEntry) -> int:
    """Bytes of the item, as the service counts them."""
    return item_size_in_bytes(entry.item)
