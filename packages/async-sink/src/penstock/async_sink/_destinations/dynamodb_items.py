"""Items of DynamoDB: conversion of values, columns and JSON; sizes, keys and saved states."""

import binascii
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Self

import msgspec
import pyarrow as pa
import pybase64

from penstock.async_sink._core.entries import row_dictionaries
from penstock.async_sink._core.runs import Rows
from penstock.async_sink._destinations.columns import RowEntries, RowFault
from penstock.async_sink._destinations.writer import RowContext
from penstock.async_sink.errors import RecordError, SinkOptionError

AttributeValue = Mapping[str, Any]
"""One pair: the type (`S`, `N`, `B`, `BOOL`, `NULL`, `L`, `M`, `SS`, `NS`, `BS`), and the value; numbers as strings."""
Item = Mapping[str, AttributeValue]

_MAX_NAME_BYTES = 65_535
_MAX_DIGITS = 38
# Powers of ten of the first digit, of the smallest and the largest number.
_SMALLEST, _LARGEST = -130, 125
# Python's own context rounds to 28 digits.
_EXACT = Context(prec=200)
# What a list or a map costs beyond its content, and each of its elements, by the developer guide.
_CONTAINER_BYTES = 3
_ELEMENT_BYTES = 1


def _number(value: Decimal | float) -> str:
    # Floats and integers of other libraries, such as numpy, have other text forms.
    decimal = Decimal(float.__repr__(value)) if isinstance(value, float) else Decimal(value)
    if not decimal.is_finite() or (decimal and not _SMALLEST <= decimal.adjusted() <= _LARGEST):
        # The service would refuse it together with the whole request.
        raise ValueError(f"{value!r} is out of the range of DynamoDB's numbers")
    if len(decimal.normalize(_EXACT).as_tuple().digits) > _MAX_DIGITS:
        raise ValueError(f"{value!r} has more than {_MAX_DIGITS} digits")
    return str(decimal)


def _set(values: AbstractSet[Any]) -> AttributeValue:
    if not values:
        raise ValueError("DynamoDB has no empty sets")
    if all(isinstance(value, str) for value in values):
        return {"SS": sorted(values)}
    if all(isinstance(value, bytes) for value in values):
        return {"BS": sorted(values)}
    if all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in values):
        return {"NS": sorted(map(_number, values))}
    raise ValueError("a set holds strings, binaries or numbers, of one kind")


def attribute_value(value: Any) -> AttributeValue:
    """The attribute value of a string, binary, number, boolean, None, date, mapping, set or sequence.

    Dates and times become strings in the form of ISO 8601, as DynamoDB has no type for them.

    Raises:
        ValueError: DynamoDB has no type for the value.
    """
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float | Decimal):
        return {"N": _number(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"B": bytes(value)}
    if value is None:
        return {"NULL": True}
    if isinstance(value, datetime | date):
        return {"S": value.isoformat()}
    if isinstance(value, Mapping):
        return {"M": {str(name): attribute_value(inner) for name, inner in value.items()}}
    if isinstance(value, AbstractSet):
        return _set(value)
    if isinstance(value, Sequence):
        return {"L": [attribute_value(inner) for inner in value]}
    raise ValueError(f"DynamoDB has no type for {type(value).__name__}")


def _number_size(text: str) -> int:
    digits = Decimal(text).normalize(_EXACT).as_tuple()
    # About a byte for two significant digits, and one; one more below zero.
    return (len(digits.digits) + 1) // 2 + 1 + digits.sign


def value_size_in_bytes(value: AttributeValue) -> int:
    """Bytes of a value, as the developer guide counts them."""
    ((kind, inner),) = value.items()
    if kind == "S":
        return len(inner.encode())
    if kind == "N":
        return _number_size(inner)
    if kind == "B":
        return len(inner)
    if kind == "M":
        return _CONTAINER_BYTES + _ELEMENT_BYTES * len(inner) + item_size_in_bytes(inner)
    if kind == "L":
        return _CONTAINER_BYTES + sum(_ELEMENT_BYTES + value_size_in_bytes(each) for each in inner)
    if kind in ("SS", "NS", "BS"):
        return sum(value_size_in_bytes({kind[0]: each}) for each in inner)
    return 1


def item_size_in_bytes(item: Item) -> int:
    """Bytes of an item: names and values."""
    return sum(len(name.encode()) + value_size_in_bytes(value) for name, value in item.items())


Key = tuple[tuple[str, Any], ...]


def key_of(item: Item, key_names: Sequence[str]) -> Key:
    """The key of an item; 1 and 1.0 are the same number.

    Raises:
        KeyError: an attribute of the key is missing.
    """
    key = []
    for name in key_names:
        ((kind, value),) = item[name].items()
        key.append((kind, Decimal(value).normalize(_EXACT) if kind == "N" else value))
    return tuple(key)


class DynamoDbRequestEntry(msgspec.Struct, frozen=True):
    """A put or a delete of BatchWriteItem."""

    item: Item
    """The item's attribute values by name, such as `{"id": {"S": "UA1545"}}`; a delete has only its key."""
    delete: bool = False
    """Whether the item is deleted instead of put."""

    @classmethod
    def put(cls, values: Mapping[str, Any]) -> Self:
        """A put of an item that is given by plain values.

        Raises:
            ValueError: DynamoDB has no type for one of the values.
        """
        return cls({name: attribute_value(value) for name, value in values.items()})

    @classmethod
    def delete_key(cls, key: Mapping[str, Any]) -> Self:
        """A delete of the item whose key is given by plain values.

        Raises:
            ValueError: DynamoDB has no type for one of the values.
        """
        return cls({name: attribute_value(value) for name, value in key.items()}, delete=True)


def size_in_bytes(entry: DynamoDbRequestEntry) -> int:
    """Bytes of the item, as the service counts them."""
    return item_size_in_bytes(entry.item)


_decoder = msgspec.json.Decoder(dict[str, dict[str, Any]])


def _string(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, got {type(value).__name__}")
    if not value.isascii():
        value.encode()  # half of a surrogate pair raises a ValueError
    return value


def _binary(value: Any) -> Any:
    if not isinstance(value, bytes | bytearray):
        raise ValueError(f"expected a binary, got {type(value).__name__}")
    return value


def _base64(value: Any) -> Any:
    try:
        return pybase64.b64decode(_string(value), validate=True)
    except binascii.Error as error:
        raise ValueError("a binary must be in base64") from error


def _checked_number(value: Any) -> Any:
    try:
        number = Decimal(_string(value))
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite():
        raise ValueError(f"invalid number {value!r}")
    _number(number)
    return value


def _boolean(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"expected a boolean, got {type(value).__name__}")
    return value


def _list(value: Any, read: Callable[[Any], Any]) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {type(value).__name__}")
    return [read(each) for each in value]


_SCALARS: dict[str, Callable[[Any], Any]] = {"SS": str, "NS": Decimal, "BS": bytes}


def _value(value: Any, binary: Callable[[Any], Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError("an attribute value is one pair of a type and a value")
    ((kind, inner),) = value.items()
    match kind:
        case "S":
            return {kind: _string(inner)}
        case "N":
            return {kind: _checked_number(inner)}
        case "B":
            return {kind: binary(inner)}
        case "BOOL" | "NULL":
            return {kind: _boolean(inner)}
        case "SS" | "NS" | "BS":
            read = {"SS": _string, "NS": _checked_number, "BS": binary}[kind]
            values = _list(inner, read)
            distinct = set(map(_SCALARS[kind], values))
            if not 0 < len(distinct) == len(values):
                raise ValueError("a set holds at least one value, and each value once")
            return {kind: values}
        case "L":
            return {kind: _list(inner, lambda each: _value(each, binary))}
        case "M":
            return {kind: _item(inner, binary)}
        case _:
            raise ValueError(f"unknown type of an attribute value: {kind!r}")


def _item(item: Any, binary: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    if not isinstance(item, Mapping):
        raise ValueError(f"expected a map, got {type(item).__name__}")
    for name in item:
        if not 0 < len(_string(name).encode()) <= _MAX_NAME_BYTES:
            raise ValueError(f"the name of an attribute must be 1 to {_MAX_NAME_BYTES} bytes")
    return {name: _value(value, binary) for name, value in item.items()}


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
    """A function that converts maps in a value of the type to dictionaries; None if the type has no maps."""
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
    rows, readers = row_dictionaries(batch), _readers(batch.schema)
    return [_read(row, readers) for row in rows] if readers else rows


class DynamoDbEntries:
    """The entries of BatchWriteItem; an `EntryKind`."""

    name = "dynamodb"
    version = 1

    def __init__(self, key_names: tuple[str, ...] = ()) -> None:
        self.key_names = key_names
        """Attributes of the table's key; empty while they are not known."""
        self.types: Mapping[str, str] = {}
        """Types of the attributes that are keys of the table or of its indexes; empty while they are not known."""

    def measure(self, entry: DynamoDbRequestEntry, record_number: int) -> int:
        """Check that its values are valid and that it has the table's key; its names and values count."""
        if not isinstance(entry, DynamoDbRequestEntry):
            what = f"expected a DynamoDbRequestEntry, got {type(entry).__name__}: give the sink a converter"
            raise RecordError(record_number, what)
        item = entry.item
        try:
            check_item(item)
        except (ValueError, RecursionError) as error:
            raise RecordError(record_number, f"its item cannot be written: {error}") from error
        for name in self.key_names:
            if name not in item:
                raise RecordError(record_number, f"its item has no {name!r}, which the table's key has")
        for name in self.types or self.key_names:
            if name not in item:
                continue
            ((kind, value),) = item[name].items()
            wanted = self.types.get(name, "SNB")
            if kind not in wanted:
                what = f"its {name!r} has the type {kind}: as a part of a key it must have {' or '.join(wanted)}"
                raise RecordError(record_number, what)
            if not value:
                raise RecordError(record_number, f"its {name!r} is empty, which a part of a key cannot be")
        return size_in_bytes(entry)

    get_size_in_bytes = staticmethod(size_in_bytes)

    def order_key(self, entry: DynamoDbRequestEntry) -> Hashable:
        """The item's key: with an order per key, writes of an item happen in the order of writing."""
        return key_of(entry.item, self.key_names)

    def rows_of(self, batch: pa.RecordBatch, context: RowContext) -> Iterator[Rows[DynamoDbRequestEntry]]:
        """Puts with an attribute per column; nulls are omitted."""
        yield self._entries(batch, context.config.max_record_size_in_bytes).rows(context.first_number)

    def row_faults(self, batch: pa.RecordBatch, max_record_size_in_bytes: int) -> Iterator[RowFault]:
        """The rules that a record batch breaks, each with the rows that break it."""
        return self._entries(batch, max_record_size_in_bytes).faults()

    def _entries(self, batch: pa.RecordBatch, limit: int) -> RowEntries[DynamoDbRequestEntry]:
        rows: list[dict[str, Any]] | None
        try:
            rows = plain_rows(batch)
        except (ValueError, OverflowError) as error:
            if isinstance(error, SinkOptionError):
                raise
            # A row has invalid UTF-8 or a date that Python cannot represent: rows are converted one by one to find it.
            rows = None

        def make(row: int) -> DynamoDbRequestEntry:
            (values,) = plain_rows(batch.slice(row, 1)) if rows is None else [rows[row]]
            return DynamoDbRequestEntry.put({name: value for name, value in values.items() if value is not None})

        return RowEntries(make, batch.num_rows, self.measure, limit)

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
