"""Refuses calls that do not carry a token which the server takes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc

from penstock.rpc._token_file import Token, TokenFile, verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.rpc._security import ServerSecurity

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_SCHEME = "Bearer "


def token_check(security: ServerSecurity) -> Callable[[str], str | None]:
    """Tells why a token that was sent is refused; None when it is taken. A changed file counts from the next call on.

    For servers of other protocols; those that want no token take none.

    Raises:
        RpcOptionError: the file of tokens cannot be read, or holds none.
    """
    if security.token_file is not None:
        file = TokenFile(security.token_file)
        return lambda sent: verdict(sent, file.tokens(), datetime.now(UTC))
    fixed = () if security.token is None else (Token(security.token),)
    return lambda sent: verdict(sent, fixed, datetime.now(UTC))


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Refuses calls without a valid token, but for health checks. A changed file counts from the next call on.

    No message of a caller without a token is read. A health check of such a caller is answered for the server as a
    whole, whichever service it names.

    Raises:
        RpcOptionError: the file of tokens cannot be read, or holds none.
    """

    def __init__(self, security: ServerSecurity) -> None:
        self._check = token_check(security)
        self._refusals: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The method's handler, or one that refuses."""
        metadata = {str(key): value for key, value in handler_call_details.invocation_metadata}
        sent = str(metadata.get("authorization", ""))
        token = sent.removeprefix(_SCHEME) if sent.startswith(_SCHEME) else ""
        reason = self._check(token)
        if reason is None:
            return await continuation(handler_call_details)
        if handler_call_details.method == _HEALTH_CHECK:
            return _unread(await continuation(handler_call_details))
        return self._refusal(reason)

    def _refusal(self, reason: str) -> grpc.RpcMethodHandler[Any, Any]:
        if reason not in self._refusals:

            async def refuse(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
                yield  # it never comes to that; but handlers of streams are generators

            # A unary handler is called only when the whole message is in memory; this one reads none of it.
            self._refusals[reason] = grpc.stream_stream_rpc_method_handler(refuse)
        return self._refusals[reason]


def _unread(handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """The handler of health checks, which takes the message for an empty one."""
    behaviour: Any = handler.unary_unary
    deserialize: Any = handler.request_deserializer

    async def answer(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        yield await behaviour(deserialize(b""), context)

    return grpc.stream_stream_rpc_method_handler(answer, response_serializer=handler.response_serializer)
