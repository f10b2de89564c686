"""Settings of the service: flags, each with an environment variable behind it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final, Self

from penstock.aws import AwsOptions, check_encrypted, endpoint_aliases
from penstock.efo_consumer import ReaderConfig, RecordPublisherConfig
from penstock.rpc import ServerSettings, read_number, read_path, read_switch
from penstock.terminal import add_setting

PREFIX: Final = "PENSTOCK_READER"

# Callers of a service come and go without a word; their subscriptions must not stay for good.
_DEFAULTS: Final = ReaderConfig(session_timeout=timedelta(hours=1))
_BYTES: Final = {
    "buffer_bytes_per_shard": "bytes that one shard's buffer holds before its socket is left unread",
    "buffer_bytes": "bytes that all buffers hold",
    "spill_bytes": "bytes on disk that hold what memory has no room for",
}
_SECONDS: Final = {
    "idle_offset_interval": "seconds between two positions that moved without a record",
    "promise_grace": "seconds that promised records wait in memory for their reader when room is short",
    "range_deadline": "seconds that reading a range again may stand still",
    "session_timeout": "seconds after which a session that nobody calls is ended, 0 for never",
}
_ALIASES: Final = "endpoint_aliases"
_INSECURE: Final = "allow_insecure_endpoint"
_SUBSCRIBE_TRANSPORT: Final = "subscribe_transport"
_RETRY_PATIENCE: Final = "retry_patience"


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
        """Add a flag per setting; each falls back to `PENSTOCK_READER_<NAME>`."""
        add = partial(add_setting, parser, PREFIX)
        ServerSettings.add_arguments(parser, PREFIX)
        AwsOptions.add_arguments(parser, PREFIX)
        add(_INSECURE, "true: credentials may go to an http:// endpoint of another host")
        add(_ALIASES, "further URLs, with commas, by which callers know the endpoint of Kinesis")
        for name, text in _BYTES.items():
            add(name, f"{text}; default {getattr(_DEFAULTS, name)}")
        for name, text in _SECONDS.items():
            add(name, f"{text}; default {getattr(_DEFAULTS, name).total_seconds():g}")
        patience = (
            "seconds for which errors of Kinesis that may pass are retried for clients that do not say, 0 for ever"
        )
        add(_RETRY_PATIENCE, f"{patience}; default {_DEFAULTS.publisher.retry_patience.total_seconds():g}")
        add(_SUBSCRIBE_TRANSPORT, "what carries SubscribeToShard: auto, http2 or http1; default auto")
        add("spill_folder", "where the folder for that is made; default: the system's temporary folder")
        apart = "whether aggregates of the Kinesis Producer Library are taken apart: true, false or all"
        add("deaggregate", f"{apart} (drops no user record, whatever its key); default true")
        lost = "whether a range that the stream no longer holds is an error for clients that do not say; default true"
        add("fail_on_data_loss", lost)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError, AwsOptionError, EfoConsumerConfigError: a setting is wrong; the error names it.
        """
        environment = os.environ if environment is None else environment
        given = {name: value for name, value in vars(arguments).items() if value}
        numbers = {name: read_number(name, given[name], int) for name in _BYTES if name in given}
        times = {name: read_number(name, given[name], _time) for name in _SECONDS if name in given}
        transport = {"subscribeTransport": given[_SUBSCRIBE_TRANSPORT]} if _SUBSCRIBE_TRANSPORT in given else {}
        deaggregate = {"deaggregate": given["deaggregate"]} if "deaggregate" in given else {}
        publisher = RecordPublisherConfig.from_mapping({**transport, **deaggregate})
        if _RETRY_PATIENCE in given:
            publisher = replace(publisher, retry_patience=read_number(_RETRY_PATIENCE, given[_RETRY_PATIENCE], _time))
        return cls(
            server=ServerSettings.from_arguments(arguments, PREFIX, environment),
            aws=check_encrypted(AwsOptions.from_arguments(arguments), given.get(_INSECURE), environment),
            endpoint_aliases=endpoint_aliases(given.get(_ALIASES), _ALIASES),
            reader=ReaderConfig(
                buffer_bytes_per_shard=numbers.get("buffer_bytes_per_shard", _DEFAULTS.buffer_bytes_per_shard),
                buffer_bytes=numbers.get("buffer_bytes", _DEFAULTS.buffer_bytes),
                spill_bytes=numbers.get("spill_bytes", _DEFAULTS.spill_bytes),
                spill_folder=read_path("spill_folder", given["spill_folder"]) if "spill_folder" in given else None,
                idle_offset_interval=times.get("idle_offset_interval", _DEFAULTS.idle_offset_interval),
                promise_grace=times.get("promise_grace", _DEFAULTS.promise_grace),
                range_deadline=times.get("range_deadline", _DEFAULTS.range_deadline),
                session_timeout=times.get("session_timeout", _DEFAULTS.session_timeout),
                deaggregate=publisher.deaggregate,
                fail_on_data_loss=read_switch("fail_on_data_loss", given.get("fail_on_data_loss", "true")),
                publisher=publisher,
            ),
        )


def _time(value: str) -> timedelta:
    return timedelta(seconds=float(value))
