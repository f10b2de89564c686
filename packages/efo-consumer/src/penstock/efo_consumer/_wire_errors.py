"""Errors of what comes over the wire, and their base. `errors` has all of them, under its own name."""

from __future__ import annotations


class EfoConsumerError(Exception):
    """Base of every error that this package raises."""


class EventStreamFrameError(EfoConsumerError):
    """Bytes that are no event-stream frame. The connection cannot be trusted any more.

    Cure: Nothing, where a connection was cut: the reader makes a new one. If it stays, a proxy changes the bytes.
    """


class EventStreamChecksumError(EventStreamFrameError):
    """A CRC does not match its bytes.

    Cure: As for its base: look for a proxy between here and the endpoint.

    Attributes:
        part: `prelude` or `message`.
        expected: the checksum that the frame carries.
        actual: the checksum of the bytes that arrived.
    """

    def __init__(self, *, part: str, expected: int, actual: int) -> None:
        self.part = part
        self.expected = expected
        self.actual = actual
        super().__init__(f"{part} checksum is {actual:#010x}, the frame says {expected:#010x}")


class EventStreamOversizeError(EventStreamFrameError):
    """A frame that says it is longer than the protocol allows, or shorter than a frame can be.

    Cure: As for its base: the endpoint is probably not Kinesis.

    Attributes:
        field: `total` or `headers`.
        length: bytes that the frame claims.
        limit: bytes that are allowed.
    """

    def __init__(self, *, field: str, length: int, limit: int) -> None:
        self.field = field
        self.length = length
        self.limit = limit
        super().__init__(f"{field} length of {length} bytes is outside the limit of {limit} bytes")


class EventStreamTruncatedError(EventStreamFrameError):
    """The stream ended inside a frame, or a frame's headers run past their end.

    Cure: As for its base: the reader subscribes again.

    Attributes:
        expected: bytes that the frame (or header) needs.
        actual: bytes that were there.
    """

    def __init__(self, *, expected: int, actual: int) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"{actual} of {expected} bytes arrived")


class PayloadDecodeError(EfoConsumerError):
    """A payload that is no SubscribeToShardEvent or GetRecords answer.

    Cure: Check that `endpointUrl` is a Kinesis, and that no proxy answers in its place.
    """


for _error in (
    EfoConsumerError,
    EventStreamFrameError,
    EventStreamChecksumError,
    EventStreamOversizeError,
    EventStreamTruncatedError,
    PayloadDecodeError,
):
    _error.__module__ = "penstock.efo_consumer.errors"
