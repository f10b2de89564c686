"""A message on its way to a queue."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.async_sink._destinations.sqs.attributes import (
    AttributeValue,
    attribute_size_in_bytes,
    check_attributes,
    wire_attribute,
)
from penstock.async_sink.errors import InvalidRecordError

# The characters that SendMessage does not take, by its reference.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_DELAY_SECONDS = 900
_MAX_ID_LENGTH = 128


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
    attributes: Mapping[str, AttributeValue] = {}
    """Message attributes: strings, numbers (exact) or binaries, 10 at most."""


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
        wire["MessageAttributes"] = {name: wire_attribute(value) for name, value in entry.attributes.items()}
    return wire


def size_in_bytes(entry: SqsRequestEntry) -> int:
    """Bytes as the service counts them: the body, and the attributes' names, types and values."""
    size = len(entry.body) if entry.body.isascii() else len(entry.body.encode())
    return size + sum(attribute_size_in_bytes(name, value) for name, value in entry.attributes.items())


def check_entry(entry: SqsRequestEntry, record_number: int) -> None:
    """Check what the service would refuse.

    Raises:
        InvalidRecordError: a field breaks a rule of SendMessageBatch.
    """
    if not isinstance(entry, SqsRequestEntry):
        what = f"{type(entry).__name__} is no SqsRequestEntry: give the sink a converter that makes one"
        raise InvalidRecordError(record_number, what)
    if not isinstance(entry.body, str):
        what = f"its body is {type(entry.body).__name__}, not str: a message is text, and bytes go into it as base64"
        raise InvalidRecordError(record_number, what)
    if not entry.body:
        raise InvalidRecordError(record_number, "its body is empty")
    found = _FORBIDDEN.search(entry.body)
    if found is not None:
        raise InvalidRecordError(record_number, f"its body holds {found[0]!r}, which a message cannot have")
    if entry.delay_seconds is not None and not 0 <= entry.delay_seconds <= MAX_DELAY_SECONDS:
        raise InvalidRecordError(record_number, f"its delay is {entry.delay_seconds} s, not 0 to {MAX_DELAY_SECONDS}")
    for name, value in (("group", entry.group_id), ("deduplication id", entry.deduplication_id)):
        if value is not None and not 0 < len(value) <= _MAX_ID_LENGTH:
            raise InvalidRecordError(
                record_number, f"its {name} has {len(value)} characters, not 1 to {_MAX_ID_LENGTH}"
            )
    if entry.attributes:
        check_attributes(entry.attributes, record_number)
