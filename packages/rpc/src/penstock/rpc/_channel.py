"""Channels with trace context, token and sensible limits."""

from typing import Any, cast

import grpc
from opentelemetry.instrumentation.grpc import aio_client_interceptors, client_interceptor
from opentelemetry.instrumentation.grpc.grpcext import intercept_channel

from penstock.rpc._cancel import CancelUnaryUnary
from penstock.rpc._security import ClientSecurity
from penstock.rpc._token import TokenInterceptor, aio_token_interceptors

DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


def channel_options(max_message_bytes: int) -> list[tuple[str, Any]]:
    """Options that every channel and server of Penstock shares."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # A peer that is gone without a word is noticed in 20 s, before a lease of 30 s has run out.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        # Its own default grows to two minutes: longer than a lease lives.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # gRPC would look for proxies in the environment even for loopback.
        ("grpc.enable_http_proxy", 0),
    ]


def open_channel(
    endpoint: str,
    security: ClientSecurity | None = None,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> grpc.Channel:
    """Open a blocking channel to `host:port`. Connects at the first call. Close it by `close()`.

    Never open one before a fork: gRPC's threads do not survive it.

    Raises:
        RpcOptionError: a file cannot be read, or the token would be sent in plain text to another machine.
    """
    security = security or ClientSecurity()
    security.check_endpoint(endpoint)
    options = channel_options(max_message_bytes)
    if security.uses_tls:
        channel = grpc.secure_channel(endpoint, security.channel_credentials(), options)
    else:
        channel = grpc.insecure_channel(endpoint, options)
    if security.token is not None:
        channel = grpc.intercept_channel(channel, TokenInterceptor(security.token))
    traced = intercept_channel(channel, client_interceptor())  # type: ignore[no-untyped-call]  # no annotations
    return cast(grpc.Channel, traced)


def open_aio_channel(
    endpoint: str,
    security: ClientSecurity | None = None,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """Open an asyncio channel to `host:port`, for the running loop. Close it by `await close()`.

    Raises:
        RpcOptionError: a file cannot be read, or the token would be sent in plain text to another machine.
    """
    security = security or ClientSecurity()
    security.check_endpoint(endpoint)
    interceptors: list[Any] = list(aio_client_interceptors())  # type: ignore[no-untyped-call]  # no annotations
    if security.token is not None:
        interceptors += aio_token_interceptors(security.token)
    interceptors.append(CancelUnaryUnary())
    options = channel_options(max_message_bytes)
    if security.uses_tls:
        credentials = security.channel_credentials()
        return grpc.aio.secure_channel(endpoint, credentials, options, interceptors=interceptors)
    return grpc.aio.insecure_channel(endpoint, options, interceptors=interceptors)
