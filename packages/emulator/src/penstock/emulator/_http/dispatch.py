"""From an HTTP request to an HTTP response, without I/O."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.emulator._clock import http_date
from penstock.emulator._http.codec import CONTENT_TYPE as EVENT_STREAM
from penstock.emulator._http.codec import codec_for
from penstock.emulator._http.control import PREFIX, Control, Statistics
from penstock.emulator._http.delivery import Delivery, FaultySend
from penstock.emulator._http.signatures import SignatureVerifier, signed_region
from penstock.emulator._operations.perform import OPERATIONS, perform
from penstock.emulator._state.quotas import target_of
from penstock.emulator.errors import KinesisError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.emulator._clock import Clock
    from penstock.emulator._dynamodb_streams import DynamoDbStreams
    from penstock.emulator._faults import Fault, Target
    from penstock.emulator._firehose import Firehose
    from penstock.emulator._http.codec import Codec
    from penstock.emulator._http.delivery import Send
    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator._state.subscription import Subscription

_logger = logging.getLogger(__name__)
_TARGET_PREFIX = "Kinesis_20131202."
_SUBSCRIBE = "SubscribeToShard"
_CONTROL_TYPE = "application/json"

MAX_BODY_BYTES = 32 * 1024 * 1024
"""What a request's body may have; 10 MiB of records are 14 MiB of base64."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that has arrived whole; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: either `body`, or frames for as long as `subscription` lives."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    subscription: Subscription | None = None
    delivery: Delivery | None = None
    """What faults do to the answer on its way, if any do."""
    through: Callable[[Send], Send] | None = None
    """Given with a subscription: what stands between its frames and the connection."""


def _headers(clock: Clock, content_type: str) -> list[tuple[str, str]]:
    return [
        ("x-amzn-requestid", str(uuid.uuid4())),
        ("date", http_date(clock)),
        ("content-type", content_type),
    ]


def whole_response(
    clock: Clock, status: int, content_type: str, body: bytes, *, delivery: Delivery | None = None
) -> Response:
    """An answer that is all there, with the headers that services of AWS give."""
    headers = [*_headers(clock, content_type), ("content-length", str(len(body)))]
    return Response(status, headers, body, delivery=delivery)


class Dispatcher:
    """Answers requests from one account, at the time of a clock."""

    def __init__(
        self,
        kinesis: Kinesis,
        clock: Clock,
        *,
        dynamodb_streams: DynamoDbStreams | None = None,
    ) -> None:
        self.kinesis = kinesis
        self._clock = clock
        self._statistics = Statistics()
        self._dynamodb_streams = dynamodb_streams
        self._control = Control(kinesis, clock, self._statistics, reset=self._reset, dynamodb_streams=dynamodb_streams)
        config = kinesis.config
        self._signatures = (
            SignatureVerifier(config.access_keys, region=config.region) if config.verify_signatures else None
        )

    def handle(self, request: Request) -> Response:
        """Answer a request; never raises for what a client can send."""
        if request.path.startswith(PREFIX):
            status, body = self._control.handle(request.method, request.path, request.headers, request.body)
            return self._response(status, _CONTROL_TYPE, body)
        codec = codec_for(request.headers.get("content-type", ""))
        try:
            operation = _operation(request)
            # Names that clients make up must not fill the memory.
            self._statistics.calls[operation if operation in OPERATIONS else "unknown"] += 1
            if self._signatures is not None:
                self._signatures.verify(request.method, request.path, request.headers, request.body)
            params = codec.decode(request.body)
            if operation == _SUBSCRIBE:
                return self._subscribe(codec, params)
            if self.kinesis.faults:
                return self._handle_with_faults(codec, operation, params)
            return self._response(200, codec.content_type, codec.encode(operation, self._perform(operation, params)))
        except Exception as error:
            return self._failure(codec, error)

    def _perform(self, operation: str, params: Any) -> Any:
        return perform(self.kinesis, operation, params, self._clock.time())

    def _handle_with_faults(self, codec: Codec, operation: str, params: Any) -> Response:
        faults = self.kinesis.faults.on_call(target_of(self.kinesis.streams, self.kinesis.tokens, operation, params))
        delivery = Delivery(tuple(faults)) if faults else None
        try:
            _raise_first(faults, operation)
            applies = delivery is None or delivery.applies
            body = codec.encode(operation, self._perform(operation, params)) if applies else b""
        except Exception as error:
            return self._failure(codec, error, delivery)
        return self._response(200, codec.content_type, body, delivery=delivery)

    def _subscribe(self, codec: Codec, params: Any) -> Response:
        if codec is not codec_for(""):
            raise KinesisError("SerializationException", f"{_SUBSCRIBE} is emulated in JSON only.")
        # Found before the call: afterwards is too late to fail it. Kept for the faults that are added later.
        target = target_of(self.kinesis.streams, self.kinesis.tokens, _SUBSCRIBE, params)
        faults = self.kinesis.faults.on_call(target)
        delivery = Delivery(tuple(faults)) if faults else None
        try:
            _raise_first(faults, _SUBSCRIBE)
            subscription: Subscription = self._perform(_SUBSCRIBE, params)
        except Exception as error:
            return self._failure(codec, error, delivery)
        return self._response(200, EVENT_STREAM, b"", subscription=subscription, delivery=delivery, target=target)

    def _failure(self, codec: Codec, error: Exception, delivery: Delivery | None = None) -> Response:
        if not isinstance(error, KinesisError):
            # A bug of the emulator must look like a fault of the service, not like a broken connection.
            _logger.error("internal failure", exc_info=error)
            error = KinesisError("InternalFailure", "internal failure", status=500)
        elif error.code == "UnknownOperationException":
            _logger.warning("refused: %s", error)
        self._statistics.errors[error.code] += 1
        return self._response(error.status, codec.content_type, codec.encode_error(error), delivery=delivery)

    def _response(
        self,
        status: int,
        content_type: str,
        body: bytes,
        *,
        subscription: Subscription | None = None,
        delivery: Delivery | None = None,
        target: Target | None = None,
    ) -> Response:
        if subscription is None:
            return whole_response(self._clock, status, content_type, body, delivery=delivery)
        headers = _headers(self._clock, content_type)
        assert target is not None
        through = partial(
            FaultySend, subscription=subscription, target=target, plan=self.kinesis.faults, clock=self._clock
        )
        return Response(status, headers, body, subscription, delivery, through)

    def _reset(self) -> None:
        self.kinesis.reset()
        if self._dynamodb_streams is not None:
            self._dynamodb_streams.reset()


def _raise_first(faults: Sequence[Fault], operation: str) -> None:
    for fault in faults:
        if fault.kind in ("throttle", "error"):
            raise fault.error(operation)


def _operation(request: Request) -> str:
    target = request.headers.get("x-amz-target", "")
    if request.method != "POST" or not target.startswith(_TARGET_PREFIX):
        raise KinesisError("UnknownOperationException", f"{request.method} {request.path} {target}".strip())
    return target.removeprefix(_TARGET_PREFIX)


_FIREHOSE = "Firehose_20150804."
_DYNAMODB_STREAMS = "DynamoDBStreams_20120810."


class Router:
    """Kinesis, Firehose and DynamoDB Streams on one port, distinguished by X-Amz-Target."""

    def __init__(
        self,
        kinesis: Dispatcher,
        firehose: Firehose | None = None,
        *,
        dynamodb_streams: DynamoDbStreams | None = None,
    ) -> None:
        self._kinesis = kinesis
        self._firehose = firehose
        self._dynamodb_streams = dynamodb_streams

    def handle(self, request: Request) -> Response:
        """Answer a request; never raises for what a client can send."""
        state = self._kinesis.kinesis
        state.region = signed_region(request.headers) or state.config.region
        try:
            return self._handle(request)
        finally:
            # Calls without a request, such as a test's own, are in the emulator's region.
            state.region = state.config.region

    def _handle(self, request: Request) -> Response:
        target = request.headers.get("x-amz-target", "")
        if self._firehose is not None and target.startswith(_FIREHOSE):
            return self._firehose.handle(target.removeprefix(_FIREHOSE), request)
        if self._dynamodb_streams is not None and target.startswith(_DYNAMODB_STREAMS):
            return self._dynamodb_streams.handle(target.removeprefix(_DYNAMODB_STREAMS), request)
        return self._kinesis.handle(request)
