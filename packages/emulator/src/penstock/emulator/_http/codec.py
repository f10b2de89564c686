"""The two encodings of requests and answers: AWS JSON 1.1, and CBOR as the SDKs for Java use it.

In CBOR a blob is a byte string, and a timestamp is tag 1 around *milliseconds*, against the tag's definition (see
aws-sdk-java-v2#4661), in both directions. Everywhere else here a timestamp is a float of seconds.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pybase64
from botocore.model import ListShape, MapShape, StructureShape

from penstock.emulator._operations.validation import service_model
from penstock.emulator.errors import KinesisError

try:
    import cbor2
except ImportError:
    # It has no wheels here.
    cbor2 = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.model import Shape

_EPOCH_TAG = 1


class Codec(Protocol):
    """One encoding."""

    content_type: str

    def decode(self, body: bytes) -> Any:
        """The parameters of a request.

        Raises:
            KinesisError: SerializationException.
        """

    def encode(self, operation: str, answer: dict[str, Any]) -> bytes:
        """The body of an answer."""

    def encode_error(self, error: KinesisError) -> bytes:
        """The body of an error's answer."""


class JsonCodec:
    """AWS JSON 1.1."""

    content_type = "application/x-amz-json-1.1"

    def decode(self, body: bytes) -> Any:
        """The parameters of a request."""
        try:
            return msgspec.json.decode(body) if body else {}
        except msgspec.DecodeError as error:
            raise KinesisError("SerializationException", "the body is not JSON") from error

    def encode(self, operation: str, answer: dict[str, Any]) -> bytes:
        """The body of an answer; nothing for an operation that answers nothing."""
        return msgspec.json.encode(answer) if answer else b""

    def encode_error(self, error: KinesisError) -> bytes:
        """The body of an error's answer."""
        return msgspec.json.encode({"__type": error.code, "message": error.message})


class CborCodec:
    """CBOR."""

    content_type = "application/x-amz-cbor-1.1"

    def decode(self, body: bytes) -> Any:
        """The parameters of a request; timestamps in seconds, blobs as bytes."""
        try:
            return cbor2.loads(body, semantic_decoders={_EPOCH_TAG: _seconds}) if body else {}
        except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
            raise KinesisError("SerializationException", "the body is not CBOR") from error

    def encode(self, operation: str, answer: dict[str, Any]) -> bytes:
        """The body of an answer; nothing for an operation that answers nothing."""
        return cbor2.dumps(_converter(operation)(answer)) if answer else b""

    def encode_error(self, error: KinesisError) -> bytes:
        """The body of an error's answer."""
        return cbor2.dumps({"__type": error.code, "message": error.message})


class NoCborCodec(JsonCodec):
    """For requests in CBOR where it cannot be read: they are refused, in JSON."""

    def decode(self, body: bytes) -> Any:
        """Refuse.

        Raises:
            KinesisError: always.
        """
        raise KinesisError(
            "SerializationException", "CBOR needs cbor2 6.1 or newer here: send application/x-amz-json-1.1"
        )


def _reads_cbor() -> bool:
    return cbor2 is not None and "semantic_decoders" in inspect.signature(cbor2.loads).parameters


_JSON = JsonCodec()
_CBOR = CborCodec() if _reads_cbor() else NoCborCodec()


def codec_for(content_type: str) -> Codec:
    """The codec of a request by its Content-Type: JSON for everything that is not CBOR."""
    return _CBOR if content_type.partition(";")[0].strip().lower() == CborCodec.content_type else _JSON


def _seconds(value: Any, _immutable: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("a timestamp has to be a number")
    return value / 1000


@cache
def _converter(operation: str) -> Callable[[Any], Any]:
    shape = service_model().operation_model(operation).output_shape
    return _compile(shape) if shape is not None else lambda value: value


def _compile(shape: Shape) -> Callable[[Any], Any]:
    if isinstance(shape, StructureShape):
        members = {name: _compile(member) for name, member in shape.members.items()}

        def structure(value: Any) -> Any:
            # A null is left out: readers of CBOR take it for a value.
            return {name: members[name](item) for name, item in _plain(value).items() if item is not None}

        return structure
    if isinstance(shape, ListShape):
        item = _compile(shape.member)
        return lambda value: [item(element) for element in _plain(value)]
    if isinstance(shape, MapShape):
        entry = _compile(shape.value)
        return lambda value: {key: entry(element) for key, element in value.items()}
    match shape.type_name:
        case "timestamp":
            return lambda value: cbor2.CBORTag(_EPOCH_TAG, round(value * 1000))
        case "blob":
            return pybase64.b64decode
    return lambda value: value


def _plain(value: Any) -> Any:
    # Records are kept as the JSON in which they are sent.
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
