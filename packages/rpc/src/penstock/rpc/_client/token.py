"""Interceptors that add the bearer token to the metadata of every call.

gRPC's own call credentials refuse channels without TLS, also on loopback, where a token is worth having.
"""

# The published stubs make these classes generic, which they are not at run time, and allow no
# function that serves all kinds of call.
# mypy: disable-error-code="type-arg,assignment"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str]] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class TokenInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """For blocking channels. `token` is asked at each call."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def _send(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        with_token = _CallDetails(
            details.method,
            details.timeout,
            [*(details.metadata or ()), ("authorization", f"Bearer {self._token()}")],
            details.credentials,
            getattr(details, "wait_for_ready", None),
            getattr(details, "compression", None),
        )
        return continuation(with_token, request)

    intercept_unary_unary = _send
    intercept_unary_stream = _send
    intercept_stream_unary = _send
    intercept_stream_stream = _send


class _AioToken:
    """For asyncio channels, where gRPC wants one class per kind of call."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def _send(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        details = client_call_details
        metadata = grpc.aio.Metadata(*(details.metadata or ()))
        metadata.add("authorization", f"Bearer {self._token()}")
        with_token = grpc.aio.ClientCallDetails(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
        )
        return await continuation(with_token, request)


class _UnaryUnary(_AioToken, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary = _AioToken._send


class _UnaryStream(_AioToken, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream = _AioToken._send


class _StreamUnary(_AioToken, grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary = _AioToken._send


class _StreamStream(_AioToken, grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream = _AioToken._send


def aio_token_interceptors(token: Callable[[], str]) -> list[Any]:
    """One interceptor per kind of call; `token` is asked at each."""
    return [kind(token) for kind in (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)]
