"""Refuses calls that do not carry a token which the server takes."""

from __future__ import annotations

import inspect
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc

from penstock.rpc._security.principals import Principal, PrincipalsFile, everybody
from penstock.rpc._security.token_file import MIN_TOKEN_CHARACTERS, Token, TokenFile, verdict
from penstock.rpc._server.attempts import Attempts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from penstock.rpc._security.security import ServerSecurity

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_SCHEME = "Bearer "
# Told as UNAVAILABLE: clients with a right token try again by themselves.
_TOO_MANY = "too many wrong tokens came from this address: wait for some seconds"


class Callers:
    """Who calls, by token and certificate. A changed file counts from the next call on.

    Args:
        security: what the server demands.

    Raises:
        RpcOptionError: the file of tokens or principals cannot be read, or holds none.
    """

    def __init__(self, security: ServerSecurity) -> None:
        self._wants_token = security.wants_token
        self._shows_certificate = security.client_ca_file is not None
        self._principals: PrincipalsFile | None = None
        self._tokens: Callable[[], Sequence[Token]]
        if security.principals is not None:
            self._principals = PrincipalsFile(security.principals)
        if security.token_file is not None:
            self._tokens = TokenFile(security.token_file, least_characters=MIN_TOKEN_CHARACTERS).tokens
        else:
            fixed = () if security.token is None else (Token(security.token),)
            self._tokens = lambda: fixed
        self._limited = () if security.limited_token is None else (Token(security.limited_token),)
        self._limited_to = security.limited_to
        self._revocations = security.revocations()
        changing = (security.token_file, security.principals, security.client_crl_file)
        self.can_change = any(file is not None for file in changing)
        """Whether who may call can change while the server runs."""

    @property
    def has_principals(self) -> bool:
        """Whether callers differ in what they may do."""
        return self._principals is not None

    @property
    def checks_certificates(self) -> bool:
        """Whether certificates can be revoked."""
        return self._revocations is not None

    def certificate_refusal(self, certificates: Sequence[bytes]) -> str | None:
        """Why a client with this certificate, and those above it, is refused whatever it sends; None if it is not."""
        return None if self._revocations is None else self._revocations.refusal(certificates)

    def refusal(self, token: str) -> str | None:
        """Why a token that was sent is refused, or that none was; None when it is taken."""
        if self._principals is not None:
            return self._principals.knows(token)
        return verdict(token, self._tokens(), datetime.now(UTC))

    def is_limited_to(self, token: str, method: str) -> bool:
        """Whether a token that is good for some methods alone is good for this one, a full path."""
        return method in self._limited_to and verdict(token, self._limited, datetime.now(UTC)) is None

    def by_token(self, token: str) -> Principal | None:
        """Whose token it is, before a certificate is looked at; None where there are no principals."""
        return None if self._principals is None else self._principals.by_token(token)

    def find(self, token: str, names: Iterable[str]) -> Principal | str:
        """Who sends a token and shows a certificate of these names; or why it is refused."""
        if self._principals is not None:
            return self._principals.find(token, names)
        if self._wants_token:
            return self.refusal(token) or everybody("token")
        if not self._shows_certificate:
            return everybody("anybody")
        return everybody(f"certificate {next(iter(names), '')}".strip())


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Refuses calls without a valid token, but for health checks. A changed file counts from the next call on.

    No message of a caller without a token is read. A health check of such a caller is answered for the server as a
    whole, whichever service it names. Refusals of wrong tokens are held back, the longer the more there were.

    Args:
        callers: whose tokens are taken.
        attempts: counts wrong tokens.
        refused: called with each refusal: method, address, and why.
    """

    def __init__(
        self, callers: Callers, attempts: Attempts, refused: Callable[[str, str, str], None] = lambda *_: None
    ) -> None:
        self._callers = callers
        self._attempts = attempts
        self._refused = refused
        self._known: dict[str, tuple[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The method's handler, or one that refuses."""
        method = handler_call_details.method
        token = token_of(handler_call_details.invocation_metadata)
        reason = self._callers.refusal(token)
        if reason is None or self._callers.is_limited_to(token, method):
            handler = await continuation(handler_call_details)
            known = self._known.get(method)
            if known is None or known[0] is not handler:
                known = self._known[method] = (handler, self._admitting(handler))
            return known[1]  # type: ignore[no-any-return]  # a handler
        if method == _HEALTH_CHECK:
            return self._unread(await continuation(handler_call_details), token)
        return self._refusal(method, reason, token)

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
            address, token = address_of(self._attempts, context), token_of(metadata)
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

    def _refusal(self, method: str, reason: str, token: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(context: grpc.aio.ServicerContext[Any, Any]) -> None:
            self._refused(method, address_of(self._attempts, context), reason)
            await self._count(context, token)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)

        return unread(refuse)

    def _unread(self, handler: grpc.RpcMethodHandler[Any, Any], token: str) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of health checks, which takes the message for an empty one."""
        behaviour: Any = handler.unary_unary
        guarded: Any = handler.stream_stream
        deserialize: Any = handler.request_deserializer

        async def nothing() -> AsyncIterator[Any]:
            yield deserialize(b"")

        async def answer(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            # It differs from what a right token is answered: who guesses would see that.
            await self._count(context, token)
            if guarded is None:
                yield await behaviour(deserialize(b""), context)
                return
            # Where certificates are looked at, too.
            async with aclosing(guarded(nothing(), context)) as answers:
                async for one in answers:
                    yield one

        return grpc.stream_stream_rpc_method_handler(answer, response_serializer=handler.response_serializer)

    async def _count(self, context: Any, token: str) -> None:
        # No token is not a guess.
        if token:
            address = address_of(self._attempts, context)
            if not self._attempts.may_try(address, token):
                await context.abort(grpc.StatusCode.UNAVAILABLE, _TOO_MANY)
            await self._attempts.hold_back(address)


def unread(refuse: Callable[[Any], Awaitable[None]]) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that refuses without reading a message, which a unary one would have in memory before it is called.

    Args:
        refuse: ends the call, given its context.
    """

    async def call(_requests: Any, context: Any) -> AsyncIterator[Any]:
        await refuse(context)
        yield  # it never comes to that; but handlers of streams are generators

    return grpc.stream_stream_rpc_method_handler(call)


def address_of(attempts: Attempts, context: Any) -> str:
    """Where a call comes from, behind proxies that are trusted; empty for a Unix socket."""
    metadata = context.invocation_metadata()
    forwarded = ",".join(str(value) for key, value in metadata or () if key == "x-forwarded-for")
    return attempts.address(context.peer(), forwarded)


def token_of(metadata: Any) -> str:
    """The bearer token in a call's metadata; empty without one."""
    sent = str({str(key): value for key, value in metadata or ()}.get("authorization", ""))
    return sent.removeprefix(_SCHEME) if sent.startswith(_SCHEME) else ""
