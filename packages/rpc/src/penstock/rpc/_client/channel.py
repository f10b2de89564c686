"""Channels with trace context, token and sensible limits."""

from typing import Any, cast

import grpc
from opentelemetry.instrumentation.grpc import aio_client_interceptors, client_interceptor
from opentelemetry.instrumentation.grpc.grpcext import intercept_channel

from penstock.rpc._addresses import host_of
from penstock.rpc._client.interceptors import (
    CancelUnaryUnary,
    KeepStatusStreamStream,
)
from penstock.rpc._client.rotation import RotatingChannel
from penstock.rpc._client.rotation_aio import RotatingAioChannel
from penstock.rpc._security.security import ClientSecurity

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


def _client_options(endpoint: str, security: ClientSecurity, max_message_bytes: int) -> list[tuple[str, Any]]:
    options = channel_options(max_message_bytes)
    if security.server_name is not None:
        options.append(("grpc.ssl_target_name_override", security.server_name))
    if endpoint.startswith("unix:"):
        # A certificate is for a host: that of a socket is this one.
        options.append(("grpc.default_authority", host_of(endpoint)))
    return options


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
    security.check_endpoint(endpoint)
    options = _client_options(endpoint, security, max_message_bytes)

    def open_one() -> grpc.Channel:
        if security.uses_tls:
            return grpc.secure_channel(endpoint, security.channel_credentials(), options)
        return grpc.insecure_channel(endpoint, options)

    channel = RotatingChannel(security, open_one)
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
    security.check_endpoint(endpoint)
    interceptors: list[Any] = list(aio_client_interceptors())  # type: ignore[no-untyped-call]  # no annotations
    interceptors += [CancelUnaryUnary(), KeepStatusStreamStream()]
    options = _client_options(endpoint, security, max_message_bytes)

    def open_one() -> grpc.aio.Channel:
        if security.uses_tls:
            credentials = security.channel_credentials()
            return grpc.aio.secure_channel(endpoint, credentials, options, interceptors=interceptors)
        return grpc.aio.insecure_channel(endpoint, options, interceptors=interceptors)

    return RotatingAioChannel(security, open_one)
