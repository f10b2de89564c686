"""One SubscribeToShard call, whatever carries it: the request, the answer's parser, and the transports' interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from penstock.aws import AwsServiceError
from penstock.efo_consumer._model.positions import PositionType, ShardPosition
from penstock.efo_consumer._wire.decode import DecodedPayload, decode_payload
from penstock.efo_consumer._wire.eventstream import Frame, FrameDecoder, FrameKind, frame_kind
from penstock.efo_consumer.errors import EfoConsumerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OPERATION = "SubscribeToShard"
TARGET = f"Kinesis_20131202.{OPERATION}"
CONTENT_TYPE = "application/x-amz-json-1.1"
REQUEST_HEADERS: Mapping[str, str] = {"Content-Type": CONTENT_TYPE, "X-Amz-Target": TARGET}

# The service's error answers are a few hundred bytes; anything longer comes from elsewhere.
MAX_ERROR_BODY_BYTES = 64 * 1024


@dataclass(frozen=True)
class SubscribeRequest:
    """The parameters of a SubscribeToShard call."""

    consumer_arn: str
    shard_id: str
    position: ShardPosition

    def body(self) -> bytes:
        """The request's JSON."""
        return msgspec.json.encode(
            {
                "ConsumerARN": self.consumer_arn,
                "ShardId": self.shard_id,
                "StartingPosition": _starting_position(self.position),
            }
        )


def _starting_position(position: ShardPosition) -> dict[str, object]:
    match position.type:
        case PositionType.TRIM_HORIZON:
            return {"Type": "TRIM_HORIZON"}
        case PositionType.AT_TIMESTAMP:
            return {"Type": "AT_TIMESTAMP", "Timestamp": (position.timestamp_millis or 0) / 1000}
        case PositionType.AFTER_SEQUENCE_NUMBER:
            return {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": position.sequence_number}
        case PositionType.SHARD_END:
            raise ValueError("nothing can be read after the end of a shard")


class SubscriptionEvent(NamedTuple):
    """A SubscribeToShardEvent.

    Attributes:
        payload: its records and positions.
        wire_bytes: its share of the flow-control window, including frames without records before it.
    """

    payload: DecodedPayload
    wire_bytes: int


Outcome = SubscriptionEvent | EfoConsumerError | AwsServiceError
"""What the parser makes of an answer's bytes."""


class Subscription(Protocol):
    """A SubscribeToShard answer in progress. Belongs to one task."""

    @property
    def bytes_received(self) -> int:
        """Bytes of the answer so far; they grow while the connection is alive."""
        ...

    @property
    def answered_at(self) -> float | None:
        """The service's clock when it accepted the subscription; whole seconds. Every event was produced then or later.

        Seconds since the epoch, from the answer's `Date` header; None without one that can be read.
        """
        ...

    @property
    def is_pending(self) -> bool:
        """Whether something was received that was not taken yet."""
        ...

    @property
    def waits_since(self) -> float | None:
        """When the first record that was received but not taken arrived at the service; seconds since the epoch."""
        ...

    async def receive(self) -> SubscriptionEvent | None:
        """Take the next event and credit its bytes to the sender; None when the service ended the subscription.

        Safe to cancel: no event is lost.

        Raises:
            AwsServiceError: the service sent an exception inside the stream.
            EventStreamFrameError, PayloadDecodeError: the answer is corrupt.
            SubscriptionConnectionError: the connection failed or was reset.
        """
        ...

    async def close(self, *, suspect: bool = False) -> None:
        """Stop the service from sending, whatever state the answer is in. Idempotent.

        Args:
            suspect: the connection fell silent or delivered corrupt bytes and must not carry another request.
        """
        ...


def first_arrival(outcomes: Iterable[object]) -> float | None:
    """When the first record in these outcomes arrived, in seconds since the epoch; None without records."""
    for one in outcomes:
        if isinstance(one, SubscriptionEvent) and one.payload.records.num_rows:
            # Not as a `datetime`: Arrow would import pandas for it, where that is installed.
            micros = one.payload.records.column("approximateArrivalTimestamp")[0].value
            return None if micros is None else float(micros) / 1e6
    return None


class SubscribeTransport(Protocol):
    """Carries SubscribeToShard calls."""

    @property
    def name(self) -> str:
        """`http1` or `http2`, for spans and logs."""
        ...

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        """Call SubscribeToShard; returns when the service has accepted it.

        Raises:
            AwsServiceError: the service refused.
            SubscriptionConnectionError: no answer came.
        """
        ...

    async def close(self) -> None:
        """Close all connections, and so end all subscriptions."""
        ...


class SubscriptionParser:
    """Turns the chunks of an answer into events, in order; an error is its last outcome."""

    __slots__ = ("_frames", "_silent_bytes")

    def __init__(self) -> None:
        self._frames = FrameDecoder()
        self._silent_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes taken in that no event accounts for yet."""
        return self._frames.pending_bytes + self._silent_bytes

    def feed(self, chunk: bytes) -> list[Outcome]:
        """The events that the chunk completes; after an error, no chunk may follow."""
        outcomes: list[Outcome] = []
        try:
            for frame in self._frames.feed(chunk):
                kind = frame_kind(frame.headers)
                if kind.message_type != "event":
                    raise _service_exception(kind, frame)
                if kind.event_type != "SubscribeToShardEvent":
                    # `initial-response`, and what later versions of the service may add.
                    self._silent_bytes += frame.frame_bytes
                    continue
                wire_bytes, self._silent_bytes = frame.frame_bytes + self._silent_bytes, 0
                payload = decode_payload(frame.buffer, frame.payload_start, frame.payload_end)
                outcomes.append(SubscriptionEvent(payload, wire_bytes))
        except (EfoConsumerError, AwsServiceError) as error:
            outcomes.append(error)
        return outcomes

    def finish(self) -> EfoConsumerError | None:
        """Mark the end of the answer; gives the error if it ended inside a frame."""
        try:
            self._frames.finish()
        except EfoConsumerError as truncated:
            return truncated
        return None


class _ExceptionPayload(msgspec.Struct):
    message: str | None = None
    capital_message: str | None = msgspec.field(name="Message", default=None)


def _service_exception(kind: FrameKind, frame: Frame) -> AwsServiceError:
    message = kind.error_message
    if not message:
        try:
            payload = msgspec.json.decode(frame.payload, type=_ExceptionPayload)
            message = payload.message or payload.capital_message or ""
        except msgspec.MsgspecError:
            message = bytes(frame.payload[:200]).decode(errors="replace")
    # Inside the stream the service may write a code as a member's name, with a small first letter.
    code = kind.event_type[:1].upper() + kind.event_type[1:]
    return AwsServiceError(code=code or "UnknownError", message=message, status=400, operation=OPERATION)
