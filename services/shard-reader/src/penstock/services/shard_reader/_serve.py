"""The shard reader as a server: its settings, and what it serves."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Self

from penstock.aws import AwsError, AwsLocation, AwsOptions, AwsSession, check_encrypted, endpoint_aliases
from penstock.efo_consumer import EfoConsumerError, ReaderConfig, RecordPublisherConfig, SubscribeTransportType
from penstock.rpc import GrpcServer, ServerSettings, Setting, add_settings, read_settings, read_switch
from penstock.rpc.service import ServiceKind

_MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024
"""No records come in with a request."""
KIND: Final = ServiceKind("reader", (AwsError, EfoConsumerError))
# Callers can go away without closing their sessions; their subscriptions must not stay open.
_DEFAULTS: Final = ReaderConfig(session_timeout=timedelta(hours=1))


def _bytes(name: str, text: str) -> Setting:
    return Setting(name, f"{text}; default {getattr(_DEFAULTS, name)}", int)


def _seconds(name: str, text: str, default: timedelta | None = None) -> Setting:
    default = getattr(_DEFAULTS, name) if default is None else default
    return Setting(name, f"{text}; default {default.total_seconds():g}", lambda value: timedelta(seconds=float(value)))


_CONFIG: Final = (
    _bytes("buffer_bytes_per_shard", "bytes that one shard's buffer holds before its socket is left unread"),
    _bytes("buffer_bytes", "bytes that all buffers hold"),
    _seconds("idle_offset_interval", "seconds between two positions that moved without a record"),
    _seconds("promise_grace", "seconds that promised records wait in memory for their reader when room is short"),
    _seconds("range_deadline", "seconds that reading a range again may stand still"),
    _seconds("session_timeout", "seconds after which a session without calls is ended, 0 for never"),
)
"""Settings that a `ReaderConfig` has by the same names."""
_OTHERS: Final = (
    Setting("allow_insecure_endpoint", "true: credentials may go to an http:// endpoint of another host"),
    Setting("endpoint_aliases", "further URLs, with commas, by which callers know the endpoint of Kinesis"),
    _seconds(
        "retry_patience",
        "seconds for which errors of Kinesis that may pass are retried for clients that do not say, 0 for ever",
        _DEFAULTS.publisher.retry_patience,
    ),
    Setting(
        "subscribe_transport",
        "what carries SubscribeToShard: auto, http2 or http1; default auto",
        choices=tuple(SubscribeTransportType),
    ),
    Setting(
        "deaggregate",
        "whether aggregates of the Kinesis Producer Library are taken apart: true, false or all (drops no user record, "
        "whatever its key); default true",
        str.lower,
        choices=("true", "false", "all"),
    ),
    Setting(
        "fail_on_data_loss",
        "whether a range that the stream no longer holds is an error for clients that do not say; default true",
    ),
)


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """All that the service needs to know."""

    server: ServerSettings
    aws: AwsOptions
    reader: ReaderConfig
    endpoint_aliases: tuple[str, ...] = ()
    """Further URLs by which callers know the endpoint of Kinesis."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add a flag for each setting, which falls back to `PENSTOCK_READER_<NAME>`."""
        ServerSettings.add_arguments(parser, KIND.prefix)
        AwsOptions.add_arguments(parser, KIND.prefix)
        add_settings(parser, KIND.prefix, (*_CONFIG, *_OTHERS))

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError, AwsOptionError, EfoConsumerConfigError: a setting is wrong; the error names it.
        """
        environment = os.environ if environment is None else environment
        config = read_settings(arguments, (one for one in _CONFIG if getattr(arguments, one.name)))
        own: dict[str, Any] = read_settings(arguments, (one for one in _OTHERS if getattr(arguments, one.name)))
        how = own.get("deaggregate", "true")
        return cls(
            server=ServerSettings.from_arguments(arguments, KIND.prefix, environment),
            aws=check_encrypted(AwsOptions.from_arguments(arguments), own.get("allow_insecure_endpoint"), environment),
            endpoint_aliases=endpoint_aliases(own.get("endpoint_aliases"), "endpoint_aliases"),
            reader=replace(
                _DEFAULTS,
                **config,
                deaggregate="all" if how == "all" else how == "true",
                fail_on_data_loss=read_switch("fail_on_data_loss", own.get("fail_on_data_loss", "true")),
                publisher=RecordPublisherConfig(
                    retry_patience=own.get("retry_patience", _DEFAULTS.publisher.retry_patience),
                    subscribe_transport=SubscribeTransportType(own.get("subscribe_transport", "auto")),
                ),
            ),
        )


@asynccontextmanager
async def reader_server(settings: ReaderSettings) -> AsyncIterator[GrpcServer]:
    """Serve a reader between enter and exit; at exit, calls in progress end before the subscriptions do.

    Raises:
        AwsOptionError: no region is to be found, or the authorities to trust cannot be read.
        ServerStartError: the address cannot be bound.
    """
    # Only here: who looks into a stream at a terminal does not wait for a server's packages.
    from penstock.efo_consumer import (
        SERVICE_NAME,
        KinesisBackend,
        LocalShardReader,
        ReaderLocation,
        ShardReaderServicer,
    )
    from penstock.rpc import GrpcServer

    session = AwsSession(settings.aws)
    # What is wrong with it is for whoever starts the service, not for its clients.
    session.ssl_context()
    backend = KinesisBackend(session, settings.reader.publisher)
    location = ReaderLocation(AwsLocation.of(session), backend.stream_arn, settings.endpoint_aliases)
    async with LocalShardReader(backend, settings.reader) as reader:
        servicer = ShardReaderServicer(reader, location=location)
        async with GrpcServer(
            settings.server,
            register=[servicer.add_to],
            service_names=[SERVICE_NAME],
            max_request_bytes=_MAX_REQUEST_BYTES,
        ) as server:
            try:
                yield server
            finally:
                reader.drain()
