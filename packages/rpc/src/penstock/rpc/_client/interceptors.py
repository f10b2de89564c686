"""What a channel's interceptors do: they mend how gRPC for asyncio ends calls."""

# The published stubs make these classes generic, which they are not at run time, and allow no
# function that serves all kinds of call.
# mypy: disable-error-code="type-arg,assignment"

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

_WRITE_FAILED: Final = "Internal error from Core"
_STATUS_SECONDS: Final = 1.0


class CancelUnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    """Cancelling a task cancels its call.

    The tracing interceptor waits for a call's code, and a task that is cancelled there leaves the call running: the
    server would go on, and give its answer to nobody.
    """

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Wait for the call; cancel it with the task."""
        call = await continuation(client_call_details, request)
        try:
            await call.code()
        except asyncio.CancelledError:
            call.cancel()
            raise
        return call


class KeepStatusStreamStream(grpc.aio.StreamStreamClientInterceptor):
    """A stream ends by what its server said.

    Where a write fails because the server has ended the call, grpc.aio puts INTERNAL in the place of the status that
    was received (https://github.com/grpc/grpc/issues/36066).
    """

    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, requests: Any) -> Any:
        """The answers, and at the end the error as the server meant it."""
        call = await continuation(client_call_details, requests)
        received: asyncio.Future[grpc.aio.AioRpcError] = asyncio.get_running_loop().create_future()

        def note(_: Any) -> None:
            # Called at each status that the call takes on; it can be asked for now, and is lost a moment later.
            if not received.done() and _now(call.details()) != _WRITE_FAILED:
                ended = grpc.aio.AioRpcError(
                    _now(call.code()),
                    _now(call.initial_metadata()),
                    _now(call.trailing_metadata()),
                    _now(call.details()),
                    _now(call.debug_error_string()),
                )
                received.set_result(ended)

        call.add_done_callback(note)

        async def answers() -> AsyncIterator[Any]:
            try:
                async for answer in call:
                    yield answer
            except grpc.aio.AioRpcError as error:
                if error.details() != _WRITE_FAILED:
                    raise
                await asyncio.wait({received}, timeout=_STATUS_SECONDS)
                if not received.done():
                    raise
                if received.result().code() is not grpc.StatusCode.OK:
                    raise received.result() from error

        return answers()


def _now(question: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a call that is done, which knows it without waiting."""
    try:
        question.send(None)
    except StopIteration as done:
        return done.value
    question.close()
    raise RuntimeError("a call that is done has no status")
