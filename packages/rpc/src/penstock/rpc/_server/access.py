"""Who may do what, asked at each call: before its message is read, and again for what is in it."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc

from penstock.rpc._security.principals import Principal
from penstock.rpc._server.guard import Broken, Handled, stream_handler
from penstock.rpc._server.rules import CallRules
from penstock.rpc._server.token_check import address_of, token_of, unread, unread_check

if TYPE_CHECKING:
    from penstock.rpc._server.audit import AuditLog
    from penstock.rpc._server.token_check import Callers

RECHECK_SECONDS: Final = 15.0
"""Between two looks at whether the caller of a stream may still call."""
_OUTDATED_SECONDS: Final = 1.0
"""After so long a call that answers is checked again before its answer is sent."""
_MOST_REMEMBERED: Final = 10_000
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
"""Open to all; watching is not, as such a call lasts."""
_OLD: Final = "the token or certificate with which this call was begun is not taken any more: call again with a new one"
_UNKNOWN: Final = "the service has no such method"
_NO_RULES: Final = "no principal may call this: no contract of the service has rules for it"
_Status = tuple[grpc.StatusCode, str]


class Access(Handled):
    """Refuses what a caller may not do; ends streams of those who may not any more; writes the audit log.

    Args:
        callers: who calls.
        rules: of the methods, by their full paths.
        audit: the log, if there is one.
        recheck_seconds: between two looks at the caller of a stream.
        calls_at_once: of a caller of whom nothing else is said; None: as many as it likes.
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
        super().__init__()
        self.callers = callers
        self.audit = audit
        self.calls_at_once = calls_at_once
        self.open_calls: Counter[str] = Counter()
        """By caller."""
        self._looks_at_all = callers.has_principals or calls_at_once is not None
        self.recheck_seconds = recheck_seconds
        self._rules = rules

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
            if method == _HEALTH_CHECK:
                return unread_check(await continuation(handler_call_details))
            return self._refusal("nobody", method, grpc.StatusCode.UNAUTHENTICATED, stranger)
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return (
                None if self.audit is None else self._refusal("nobody", method, grpc.StatusCode.UNIMPLEMENTED, _UNKNOWN)
            )
        if method == _HEALTH_CHECK:
            return handler
        caller = self.callers.by_token(token)
        reason = None if caller is None else self.may_call(caller, method)
        if caller is not None and reason is not None:
            return self._refusal(caller.name, method, grpc.StatusCode.PERMISSION_DENIED, reason)
        return self.made_of(handler, method)

    def may_call(self, caller: Principal, method: str) -> str | None:
        """Why the method is refused, whatever is in its message; None if it is not."""
        rules = self._rules.get(method)
        if rules is None:
            return None if caller.is_everybody else _NO_RULES
        # Health and reflection are open to every principal.
        return caller.may_call(rules.service, rules.name, needs_admin=rules.needs_admin) if rules.service else None

    def find(self, context: Any) -> Principal | str:
        """Who calls; or why it is nobody."""
        names = context.auth_context().get("x509_subject_alternative_name", ())
        return self.callers.find(
            token_of(context.invocation_metadata()), [name.decode(errors="replace") for name in names]
        )

    def refused(
        self, context: Any, who: str, method: str, status: _Status, what: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Write it into the audit log."""
        if self.audit is not None:
            code, reason = status[0].name, status[1]
            address = address_of(context)
            self.audit.write("refused", who=who, address=address, outcome=code, method=method, reason=reason, what=what)

    def _refusal(self, who: str, method: str, code: grpc.StatusCode, reason: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(context: Any) -> None:
            found = reason if code is grpc.StatusCode.UNAUTHENTICATED else self.find(context)
            # The token alone proves nothing to one that needs a certificate, too: it does not learn what it might do.
            status = (grpc.StatusCode.UNAUTHENTICATED, found) if isinstance(found, str) else (code, reason)
            self.refused(context, who if isinstance(found, str) else found.name, method, status)
            await context.abort(*status)

        return unread(refuse)

    def wrap(self, handler: Any, method: str) -> Any:
        """Let only those call the method who may. Blocking handlers are not ours."""
        behaviour = handler.stream_stream
        if not inspect.isasyncgenfunction(behaviour):
            return handler
        rules = self._rules.get(method)
        if rules is None or not (self._looks_at_all or self.callers.can_change or self.audit is not None):
            return handler

        async def call(messages: Any, context: Any) -> AsyncIterator[Any]:
            await _Call(self, method, rules, context).answer(behaviour, messages)
            # It writes its answers by itself. Those around it expect a generator.
            for answer in tuple[Any, ...]():
                yield answer

        return stream_handler(call, handler)


class _Call:
    """A call: who made it, what it has used so far, and why it has to end."""

    def __init__(self, access: Access, method: str, rules: CallRules, context: Any) -> None:
        self._access = access
        self._method = method
        self._rules = rules
        self._context = context
        self._caller = Principal(name="")
        self._ending: _Status | None = None
        self._limit: asyncio.Timeout | None = None
        self._used: dict[tuple[str, str], None] = {}
        self._changed: Any = None
        self._looked_at = 0.0
        self._what: Sequence[tuple[str, str]] = ()

    async def answer(self, behaviour: Any, messages: AsyncIterator[Any]) -> None:
        """Send what the behaviour answers to what the caller may ask.

        Here, not by whoever is around: a call that ends in the midst of an answer must learn that.
        """
        opened = await self._admit()
        try:
            await self._answer(behaviour, messages)
        finally:
            self._access.open_calls[opened.name] -= 1
            if not self._access.open_calls[opened.name]:
                del self._access.open_calls[opened.name]

    async def _answer(self, behaviour: Any, messages: AsyncIterator[Any]) -> None:
        access, context = self._access, self._context
        self._looked_at = asyncio.get_running_loop().time()
        self._watching = asyncio.get_running_loop().call_later(access.recheck_seconds, self._look_again)
        try:
            async with asyncio.timeout(None) as self._limit:
                async with aclosing(behaviour(self._checked(messages), context)) as answers:
                    async for answer in answers:
                        await self._send(answer)
            if self._ending is None:
                self._audit("OK")
        except TimeoutError:
            if self._ending is None:
                raise
        except grpc.aio.AbortError:
            code = context.code()
            self._audit(getattr(code, "name", "") or "ABORTED", str(context.details() or ""))
            raise
        except asyncio.CancelledError:
            self._audit("CANCELLED")
            raise
        finally:
            self._watching.cancel()
        if self._ending is not None:
            access.refused(context, self._caller.name, self._method, self._ending, self._what)
            await context.abort(*self._ending)

    async def _admit(self) -> Principal:
        """Who calls, with the call counted among its open ones."""
        access, context = self._access, self._context
        found = access.find(context)
        if isinstance(found, str):
            await self._refuse("nobody", (grpc.StatusCode.UNAUTHENTICATED, found))
        assert isinstance(found, Principal)
        self._caller = found
        reason = access.may_call(found, self._method)
        if reason is not None:
            await self._refuse(found.name, (grpc.StatusCode.PERMISSION_DENIED, reason))
        reason = found.may_open(access.open_calls[found.name], access.calls_at_once)
        if reason is not None:
            await self._refuse(found.name, (grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
        access.open_calls[found.name] += 1
        return found

    async def _refuse(self, who: str, status: _Status) -> None:
        self._access.refused(self._context, who, self._method, status)
        await self._context.abort(*status)

    async def _checked(self, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
        changes = self._access.audit is not None and self._rules.change != ""
        async for message in messages:
            if isinstance(message, Broken):
                await self._stop((grpc.StatusCode.INVALID_ARGUMENT, message.reason))
            if self._caller.is_everybody and not changes:
                yield message
                continue
            used = self._rules.used(message)
            reason = self._rules.refusal(self._caller, message, used)
            if reason is not None:
                self._what = used
                await self._stop((grpc.StatusCode.PERMISSION_DENIED, reason))
            self._note(message, used)
            self._rules.take_as_own(self._caller, message)
            yield message

    async def _stop(self, status: _Status) -> None:
        self._end(status)
        # What waits for messages is cancelled in a moment.
        await asyncio.Event().wait()

    def _note(self, message: Any, used: Sequence[tuple[str, str]]) -> None:
        if len(self._used) < _MOST_REMEMBERED:
            self._used.update(dict.fromkeys(used))
        if self._changed is None and self._rules.changes(message):
            self._changed, self._what = True, used

    async def _send(self, answer: Any) -> None:
        if asyncio.get_running_loop().time() - self._looked_at > _OUTDATED_SECONDS and self._access.callers.can_change:
            # What the call waited for is not granted to a caller that lost its rights in the meantime.
            self._watching.cancel()
            self._look_again()
            if self._ending is not None:
                await asyncio.Event().wait()
        self._audit("OK")
        self._rules.tell_as_own(self._caller, answer)
        await self._context.write(answer)

    def _audit(self, outcome: str, reason: str = "") -> None:
        """Once: a stream has changed something when it begins to answer."""
        if self._changed and self._access.audit is not None:
            self._changed = False
            who, address, change = self._caller.name, address_of(self._context), self._rules.change
            self._access.audit.write(change, who=who, address=address, outcome=outcome, reason=reason, what=self._what)

    def _look_again(self) -> None:
        """End the call when its caller may not go on."""
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
        loop = asyncio.get_running_loop()
        self._looked_at = loop.time()
        self._watching = loop.call_later(self._access.recheck_seconds, self._look_again)

    def _end(self, status: _Status) -> None:
        if self._ending is None and self._limit is not None:
            self._ending = status
            self._limit.reschedule(asyncio.get_running_loop().time())
