"""A message on its way to a queue."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.async_sink.errors import InvalidRecordError

# The characters that SendMessage does not take, by its reference.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_DELAY_SECONDS = 900
_MAX_ATTRIBUTES = 10


class SqsRequestEntry(msgspec.Struct, frozen=True):
    """A message of SendMessageBatch."""

    body: str
    """The message's text: 1 character at least."""
    group_id: str | None = None
    """Message group: messages of a group keep their order in a FIFO queue."""
    deduplication_id: str | None = None
    """By which a FIFO queue drops repeats for five minutes: with it, a message that is sent again is there once."""
    delay_seconds: int | None = None
    """Seconds, up to 900, before the message can be received; None for the queue's own delay."""
    attributes: Mapping[str, str | int | float | bytes] = {}
    """Message attributes: strings, numbers or binaries, 10 at most."""


def _wire_attribute(value: str | float | bytes) -> dict[str, Any]:
    if isinstance(value, str):
        return {"DataType": "String", "StringValue": value}
    if isinstance(value, bytes):
        return {"DataType": "Binary", "BinaryValue": value}
    return {"DataType": "Number", "StringValue": repr(value)}


def to_wire(entry: SqsRequestEntry, place: int) -> dict[str, Any]:
    """The entry as the API has it; its id is its place in the request."""
    wire: dict[str, Any] = {"Id": str(place), "MessageBody": entry.body}
    if entry.delay_seconds is not None:
        wire["DelaySeconds"] = entry.delay_seconds
    if entry.group_id is not None:
        wire["MessageGroupId"] = entry.group_id
    if entry.deduplication_id is not None:
        wire["MessageDeduplicationId"] = entry.deduplication_id
    if entry.attributes:
        wire["MessageAttributes"] = {name: _wire_attribute(value) for name, value in entry.attributes.items()}
    return wire


def size_in_bytes(entry: SqsRequestEntry) -> int:
    """Bytes as the service counts them: the body, and the attributes' names, types and values."""
    size = len(entry.body) if entry.body.isascii() else len(entry.body.encode())
    for name, value in entry.attributes.items():
        wire = _wire_attribute(value)
        content = value if isinstance(value, bytes) else wire["StringValue"].encode()
        size += len(name.encode()) + len(wire["DataType"]) + len(content)
    return size


def check_entry(entry: SqsRequestEntry, record_number: int) -> None:
    """Check what the service would refuse.

    Raises:
        InvalidRecordError: a field breaks a rule of SendMessageBatch.
    """
    if not entry.body:
        raise InvalidRecordError(record_number, "its body is empty")
    found = _FORBIDDEN.search(entry.body)
    if found is not None:
        raise InvalidRecordError(record_number, f"its body holds {found[0]!r}, which a message cannot have")
    if entry.delay_seconds is not None and not 0 <= entry.delay_seconds <= MAX_DELAY_SECONDS:
        raise InvalidRecordError(record_number, f"its delay is {entry.delay_seconds} s, not 0 to {MAX_DELAY_SECONDS}")
    if len(entry.attributes) > _MAX_ATTRIBUTES:
        raise InvalidRecordError(record_number, f"it has {len(entry.attributes)} attributes, more than 10")
