"""From an HTTP request to an HTTP response, without I/O."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING

import msgspec

from ._eventstream import CONTENT_TYPE as EVENT_STREAM
from ._operations import perform
from ._subscription import Subscription
from .errors import KinesisError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._clock import Clock
    from ._kinesis import Kinesis

_logger = logging.getLogger(__name__)
_TARGET_PREFIX = "Kinesis_20131202."
_JSON = "application/x-amz-json-1.1"

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


class Dispatcher:
    """Answers requests from one account, at the time of a clock."""

    def __init__(self, kinesis: Kinesis, clock: Clock, *, commit: Callable[[str], None] | None = None) -> None:
        self._kinesis = kinesis
        self._clock = clock
        # Called with the operation after it was carried out and before it is answered; raises a KinesisError to have
        # that answered instead.
        self._commit = commit

    def handle(self, request: Request) -> Response:
        """Answer a request; never raises for what a client can send."""
        try:
            operation = _operation(request)
            answer = perform(self._kinesis, operation, _params(request), self._clock.time())
            if self._commit is not None:
                self._commit(operation)
        except KinesisError as error:
            if error.code == "UnknownOperationException":
                _logger.warning("refused: %s", error)
            body = msgspec.json.encode({"__type": error.code, "message": error.message})
            return self._response(error.status, _JSON, body)
        except Exception:
            # A bug of ours must look like a fault of the service, not like a broken connection.
            _logger.exception("internal failure")
            return self._response(500, _JSON, b'{"__type":"InternalFailure","message":"internal failure"}')
        if isinstance(answer, Subscription):
            return self._response(200, EVENT_STREAM, b"", answer)
        return self._response(200, _JSON, msgspec.json.encode(answer) if answer else b"")

    def _response(
        self, status: int, content_type: str, body: bytes, subscription: Subscription | None = None
    ) -> Response:
        headers = [
            ("x-amzn-requestid", str(uuid.uuid4())),
            ("date", formatdate(self._clock.time(), usegmt=True)),
            ("content-type", content_type),
        ]
        if subscription is None:
            headers.append(("content-length", str(len(body))))
        return Response(status, headers, body, subscription)


def _operation(request: Request) -> str:
    target = request.headers.get("x-amz-target", "")
    if request.method != "POST" or not target.startswith(_TARGET_PREFIX):
        raise KinesisError("UnknownOperationException", f"{request.method} {request.path} {target}".strip())
    return target.removeprefix(_TARGET_PREFIX)


def _params(request: Request) -> object:
    try:
        return msgspec.json.decode(request.body) if request.body else {}
    except msgspec.DecodeError as error:
        raise KinesisError("SerializationException", "the body is not JSON") from error
