"""Errors of the consumer; each carries the facts that a caller needs to decide or to report.

    EfoConsumerError
    ├── EfoConsumerConfigError           an option is invalid or contradicts another
    ├── EventStreamFrameError            bytes that are no event-stream frame
    │   ├── EventStreamChecksumError     a prelude or message CRC does not match
    │   ├── EventStreamOversizeError     a frame longer than the protocol allows
    │   └── EventStreamTruncatedError    the stream ended inside a frame
    ├── PayloadDecodeError               a payload that is no SubscribeToShardEvent or GetRecords answer
    ├── EventStreamError                 an exception that the service sent inside the stream
    ├── ShardEndError                    no continuation, yet no child shards: not the end of a shard
    ├── SubscriptionSilentError          no event for longer than the service's idle interval
    ├── SubscriptionConnectionError      a connection that failed, was reset, or could not be made
    │   └── Http2NotNegotiatedError      the endpoint did not choose h2 by ALPN
    └── RecordPublisherError             reading a shard failed for good
        ├── RecordPublisherFatalError    the service said that trying again is useless
        └── RecordPublisherRetriesError  every attempt failed
"""

from __future__ import annotations


class EfoConsumerError(Exception):
    """Base of every error that this package raises."""


class EfoConsumerConfigError(EfoConsumerError, ValueError):
    """An option is invalid, or contradicts another one.

    Attributes:
        option: the option's name as the user wrote it.
    """

    def __init__(self, *, option: str, reason: str) -> None:
        self.option = option
        self.reason = reason
        super().__init__(f"{option}: {reason}")


class EventStreamFrameError(EfoConsumerError):
    """Bytes that are no event-stream frame. The connection cannot be trusted any more."""


class EventStreamChecksumError(EventStreamFrameError):
    """A CRC does not match its bytes.

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

    Attributes:
        expected: bytes that the frame (or header) needs.
        actual: bytes that were there.
    """

    def __init__(self, *, expected: int, actual: int) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"{actual} of {expected} bytes arrived")


class PayloadDecodeError(EfoConsumerError):
    """A payload that is no SubscribeToShardEvent or GetRecords answer."""


class EventStreamError(EfoConsumerError):
    """An exception that the service sent inside the event stream.

    Attributes:
        code: the exception's name, as `ResourceInUseException`.
        message: the service's own words.
    """

    def __init__(self, *, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}")


class ShardEndError(EfoConsumerError):
    """An answer without a continuation and without child shards: to be asked again, not a shard's end.

    Attributes:
        stream: the stream's name.
        shard_id: the shard that was read.
    """

    def __init__(self, *, stream: str, shard_id: str) -> None:
        self.stream = stream
        self.shard_id = shard_id
        super().__init__(f"{stream}/{shard_id}: no continuation and no child shards")


class SubscriptionSilentError(EfoConsumerError):
    """No event came for longer than the service's idle interval: the connection is dead.

    Attributes:
        silence_seconds: how long the reader waited.
    """

    def __init__(self, *, silence_seconds: float) -> None:
        self.silence_seconds = silence_seconds
        super().__init__(f"no event for {silence_seconds:g} s")


class SubscriptionConnectionError(EfoConsumerError):
    """A connection failed, was reset, or could not be made."""


class Http2NotNegotiatedError(SubscriptionConnectionError):
    """The endpoint did not choose HTTP/2 by ALPN.

    Attributes:
        endpoint: the host and port that were asked.
    """

    def __init__(self, *, endpoint: str) -> None:
        self.endpoint = endpoint
        super().__init__(f"{endpoint} does not speak HTTP/2 over TLS (ALPN)")


class RecordPublisherError(EfoConsumerError):
    """Reading a shard failed for good.

    Attributes:
        stream: the stream's name.
        shard_id: the shard that was read.
        code: the service's exception name, or the Python class of the cause.
    """

    def __init__(self, message: str, *, stream: str, shard_id: str, code: str) -> None:
        self.stream = stream
        self.shard_id = shard_id
        self.code = code
        super().__init__(f"{stream}/{shard_id}: {message}")


class RecordPublisherFatalError(RecordPublisherError):
    """The service said that trying again is useless (access, keys, a stream or consumer that is gone)."""


class RecordPublisherRetriesError(RecordPublisherError):
    """Every attempt failed.

    Attributes:
        attempts: how many were made since the last one that brought an event.
    """

    def __init__(self, message: str, *, stream: str, shard_id: str, code: str, attempts: int) -> None:
        self.attempts = attempts
        super().__init__(message, stream=stream, shard_id=shard_id, code=code)
