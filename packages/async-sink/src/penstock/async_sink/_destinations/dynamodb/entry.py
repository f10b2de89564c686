"""A write on its way to a table: values of Python as DynamoDB's, their sizes, and their keys."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any, Self

import msgspec

AttributeValue = Mapping[str, Any]
"""One pair: the type (`S`, `N`, `B`, `BOOL`, `NULL`, `L`, `M`, `SS`, `NS`, `BS`), and the value; numbers as strings."""
Item = Mapping[str, AttributeValue]

_MAX_DIGITS = 38
# Powers of ten of the first digit, of the smallest and the largest number.
_SMALLEST, _LARGEST = -130, 125
# Python's own context rounds to 28 digits.
_EXACT = Context(prec=200)
# What a list or a map costs beyond its content, and each of its elements, by the developer guide.
_CONTAINER_BYTES = 3
_ELEMENT_BYTES = 1


def _number(value: Decimal | float) -> str:
    # Floats and integers of other libraries are written in ways of their own: numpy's, enumerations.
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
    """What identifies an item in its table; 1 and 1.0 are the same number.

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
    """The item's attribute values by name, such as `{"id": {"S": "UA1545"}}`; of a delete, those of its key."""
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
