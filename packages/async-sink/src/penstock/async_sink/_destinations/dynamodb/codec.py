"""Items that come from elsewhere, checked: JSON of clients, and the bytes of a saved state."""

import binascii
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pybase64

from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry, Item, size_in_bytes

_decoder = msgspec.json.Decoder(dict[str, dict[str, Any]])


def _string(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, got {type(value).__name__}")
    return value


def _binary(value: Any) -> Any:
    if not isinstance(value, bytes):
        raise ValueError(f"expected a binary, got {type(value).__name__}")
    return value


def _base64(value: Any) -> Any:
    try:
        return pybase64.b64decode(_string(value), validate=True)
    except binascii.Error as error:
        raise ValueError("a binary must be in base64") from error


def _number(value: Any) -> Any:
    try:
        number = Decimal(_string(value))
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite():
        raise ValueError(f"invalid number {value!r}")
    return value


def _boolean(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"expected a boolean, got {type(value).__name__}")
    return value


def _list(value: Any, read: Callable[[Any], Any]) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {type(value).__name__}")
    return [read(each) for each in value]


def _value(value: Any, binary: Callable[[Any], Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError("an attribute value is one pair of a type and a value")
    ((kind, inner),) = value.items()
    match kind:
        case "S":
            return {kind: _string(inner)}
        case "N":
            return {kind: _number(inner)}
        case "B":
            return {kind: binary(inner)}
        case "BOOL" | "NULL":
            return {kind: _boolean(inner)}
        case "SS" | "NS" | "BS":
            read = {"SS": _string, "NS": _number, "BS": binary}[kind]
            return {kind: _list(inner, read)}
        case "L":
            return {kind: _list(inner, lambda each: _value(each, binary))}
        case "M":
            return {kind: _item(inner, binary)}
        case _:
            raise ValueError(f"unknown type of an attribute value: {kind!r}")


def _item(item: Any, binary: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    if not isinstance(item, Mapping):
        raise ValueError(f"expected a map, got {type(item).__name__}")
    return {_string(name): _value(value, binary) for name, value in item.items()}


def check_item(item: Any) -> None:
    """Check that these are attribute values by their names, binaries being bytes.

    Raises:
        ValueError: they are not.
    """
    _item(item, _binary)


def item_from_json(raw: bytes) -> Item:
    """The item of a JSON object of attribute values, as the service's own API has it.

    Raises:
        ValueError: it is not such an object.
        RecursionError: it is nested without an end.
    """
    return _item(_decoder.decode(raw), _base64)


_state_encoder = msgspec.msgpack.Encoder()
_state_decoder = msgspec.msgpack.Decoder(tuple[dict[str, dict[str, Any]], bool])


class DynamoDbEntryCodec:
    """An `EntryCodec`."""

    name = "dynamodb"
    version = 1

    def encode(self, entry: DynamoDbRequestEntry) -> bytes:
        """The entry as bytes."""
        return _state_encoder.encode((entry.item, entry.delete))

    def decode(self, raw: bytes, version: int) -> DynamoDbRequestEntry:
        """The entry of these bytes.

        Raises:
            ValueError: they hold no item.
        """
        item, delete = _state_decoder.decode(raw)
        check_item(item)
        return DynamoDbRequestEntry(item, delete)

    def get_size_in_bytes(self, entry: DynamoDbRequestEntry) -> int:
        """Bytes of the item, as the service counts them."""
        return size_in_bytes(entry)
