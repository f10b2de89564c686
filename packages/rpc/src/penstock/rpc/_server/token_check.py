"""Refuses calls that do not carry a token which the server takes."""

from __future__ import annotations

import inspect
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc

from penstock.rpc._security.token_file import MIN_TOKEN_CHARACTERS, Token, TokenFile, verdict
from penstock.rpc._server.attempts import Attempts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.rpc._security.security import ServerSecurity

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_SCHEME = "Bearer "
# Told as UNAVAILABLE: clients with a right token try again by themselves.
_TOO_MANY = "too many wrong tokens came from this address: wait for some seconds"


def token_check(security: ServerSecurity) -> Callable[[str], str | None]:
    """Tells why a token that was sent is refused; None when it is taken. A changed file counts from the next call on.

    For servers of other protocols; those that want no token take none.

    Raises:
        RpcOptionError: the file of tokens cannot be read, or holds none.
    """
    if security.token_file is not None:
        file = TokenFile(security.token_file, least_characters=MIN_TOKEN_CHARACTERS)
        return lambda sent: verdict(sent, file.tokens(), datetime.now(UTC))
    fixed = () if security.token is None else (Token(security.token),)
    return lambda sent: verdict(sent, fixed, datetime.now(UTC))


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Refuses calls without a valid token, but for health checks. A changed file counts from the next call on.

    No message of a caller without a token is read. A health check of such a caller is answered for the server as a
    whole, whichever service it names. Refusals of wrong tokens are held back, the longer the more there were.

    Args:
        security: what the server demands.
        attempts: counts wrong tokens.

    Raises:
        RpcOptionError: the file of tokens cannot be read, or holds none.
    """

    def __init__(self, security: ServerSecurity, attempts: Attempts) -> None:
        self._check = token_check(security)
        self._attempts = attempts
        self._known: dict[str, tuple[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The method's handler, or one that refuses."""
        method = handler_call_details.method
        token = _token_of(handler_call_details.invocation_metadata)
        reason = self._check(token)
        if reason is None:
            handler = await continuation(handler_call_details)
            known = self._known.get(method)
            if known is None or known[0] is not handler:
                known = self._known[method] = (handler, self._admitting(handler))
            return known[1]  # type: ignore[no-any-return]  # a handler
        if method == _HEALTH_CHECK:
            return self._unread(await continuation(handler_call_details), token)
        return self._refusal(reason, token)

    def _admitting(self, handler: Any) -> Any:
        """The handler, for those whose tokens are looked at."""
        if handler is None:
            return None
        kind = ("stream" if handler.request_streaming else "unary") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        behaviour = getattr(handler, kind)

        async def admit(context: Any) -> None:
            metadata = context.invocation_metadata()
            address, token = self._address(context, metadata), _token_of(metadata)
            if not self._attempts.may_try(address, token):
                await context.abort(grpc.StatusCode.UNAVAILABLE, _TOO_MANY)
            self._attempts.right(address, token)

        async def single(request: Any, context: Any) -> Any:
            await admit(context)
            return await behaviour(request, context)

        async def several(request: Any, context: Any) -> AsyncIterator[Any]:
            await admit(context)
            async with aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    yield answer

        if inspect.isasyncgenfunction(behaviour):
            wrapped: Any = several
        elif inspect.iscoroutinefunction(behaviour):
            wrapped = single
        else:
            # Blocking handlers are not ours, and have nothing but health and reflection.
            return handler
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            wrapped,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _refusal(self, reason: str, token: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            await self._count(context, token)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
            yield  # it never comes to that; but handlers of streams are generators

        # A unary handler is called only when the whole message is in memory; this one reads none of it.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _unread(self, handler: grpc.RpcMethodHandler[Any, Any], token: str) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of health checks, which takes the message for an empty one."""
        behaviour: Any = handler.unary_unary
        deserialize: Any = handler.request_deserializer

        async def answer(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            # It differs from what a right token is answered: who guesses would see that.
            await self._count(context, token)
            yield await behaviour(deserialize(b""), context)

        return grpc.stream_stream_rpc_method_handler(answer, response_serializer=handler.response_serializer)

    async def _count(self, context: Any, token: str) -> None:
        # No token is no guess.
        if token:
            address = self._address(context, context.invocation_metadata())
            if not self._attempts.may_try(address, token):
                await context.abort(grpc.StatusCode.UNAVAILABLE, _TOO_MANY)
            await self._attempts.hold_back(address)

    def _address(self, context: Any, metadata: Any) -> str:
        forwarded = ",".join(str(value) for key, value in metadata or () if key == "x-forwarded-for")
        return self._attempts.address(context.peer(), forwarded)


def _token_of(metadata: Any) -> str:
    sent = str({str(key): value for key, value in metadata or ()}.get("authorization", ""))
    return sent.removeprefix(_SCHEME) if sent.startswith(_SCHEME) else ""
