"""Settings of the console: flags, each with an environment variable behind it."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Final, Self

from penstock.aws import AwsOptions, check_encrypted
from penstock.registration import CONSUMER_SHARD_HOUR_USD
from penstock.rpc import ServerSecurity, ServerSettings, Setting, add_settings, add_switch, read_number, read_switch
from penstock.services.console._endpoints import PREFIX, Endpoint
from penstock.services.console.errors import ConsoleOptionError

_FILES: Final = {
    "certificate_file": "PEM of the console's certificate: turns TLS on",
    "private_key_file": "PEM of the certificate's private key",
    "client_ca_file": "PEM of the browsers' authority: turns mutual TLS on",
    "token_file": "file of the tokens that open the console, one per line",
}
_SWITCHES: Final = {
    "allow_plain_text": "listen beyond loopback without TLS, as behind a proxy that encrypts",
    "allow_unauthenticated": "listen beyond loopback for everybody, with neither tokens nor browsers' certificates",
}
_NUMBERS: Final = {
    "interval_seconds": (2.0, 0.2, "seconds between two questions to a service"),
    "shards_interval_seconds": (60.0, 5.0, "seconds between two calls of ListShards for a stream"),
    "lag_alert_seconds": (60.0, 0.0, "seconds of lag that ask for attention"),
    "consumer_shard_hour_usd": (CONSUMER_SHARD_HOUR_USD, 0.0, "US dollars for a consumer, a shard and an hour"),
}

_TEXTS: Final = {
    "host": "address to bind to; default: loopback",
    "port": "port to bind to; 0 lets the system pick one",
    "drain_seconds": "seconds for answers in progress at the end; default 10",
    "list_shards": "true: list shards with AWS's default settings, if no flag of how to reach Kinesis is given",
    "allow_insecure_endpoint": "true: credentials may go to an http:// endpoint of another host",
    "local_readers": "false: leave out readers in drivers of this user and machine that have no registry",
    "list_streams": "true: show all streams of the account and region; needs kinesis:ListStreams",
    "streams": "streams to show beside those that services name, with commas between them",
    "allowed_hosts": "names by which browsers may call it, with commas between them",
}


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings:
    """All that the console needs to know."""

    server: ServerSettings
    """Host, port, TLS, tokens and the time for answers at the end. Other settings of a server have no effect."""
    endpoints: tuple[Endpoint, ...] = ()
    """What it asks."""
    aws: AwsOptions | None = None
    """To list shards; None: they are not listed."""
    local_readers: bool = False
    """Whether the readers in drivers of this user and machine are shown, which had no registry to announce them to."""
    list_streams: bool = False
    """Whether all streams of the account and region are shown, also those that no service names."""
    streams: tuple[str, ...] = ()
    """Streams to show beside those that the services name."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which it may be called, beside addresses, localhost and this machine's name."""
    interval_seconds: float = _NUMBERS["interval_seconds"][0]
    """Between two questions to a service."""
    shards_interval_seconds: float = _NUMBERS["shards_interval_seconds"][0]
    """Between two calls of ListShards for a stream."""
    lag_alert_seconds: float = _NUMBERS["lag_alert_seconds"][0]
    """Lag that asks for attention."""
    consumer_shard_hour_usd: float = CONSUMER_SHARD_HOUR_USD
    """Price of a consumer for a shard and an hour."""

    def __post_init__(self) -> None:
        for name, (_, least, _) in _NUMBERS.items():
            value = getattr(self, name)
            if not least <= value <= 1e9:
                raise ConsoleOptionError(name, f"{value:g} is not between {least:g} and 1e9")
        if self.list_streams and self.aws is None:
            raise ConsoleOptionError("list_streams", "needs --region, or another setting of how to reach Kinesis")

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add a flag per setting; each falls back to `PENSTOCK_CONSOLE_<NAME>`."""
        for name, words in _SWITCHES.items():
            add_switch(parser, PREFIX, name, words)
        Endpoint.add_arguments(parser)
        AwsOptions.add_arguments(parser, PREFIX, note="; turns listing shards on")
        numbers = {name: f"{words}; default {default:g}" for name, (default, _, words) in _NUMBERS.items()}
        add_settings(parser, PREFIX, starmap(Setting, {**_TEXTS, **_FILES, **numbers}.items()))

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError, AwsOptionError, ConsoleOptionError: a setting is wrong; the error names it.
        """
        environment = os.environ if environment is None else environment
        numbers = {name: _number(name, getattr(arguments, name)) for name in _NUMBERS if getattr(arguments, name)}
        return cls(
            server=_server(arguments, environment),
            endpoints=Endpoint.from_arguments(arguments, environment),
            aws=_aws(arguments, environment),
            local_readers=read_switch("local_readers", arguments.local_readers or "true"),
            list_streams=read_switch("list_streams", arguments.list_streams or "false"),
            streams=_names(arguments.streams),
            allowed_hosts=_names(arguments.allowed_hosts),
            interval_seconds=numbers.get("interval_seconds", cls.interval_seconds),
            shards_interval_seconds=numbers.get("shards_interval_seconds", cls.shards_interval_seconds),
            lag_alert_seconds=numbers.get("lag_alert_seconds", cls.lag_alert_seconds),
            consumer_shard_hour_usd=numbers.get("consumer_shard_hour_usd", cls.consumer_shard_hour_usd),
        )


def _server(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ServerSettings:
    files = {name: Path(path) for name in _FILES if (path := getattr(arguments, name))}
    # The file is the nearer wish: a token in the environment may be another's.
    token = None if "token_file" in files else environment.get(f"{PREFIX}_TOKEN")
    switches = {name: read_switch(name, getattr(arguments, name)) for name in _SWITCHES}
    security = ServerSecurity(token=token, **files, **switches)  # type: ignore[arg-type]  # by their names
    security.check_files()
    defaults = ServerSettings()
    return ServerSettings(
        host=arguments.host or defaults.host,
        port=read_number("port", arguments.port or "0", int, of="a whole number"),
        security=security,
        drain_seconds=_number("drain_seconds", arguments.drain_seconds or f"{defaults.drain_seconds}"),
    )


def _aws(arguments: argparse.Namespace, environ: Mapping[str, str]) -> AwsOptions | None:
    options = AwsOptions.from_arguments(arguments)
    wanted = arguments.list_shards and read_switch("list_shards", arguments.list_shards)
    if wanted is False and read_switch("list_streams", arguments.list_streams or "false"):
        raise ConsoleOptionError("list_streams", "does not go with --list-shards false")
    if wanted is False or not (wanted or options != AwsOptions()):
        read_switch("allow_insecure_endpoint", arguments.allow_insecure_endpoint or "")
        return None
    return check_encrypted(options, arguments.allow_insecure_endpoint, environ)


def _number(name: str, text: str) -> float:
    number = read_number(name, text, float)
    if not math.isfinite(number):
        raise ConsoleOptionError(name, f"{text!r} is not a number to count with")
    return number


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
