"""Channels with trace context, token and sensible limits, and interceptors that correct how calls of asyncio end."""

# The published stubs make these classes generic, which they are not at run time, and allow no
# function that serves all kinds of call.
# mypy: disable-error-code="type-arg,assignment"

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
from opentelemetry.instrumentation.grpc import aio_client_interceptors, client_interceptor
from opentelemetry.instrumentation.grpc.grpcext import intercept_channel

from penstock.rpc._client.rotation import RotatingAioChannel, RotatingChannel
from penstock.rpc._flags import host_of
from penstock.rpc._security.security import ClientSecurity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine


_WRITE_FAILED: Final = "Internal error from Core"
_STATUS_SECONDS: Final = 1.0


class CancelUnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    """Cancelling a task cancels its call.

    The tracing interceptor waits for a call's code, and a task that is cancelled there leaves the call running: the
    server would continue, and send an answer that no caller reads.
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


DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_MAX_METADATA_BYTES = 64 * 1024


def channel_options(max_message_bytes: int, max_received_bytes: int | None = None) -> list[tuple[str, Any]]:
    """Options that every channel and server of Penstock shares; what is received may be at most as large as is sent."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes if max_received_bytes is None else max_received_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Messages of some MiB, as records come in: in frames of 16 kB, gRPC's default, they cost a sixth more.
        ("grpc.http2.max_frame_size", 4 * 1024 * 1024),
        # Errors travel as metadata, and some of them name all consumers of a stream: gRPC's own limit is 8 kB.
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        # A peer that is gone without a word is noticed in 20 s, before a lease of 30 s has run out.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # The one above is for what TCP does not acknowledge; a peer that hangs is given a minute by default.
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        # Its own default grows to two minutes: longer than a lease lives.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # gRPC would look for proxies in the environment even for loopback.
        ("grpc.enable_http_proxy", 0),
    ]


def _opener(
    package: Any, endpoint: str, security: ClientSecurity, max_message_bytes: int, **more: Any
) -> Callable[[], Any]:
    """What opens a channel of `grpc` or `grpc.aio`, with the files of the security as they are by then."""
    security.check_endpoint(endpoint)
    options = channel_options(max_message_bytes)
    if security.server_name is not None:
        options.append(("grpc.ssl_target_name_override", security.server_name))
    if endpoint.startswith("unix:"):
        # A certificate names a host: a socket belongs to this host.
        options.append(("grpc.default_authority", host_of(endpoint)))

    def open_one() -> Any:
        if security.uses_tls:
            return package.secure_channel(endpoint, security.channel_credentials(), options, **more)
        return package.insecure_channel(endpoint, options, **more)

    return open_one


def open_channel(
    endpoint: str,
    security: ClientSecurity | None = None,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> grpc.Channel:
    """Open a blocking channel to `host:port` or `unix:PATH`. Connects at the first call. Close it by `close()`.

    Never open one before a fork: gRPC's threads do not survive it.

    Raises:
        RpcOptionError: a file cannot be read, or the token would be sent in plain text to another machine.
    """
    security = security or ClientSecurity()
    channel = RotatingChannel(security, _opener(grpc, endpoint, security, max_message_bytes))
    traced = intercept_channel(channel, client_interceptor())  # type: ignore[no-untyped-call]  # no annotations
    return cast(grpc.Channel, traced)


def open_aio_channel(
    endpoint: str,
    security: ClientSecurity | None = None,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """Open an asyncio channel to `host:port` or `unix:PATH`, for the running loop. Close it by `await close()`.

    Raises:
        RpcOptionError: a file cannot be read, or the token would be sent in plain text to another machine.
    """
    security = security or ClientSecurity()
    interceptors: list[Any] = list(aio_client_interceptors())  # type: ignore[no-untyped-call]  # no annotations
    interceptors += [CancelUnaryUnary(), KeepStatusStreamStream()]
    open_one = _opener(grpc.aio, endpoint, security, max_message_bytes, interceptors=interceptors)
    return cast("grpc.aio.Channel", RotatingAioChannel(security, open_one))
