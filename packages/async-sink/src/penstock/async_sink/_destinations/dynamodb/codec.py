"""Items that come from elsewhere, checked: columns, JSON of clients, and the bytes of a saved state."""

import binascii
from collections.abc import Callable, Hashable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa
import pybase64

from penstock.async_sink._core.runs import Rows
from penstock.async_sink._destinations.columns import sized_rows
from penstock.async_sink._destinations.dynamodb.entry import DynamoDbRequestEntry, Item, key_of, size_in_bytes
from penstock.async_sink._destinations.writer import RowContext
from penstock.async_sink.errors import RecordError

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
        ValueError: one of them is not an attribute value.
    """
    _item(item, _binary)


def item_from_json(raw: bytes) -> Item:
    """The item of a JSON object of attribute values, as the service's own API has it.

    Raises:
        ValueError: the JSON is not an object of attribute values.
        RecursionError: it is nested without an end.
    """
    return _item(_decoder.decode(raw), _base64)


_state_encoder = msgspec.msgpack.Encoder()
_state_decoder = msgspec.msgpack.Decoder(tuple[dict[str, dict[str, Any]], bool])


_Read = Callable[[Any], Any]


def _unless_null(read: _Read) -> _Read:
    return lambda value: None if value is None else read(value)


def _reader(kind: Any) -> _Read | None:
    """Makes mappings of the maps in a value of that type; None where there are none."""
    if pa.types.is_map(kind):
        item = _reader(kind.item_type) or (lambda value: value)
        return _unless_null(lambda pairs: {key: item(value) for key, value in pairs})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _reader(kind.value_type)
        return None if element is None else _unless_null(lambda values: list(map(element, values)))
    if pa.types.is_struct(kind):
        fields = _readers(kind)
        return _unless_null(lambda struct: _read(struct, fields)) if fields else None
    return None


def _readers(fields: Any) -> dict[str, _Read]:
    return {field.name: reader for field in fields if (reader := _reader(field.type)) is not None}


def _read(row: dict[str, Any], readers: dict[str, _Read]) -> dict[str, Any]:
    return row | {name: read(row[name]) for name, read in readers.items()}


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The values of each row, by their columns' names."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    readers = _readers(batch.schema)
    return [_read(row, readers) for row in rows] if readers else rows


class DynamoDbEntries:
    """The entries of BatchWriteItem; an `EntryKind`."""

    name = "dynamodb"
    version = 1

    def __init__(self, key_names: tuple[str, ...] = ()) -> None:
        self.key_names = key_names
        """Attributes of the table's key; empty while they are not known."""

    def measure(self, entry: DynamoDbRequestEntry, record_number: int) -> int:
        """It has the attributes of the table's key; its names and values count."""
        if not isinstance(entry, DynamoDbRequestEntry):
            what = f"expected a DynamoDbRequestEntry, got {type(entry).__name__}: give the sink a converter"
            raise RecordError(record_number, what)
        for name in self.key_names:
            if name not in entry.item:
                raise RecordError(record_number, f"its item has no {name!r}, which the table's key has")
        return size_in_bytes(entry)

    get_size_in_bytes = staticmethod(size_in_bytes)

    def order_key(self, entry: DynamoDbRequestEntry) -> Hashable:
        """The item's key: with an order per key, writes of an item happen in the order of writing."""
        return key_of(entry.item, self.key_names)

    def rows_of(self, batch: pa.RecordBatch, context: RowContext) -> Iterator[Rows[DynamoDbRequestEntry]]:
        """Puts with an attribute per column, none where it is null."""

        first, limit = context.first_number, context.config.max_record_size_in_bytes

        def entries() -> Iterator[DynamoDbRequestEntry]:
            for number, row in enumerate(plain_rows(batch), start=first):
                try:
                    yield DynamoDbRequestEntry.put({name: value for name, value in row.items() if value is not None})
                except ValueError as error:
                    raise RecordError(number, str(error)) from error

        yield sized_rows(entries(), self.measure, first, limit)

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
