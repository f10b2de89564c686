"""The interceptor of a server: checks messages and callers at each call, and again while the call lasts."""

# The published stubs make these classes generic, which they are not at run time.
# mypy: disable-error-code="type-arg"

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from penstock.rpc._security.principals import Principal, everybody
from penstock.rpc._server.rules import CallRules, rules_of
from penstock.rpc._server.token_check import address_of, token_of

if TYPE_CHECKING:
    from penstock.rpc._server.audit import AuditLog
    from penstock.rpc._server.token_check import Callers

_log = logging.getLogger("penstock.rpc")
RECHECK_SECONDS: Final = 15.0
"""Between two checks of the caller of a call that lasts."""
_OUTDATED_SECONDS: Final = 1.0
"""After this time a call that answers is checked again before its answer is sent."""
_MOST_REMEMBERED: Final = 10_000
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
"""Open to all callers. `Watch` is not, because it lasts."""
_OLD: Final = "the token or certificate with which this call was begun is not taken any more: call again with a new one"
_UNKNOWN: Final = "the service has no such method"
_NO_RULES: Final = "no principal may call this: no contract of the service has rules for it"
_MALFORMED: Final = "a message of the call is not what the contract says"
_INTERNAL: Final = "the service failed; its log says why"
_Status = tuple[grpc.StatusCode, str]


@dataclass(frozen=True)
class _Broken:
    """A message that breaks the contract. The call is refused when it reads the message."""

    reason: str


def _deserializer(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    # A message's own `FromString`.
    kind = getattr(getattr(deserialize, "__self__", None), "DESCRIPTOR", None)
    rules = None if kind is None else rules_of(kind)

    def read(content: bytes) -> Any:
        if rules is not None and (reason := rules.too_long(content)):
            return _Broken(reason)
        try:
            message = deserialize(content)
        except Exception:
            # gRPC would send the text of the error.
            return _Broken(_MALFORMED)
        reason = None if rules is None else rules.refusal(message)
        return message if reason is None else _Broken(reason)

    return read


def _handler(call: Callable[[Any, Any], Awaitable[None]], of: Any = None) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that reads a message only when the call asks for it, and writes its answers directly.

    All kinds of calls are alike on the wire. A call that writes directly ends in the task in which it began, also
    when it is cancelled while it writes.
    """

    async def behave(messages: Any, context: Any) -> AsyncIterator[Any]:
        await call(messages, context)
        # The interceptors around this one expect a generator.
        for answer in tuple[Any, ...]():
            yield answer

    if of is None:
        return grpc.stream_stream_rpc_method_handler(behave)
    return grpc.stream_stream_rpc_method_handler(
        behave,
        request_deserializer=_deserializer(of.request_deserializer),
        response_serializer=of.response_serializer,
    )


def _generator_of(handler: Any) -> Any:
    """What a handler of any kind does, as an async generator of answers to messages; None for blocking handlers."""
    kind = ("stream" if handler.request_streaming else "unary") + (
        "_stream" if handler.response_streaming else "_unary"
    )
    behaviour = getattr(handler, kind)
    is_generator = inspect.isasyncgenfunction(behaviour)
    if not is_generator and not inspect.iscoroutinefunction(behaviour):
        return None

    async def call(messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        request: Any = messages
        if not handler.request_streaming:
            request = await anext(messages, None)
            if request is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
        if not is_generator:
            yield await behaviour(request, context)
            return
        async with aclosing(behaviour(request, context)) as answers:
            async for answer in answers:
                yield answer

    return call


async def _one(message: Any) -> AsyncIterator[Any]:
    yield message


class Access(grpc.aio.ServerInterceptor):
    """Refuses messages that break the contract and what a caller may not do; writes the audit log.

    It also ends calls whose callers lost their rights, and hides what is inside an unforeseen error.

    Args:
        callers: who calls.
        rules: of the methods, by their full paths.
        audit: the log, if there is one.
        recheck_seconds: between two checks of the caller of a call that lasts.
        calls_at_once: of a caller for whom the file of principals has no number; None: no bound.
    """

    def __init__(
        self,
        callers: Callers,
        rules: Mapping[str, CallRules],
        audit: AuditLog | None = None,
        *,
        recheck_seconds: float = RECHECK_SECONDS,
        calls_at_once: int | None = None,
    ) -> None:
        self.callers = callers
        self.audit = audit
        self.calls_at_once = calls_at_once
        self.open_calls: Counter[str] = Counter()
        """By caller."""
        self.recheck_seconds = recheck_seconds
        self._looks = callers.has_principals or calls_at_once is not None or callers.can_change or audit is not None
        self._rules = rules
        self._known: dict[str, tuple[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler, or one that refuses."""
        method, token = handler_call_details.method, token_of(handler_call_details.invocation_metadata)
        stranger = self.callers.refusal(token) if self.callers.wants_token else None
        if stranger is not None and not self.callers.is_limited_to(token, method):
            # No message of a caller without a token is read.
            if method != _HEALTH_CHECK:
                return self._refusal("nobody", method, grpc.StatusCode.UNAUTHENTICATED, stranger)
            handler = await continuation(handler_call_details)
            return self._handler_of(handler, method, handler.request_deserializer(b""))  # type: ignore[misc]  # has one
        handler = await continuation(handler_call_details)
        if handler is None:
            unknown = self._refusal("nobody", method, grpc.StatusCode.UNIMPLEMENTED, _UNKNOWN)
            return None if self.audit is None else unknown
        caller = None if method == _HEALTH_CHECK else self.callers.by_token(token)
        reason = None if caller is None else self.may_call(caller, method)
        if caller is not None and reason is not None:
            return self._refusal(caller.name, method, grpc.StatusCode.PERMISSION_DENIED, reason)
        known = self._known.get(method)
        if known is None or known[0] is not handler:
            known = self._known[method] = (handler, self._handler_of(handler, method))
        return known[1]

    def _handler_of(self, handler: Any, method: str, instead: Any = None) -> Any:
        """The handler with all checks. Blocking handlers stay as they are.

        Args:
            handler: of the servicer.
            method: its full path.
            instead: the message to take in place of the caller's.
        """
        behaviour = _generator_of(handler)
        if behaviour is None:
            return handler
        rules = self._rules.get(method) if self._looks and method != _HEALTH_CHECK else None

        async def call(messages: Any, context: Any) -> None:
            taken = messages if instead is None else _one(instead)
            await _Call(self, method, rules, context).answer(behaviour, taken)

        return _handler(call, handler)

    def may_call(self, caller: Principal, method: str) -> str | None:
        """Why the method is refused, whatever is in its message; None if it is not."""
        rules = self._rules.get(method)
        if rules is None:
            return None if caller.is_everybody else _NO_RULES
        # Health and reflection are open to every principal.
        return caller.may_call(rules.service, rules.name, needs_admin=rules.needs_admin) if rules.service else None

    def find(self, context: Any) -> Principal | str:
        """The caller, or why it is refused."""
        names = context.auth_context().get("x509_subject_alternative_name", ())
        return self.callers.find(
            token_of(context.invocation_metadata()), [name.decode(errors="replace") for name in names]
        )

    async def refuse(
        self, context: Any, who: str, method: str, status: _Status, what: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Write the refusal into the audit log, and end the call."""
        if self.audit is not None:
            code, reason = status[0].name, status[1]
            address = address_of(context)
            self.audit.write("refused", who=who, address=address, outcome=code, method=method, reason=reason, what=what)
        await context.abort(*status)

    def _refusal(self, who: str, method: str, code: grpc.StatusCode, reason: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(_messages: Any, context: Any) -> None:
            found = reason if code is grpc.StatusCode.UNAUTHENTICATED else self.find(context)
            # A caller that needs a certificate, too, does not learn by its token alone what it might do.
            status = (grpc.StatusCode.UNAUTHENTICATED, found) if isinstance(found, str) else (code, reason)
            await self.refuse(context, who if isinstance(found, str) else found.name, method, status)

        return _handler(refuse)


class _Call:
    """A call: who made it, what it has used so far, and why it has to end. Without rules only messages are checked."""

    def __init__(self, access: Access, method: str, rules: CallRules | None, context: Any) -> None:
        self._access = access
        self._method = method
        self._rules = rules
        self._context = context
        self._caller = everybody("anybody")
        self._ending: _Status | None = None
        self._limit: asyncio.Timeout | None = None
        self._used: dict[tuple[str, str], None] = {}
        self._changed: Any = None
        self._looked_at = 0.0
        self._what: Sequence[tuple[str, str]] = ()
        self._watching: asyncio.TimerHandle | None = None

    async def answer(self, behaviour: Any, messages: AsyncIterator[Any]) -> None:
        """Send what the behaviour answers to what the caller may ask."""
        opened, calls = None if self._rules is None else await self._admit(self._rules), self._access.open_calls
        try:
            await self._answer(behaviour, messages)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as error:
            # The client has gone. gRPC is about to cancel this call, and would log any other error.
            _log.debug("the client of %s has gone: %s", self._method, error)
            raise asyncio.CancelledError from error
        finally:
            if self._watching is not None:
                self._watching.cancel()
            if opened is not None:
                calls[opened] -= 1
                if not calls[opened]:
                    del calls[opened]

    async def _answer(self, behaviour: Any, messages: AsyncIterator[Any]) -> None:
        context = self._context
        try:
            async with asyncio.timeout(None) as self._limit:
                async with aclosing(behaviour(self._checked(messages), context)) as answers:
                    async for answer in answers:
                        await self._send(answer)
            if self._ending is None:
                self._audit("OK")
        except grpc.aio.AbortError:
            code = context.code()
            self._audit(getattr(code, "name", "") or "ABORTED", str(context.details() or ""))
            raise
        except asyncio.CancelledError:
            self._audit("CANCELLED")
            raise
        except grpc.aio.BaseError:
            raise
        except Exception as error:
            # A call that has to end stops with TimeoutError.
            if self._ending is None:
                _log.error("%s failed", self._method, exc_info=error)
                self._audit("INTERNAL", _INTERNAL)
                await context.abort(grpc.StatusCode.INTERNAL, _INTERNAL)
        if self._ending is not None:
            await self._access.refuse(context, self._caller.name, self._method, self._ending, self._what)

    async def _admit(self, rules: CallRules) -> str:
        """The name of the caller, with the call counted among its open ones."""
        access, method = self._access, self._method
        found = access.find(self._context)
        if isinstance(found, str):
            await access.refuse(self._context, "nobody", method, (grpc.StatusCode.UNAUTHENTICATED, found))
        assert isinstance(found, Principal)
        self._caller = found
        if reason := access.may_call(found, method):
            await access.refuse(self._context, found.name, method, (grpc.StatusCode.PERMISSION_DENIED, reason))
        if reason := found.may_open(access.open_calls[found.name], access.calls_at_once):
            await access.refuse(self._context, found.name, method, (grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
        access.open_calls[found.name] += 1
        self._looked(asyncio.get_running_loop())
        return found.name

    def _looked(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looked_at = loop.time()
        self._watching = loop.call_later(self._access.recheck_seconds, self._look_again)

    async def _checked(self, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
        rules = self._rules
        changes = rules is not None and self._access.audit is not None and rules.change != ""
        async for message in messages:
            if isinstance(message, _Broken):
                await self._stop((grpc.StatusCode.INVALID_ARGUMENT, message.reason))
            if rules is not None and (changes or not self._caller.is_everybody):
                used = rules.used(message)
                reason = rules.refusal(self._caller, message, used)
                if reason is not None:
                    self._what = used
                    await self._stop((grpc.StatusCode.PERMISSION_DENIED, reason))
                if len(self._used) < _MOST_REMEMBERED:
                    self._used.update(dict.fromkeys(used))
                if self._changed is None and rules.changes(message):
                    self._changed, self._what = True, used
                rules.take_as_own(self._caller, message)
            yield message

    async def _stop(self, status: _Status) -> None:
        self._end(status)
        # What waits for messages is cancelled in a moment.
        await asyncio.Event().wait()

    async def _send(self, answer: Any) -> None:
        if self._rules is not None:
            is_old = asyncio.get_running_loop().time() - self._looked_at > _OUTDATED_SECONDS
            if is_old and self._access.callers.can_change:
                # What the call waited for is not granted to a caller that lost its rights in the meantime.
                self._look_again()
                if self._ending is not None:
                    await asyncio.Event().wait()
            self._audit("OK")
            self._rules.tell_as_own(self._caller, answer)
        await self._context.write(answer)

    def _audit(self, outcome: str, reason: str = "") -> None:
        """Once: a stream has changed something when it begins to answer."""
        if self._changed and self._access.audit is not None and self._rules is not None:
            self._changed = False
            who, address, change = self._caller.name, address_of(self._context), self._rules.change
            self._access.audit.write(change, who=who, address=address, outcome=outcome, reason=reason, what=self._what)

    def _look_again(self) -> None:
        """End the call when its caller may not continue."""
        if self._watching is not None:
            self._watching.cancel()
        found = self._access.find(self._context)
        if isinstance(found, str):
            self._end((grpc.StatusCode.UNAUTHENTICATED, _OLD))
            return
        reason = self._access.may_call(found, self._method)
        for kind, value in self._used:
            reason = reason or found.may_use(kind, value)
        if reason is not None:
            self._end((grpc.StatusCode.PERMISSION_DENIED, reason))
            return
        self._caller = found
        self._looked(asyncio.get_running_loop())

    def _end(self, status: _Status) -> None:
        if self._ending is None and self._limit is not None:
            self._ending = status
            self._limit.reschedule(asyncio.get_running_loop().time())
