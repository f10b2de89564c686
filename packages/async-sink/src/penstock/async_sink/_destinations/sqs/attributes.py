"""Attributes of messages: their values, and what the service takes."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.async_sink.errors import InvalidRecordError

AttributeValue = str | int | float | Decimal | bytes
"""A string, a number, or a binary."""

_MAX_ATTRIBUTES = 10
_NAME = re.compile(r"(?!(?i:aws|amazon)\.)(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


def wire_attribute(value: AttributeValue) -> dict[str, Any]:
    """The value as the API has it; numbers are exact."""
    if isinstance(value, str):
        return {"DataType": "String", "StringValue": value}
    if isinstance(value, bytes):
        return {"DataType": "Binary", "BinaryValue": value}
    return {"DataType": "Number", "StringValue": str(value)}


def exact_number(text: str) -> int | Decimal:
    """The number with all of its digits.

    Raises:
        ValueError: it is no number.
    """
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is no number") from None
    if not exact.is_finite():
        raise ValueError(f"{text!r} is no number that a message can have")
    return exact


def number_of(text: str) -> int | float | Decimal:
    """A number that `wire_attribute` makes the same text of: a float where that has all of its digits.

    Raises:
        ValueError: it is no number.
    """
    exact = exact_number(text)
    if isinstance(exact, int):
        return exact
    number = float(exact)
    return number if str(number) == text else exact


def attribute_size_in_bytes(name: str, value: AttributeValue) -> int:
    """Bytes as the service counts them: name, type and value."""
    wire = wire_attribute(value)
    content = value if isinstance(value, bytes) else wire["StringValue"].encode()
    return len(name.encode()) + len(wire["DataType"]) + len(content)


def _fault(name: Any, value: Any) -> str | None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        return "has a name that is not of 1 to 256 letters, digits, _, - and single dots, or begins with AWS."
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal | bytes):
        return f"is {type(value).__name__}, not a string, a number or bytes"
    if isinstance(value, str | bytes):
        return None if value else "is empty"
    return None if Decimal(value).is_finite() else "is not finite"


def check_attributes(attributes: Mapping[str, AttributeValue], record_number: int) -> None:
    """Check what the service would refuse.

    Raises:
        InvalidRecordError: there are too many, or one breaks a rule.
    """
    if len(attributes) > _MAX_ATTRIBUTES:
        raise InvalidRecordError(record_number, f"it has {len(attributes)} attributes, more than {_MAX_ATTRIBUTES}")
    for name, value in attributes.items():
        fault = _fault(name, value)
        if fault is not None:
            raise InvalidRecordError(record_number, f"its attribute {name!r} {fault}")
