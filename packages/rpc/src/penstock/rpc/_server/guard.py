"""What clients see of messages that break the contract and unforeseen errors: a status, and nothing internal."""

# The published stubs make these classes generic, which they are not at run time.
# mypy: disable-error-code="type-arg"

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from penstock.rpc._server.rules import rules_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_log = logging.getLogger("penstock.rpc")
_MALFORMED = "a message of the call is not what the contract says"
_INTERNAL = "the service failed; its log says why"


@dataclass(frozen=True)
class Broken:
    """Stands for a message that breaks the contract, until there is a context to refuse it."""

    reason: str


class _BrokenError(Exception):
    pass


def _guarded(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    # A message's own `FromString`.
    kind = getattr(getattr(deserialize, "__self__", None), "DESCRIPTOR", None)
    rules = None if kind is None else rules_of(kind)

    def read(content: bytes) -> Any:
        if rules is not None and (reason := rules.too_long(content)):
            return Broken(reason)
        try:
            message = deserialize(content)
        except Exception:
            # gRPC would send the error's own words.
            return Broken(_MALFORMED)
        reason = None if rules is None else rules.refusal(message)
        return message if reason is None else Broken(reason)

    return read


async def _checked(messages: AsyncIterator[Any], refused: list[tuple[grpc.StatusCode, str]]) -> AsyncIterator[Any]:
    async for message in messages:
        if isinstance(message, Broken):
            refused.append((grpc.StatusCode.INVALID_ARGUMENT, message.reason))
            raise _BrokenError
        yield message


class Handled(grpc.aio.ServerInterceptor):
    """An interceptor that makes another handler of each method's handler, once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler for a call."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self.made_of(handler, handler_call_details.method)

    def made_of(self, handler: Any, method: str) -> Any:
        """The handler that stands for another."""
        known = self._known.get(method)
        if known is None or known[0] is not handler:
            known = self._known[method] = (handler, self.wrap(handler, method))
        return known[1]

    def wrap(self, handler: Any, method: str) -> Any:
        """Make a handler of another."""
        raise NotImplementedError


def stream_handler(behaviour: Any, handler: Any, deserialize: Any = None) -> Any:
    """A handler of messages that come and answers that go, with the serializers of another handler."""
    return grpc.stream_stream_rpc_method_handler(
        behaviour,
        request_deserializer=deserialize or handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _generator_of(handler: Any) -> Any:
    """What a handler of any kind does, as an async generator of answers to messages; None for blocking handlers.

    On the wire all kinds are alike, and this one reads a message only when it is asked for it.
    """
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


class Guard(Handled):
    """The innermost interceptor: what it lets through is a message of the contract, and a status that was meant.

    All handlers around it are of one kind, of streams: what a call does is an async generator of answers to messages.
    """

    def wrap(self, handler: Any, method: str) -> Any:
        """Guard what the method does. Blocking handlers are not ours."""
        behaviour = _generator_of(handler)
        if behaviour is None:
            return handler

        async def call(messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            refused: list[tuple[grpc.StatusCode, str]] = []
            try:
                try:
                    async with aclosing(behaviour(_checked(messages, refused), context)) as answers:
                        async for answer in answers:
                            yield answer
                except grpc.aio.BaseError:
                    raise
                except Exception as error:
                    if not refused:
                        _log.error("%s failed", method, exc_info=error)
                        refused.append((grpc.StatusCode.INTERNAL, _INTERNAL))
                # A behaviour can take a message that breaks the contract for the end of the messages.
                if refused:
                    await context.abort(*refused[0])
            except grpc.aio.AbortError:
                raise
            except grpc.aio.BaseError as error:
                # No client is left to send an answer to: no failure of the service.
                _log.debug("the client of %s has gone: %s", method, error)
                raise grpc.aio.AbortError("the client has gone") from None

        return stream_handler(call, handler, _guarded(handler.request_deserializer))


class SameTask(Handled):
    """The outermost interceptor: answers end in the task that began them.

    gRPC leaves a generator behind when its call is cancelled while an answer is being sent, as to a client that was
    frozen. The loop ends it in another task then, where the trace context of the call cannot be left.
    """

    def made_of(self, handler: Any, method: str) -> Any:
        """Write the answers of a generator in its place. Not kept: refused calls may have any number of names."""
        behaviour = handler.stream_stream
        if not inspect.isasyncgenfunction(behaviour):
            return handler

        async def call(messages: Any, context: Any) -> None:
            try:
                async with aclosing(behaviour(messages, context)) as answers:
                    async for answer in answers:
                        await context.write(answer)
            except grpc.aio.AbortError:
                raise
            except grpc.aio.BaseError as error:
                # gRPC is about to cancel this call, and would complain of any other error.
                _log.debug("the client of %s has gone: %s", method, error)
                raise asyncio.CancelledError from error

        return stream_handler(call, handler)
