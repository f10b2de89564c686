"""What clients see of malformed messages and unforeseen errors: a status, and nothing internal."""

# The published stubs make these classes generic, which they are not at run time.
# mypy: disable-error-code="type-arg"

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_log = logging.getLogger("penstock.rpc")
_MALFORMED = "a message of the call is not what the contract says"
_INTERNAL = "the service failed; its log says why"


class _Malformed:
    """Stands for a message that could not be read, until there is a context to say so."""


_MALFORMED_MESSAGE = _Malformed()


class _MalformedError(Exception):
    pass


def _guarded(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        try:
            return deserialize(content)
        except Exception:
            # gRPC would send the error's own words.
            return _MALFORMED_MESSAGE

    return read


async def _checked(messages: AsyncIterator[Any], found: list[bool]) -> AsyncIterator[Any]:
    async for message in messages:
        if message is _MALFORMED_MESSAGE:
            found.append(True)
            raise _MalformedError
        yield message


class Guard(grpc.aio.ServerInterceptor):
    """The innermost interceptor: what it lets through is a message of the contract, and a status that was meant."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Wrap the handler of a method, once."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        known = self._known.get(method)
        if known is None or known[0] is not handler:
            known = self._known[method] = (handler, _wrap(handler, method))
        return known[1]  # type: ignore[no-any-return]  # a handler


def _wrap(handler: Any, method: str) -> Any:
    kind = ("stream" if handler.request_streaming else "unary") + (
        "_stream" if handler.response_streaming else "_unary"
    )
    behaviour = getattr(handler, kind)
    if not inspect.iscoroutinefunction(behaviour) and not inspect.isasyncgenfunction(behaviour):
        # Blocking handlers, and those that write by themselves, are not ours.
        return handler
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    wrapper = _streaming if inspect.isasyncgenfunction(behaviour) else _single
    deserialize = handler.request_deserializer
    return make(
        wrapper(behaviour, method, handler.request_streaming),
        request_deserializer=None if deserialize is None else _guarded(deserialize),
        response_serializer=handler.response_serializer,
    )


def _single(behaviour: Any, method: str, request_streaming: bool) -> Any:
    async def call(request: Any, context: Any) -> Any:
        malformed: list[bool] = []
        if request is _MALFORMED_MESSAGE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _MALFORMED)
        try:
            answer = await behaviour(_checked(request, malformed) if request_streaming else request, context)
            if malformed:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _MALFORMED)
            return answer
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as error:
            raise _gone(method, error) from None
        except Exception as error:
            await _tell(context, method, malformed, error)

    return call


def _streaming(behaviour: Any, method: str, request_streaming: bool) -> Any:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        malformed: list[bool] = []
        if request is _MALFORMED_MESSAGE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _MALFORMED)
        answers = behaviour(_checked(request, malformed) if request_streaming else request, context)
        try:
            async for answer in answers:
                yield answer
            if malformed:
                # The behaviour took it for the end of the messages.
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _MALFORMED)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as error:
            raise _gone(method, error) from None
        except Exception as error:
            await _tell(context, method, malformed, error)
        finally:
            await answers.aclose()

    return call


class SameTask(grpc.aio.ServerInterceptor):
    """The outermost interceptor: answers in a stream end in the task that began them.

    gRPC leaves a generator behind when its call is cancelled while an answer is being sent, as to a client that was
    frozen. The loop ends it in another task then, where the trace context of the call cannot be left.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Write the answers of a generator in its place."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or not handler.response_streaming:
            return handler  # type: ignore[no-any-return]  # a handler
        kind = "stream_stream" if handler.request_streaming else "unary_stream"
        behaviour = getattr(handler, kind)
        if not inspect.isasyncgenfunction(behaviour):
            return handler  # type: ignore[no-any-return]  # a handler

        async def call(request: Any, context: Any) -> None:
            answers = behaviour(request, context)
            try:
                async for answer in answers:
                    await context.write(answer)
            except grpc.aio.AbortError:
                raise
            except grpc.aio.BaseError as error:
                # gRPC is about to cancel this call, and would complain of any other error.
                _log.debug("the client of %s has gone: %s", handler_call_details.method, error)
                raise asyncio.CancelledError from error
            finally:
                await answers.aclose()

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(  # type: ignore[no-any-return]  # a handler
            call,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _gone(method: str, error: Exception) -> grpc.aio.AbortError:
    # There is nobody any more to send an answer to: no failure of the service.
    _log.debug("the client of %s has gone: %s", method, error)
    return grpc.aio.AbortError("the client has gone")


async def _tell(context: Any, method: str, malformed: list[bool], error: Exception) -> None:
    if not malformed:
        _log.error("%s failed", method, exc_info=error)
    try:
        if malformed:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _MALFORMED)
        await context.abort(grpc.StatusCode.INTERNAL, _INTERNAL)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as gone:
        raise _gone(method, gone) from None
