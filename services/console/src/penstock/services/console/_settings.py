"""Settings of the console: where it listens, and which services it asks with which credentials."""

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
from penstock.rpc import (
    ClientSecurity,
    RpcOptionError,
    ServerSecurity,
    ServerSettings,
    Setting,
    add_settings,
    add_switch,
    check_address,
    check_no_user,
    read_number,
    read_switch,
)
from penstock.services.console._values import Kind

PREFIX: Final = "PENSTOCK_CONSOLE"
SERVICES: Final = (Kind.REGISTRY, Kind.READER, Kind.SINK, Kind.STAGES)
_SEVERAL: Final = (Kind.READER, Kind.SINK)
_SERVICE_FILES: Final = {
    "services_ca_file": "PEM file: authority that signed the services' certificates; turns TLS on",
    "services_certificate_file": "PEM file: own certificate, for mutual TLS",
    "services_private_key_file": "PEM file: key of that certificate",
}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A service to ask."""

    kind: Kind
    address: str
    """`host:port`."""
    ca_file: Path | None = None
    certificate_file: Path | None = None
    private_key_file: Path | None = None
    tls: bool = False
    token_file: Path | None = None
    token_variable: str | None = None
    """Variable of the environment that holds the token; None for none."""

    def security(self, environment: Mapping[str, str] | None = None) -> ClientSecurity:
        """What a channel needs; it follows files that change.

        Raises:
            RpcOptionError: a token would cross the network in plain text, or a certificate lacks its key.
        """
        environment = os.environ if environment is None else environment
        variable = self.token_variable if self.token_file is None else None
        security = ClientSecurity(
            ca_file=self.ca_file,
            certificate_file=self.certificate_file,
            private_key_file=self.private_key_file,
            tls=self.tls,
            token=environment.get(variable) if variable else None,
            token_file=self.token_file,
        )
        security.check_endpoint(self.address)
        return security

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add flags of all services; each falls back to `PENSTOCK_CONSOLE_<NAME>`."""
        for kind in SERVICES:
            words = f"host:port of the {_TITLES[kind]}"
            if kind in _SEVERAL:
                words += "; may be repeated, or name several with commas between them"
            name, variable = f"{kind.value}-endpoint", f"{PREFIX}_{kind.name}_ENDPOINT"
            # Not "append": flags would be added to what the environment says.
            action = Several if kind in _SEVERAL else "store"
            parser.add_argument(
                f"--{name}", action=action, default=os.environ.get(variable), help=f"{words} [{variable}]"
            )
        add_switch(parser, PREFIX, "services_tls", "use TLS to the services, with the authorities that gRPC trusts")
        texts = _SERVICE_FILES | {"services_token_file": "file that holds the bearer token of the services"}
        texts |= {f"{kind.value}_token_file": f"the same, of the {_TITLES[kind]} alone" for kind in SERVICES}
        add_settings(parser, PREFIX, starmap(Setting, texts.items()))

    @classmethod
    def from_arguments(
        cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None
    ) -> tuple[Self, ...]:
        """The endpoints that were given.

        Raises:
            RpcOptionError: an endpoint is invalid, a file cannot be read, or a setting has no service here.
        """
        environment = os.environ if environment is None else environment
        tls = read_switch("services_tls", arguments.services_tls)
        found = []
        for kind in SERVICES:
            own_file = getattr(arguments, f"{kind.value}_token_file")
            token_file = own_file or arguments.services_token_file
            variables = (f"{PREFIX}_{kind.name}_TOKEN", f"{PREFIX}_SERVICES_TOKEN")
            addresses = _addresses(getattr(arguments, f"{kind.value}_endpoint"), kind)
            if own_file and not addresses:
                raise RpcOptionError(f"{kind.value}_token_file", f"needs --{kind.value}-endpoint")
            for address in addresses:
                endpoint = cls(
                    kind=kind,
                    address=address,
                    ca_file=_path(arguments.services_ca_file),
                    certificate_file=_path(arguments.services_certificate_file),
                    private_key_file=_path(arguments.services_private_key_file),
                    tls=tls,
                    token_file=_path(token_file),
                    token_variable=next((one for one in variables if environment.get(one)), None),
                )
                try:
                    endpoint.security(environment).check_files()
                except RpcOptionError as error:
                    has_own = own_file or (not token_file and endpoint.token_variable == variables[0])
                    whose = kind.value if has_own and error.option.startswith("token") else "services"
                    raise RpcOptionError(f"{whose}_{error.option}", error.reason) from error
                found.append(endpoint)
        for name in () if found else ("services_tls", *_SERVICE_FILES, "services_token_file"):
            if tls if name == "services_tls" else getattr(arguments, name):
                raise RpcOptionError(
                    name, "no service is asked: give --reader-endpoint, or the endpoint of another service"
                )
        return tuple(found)


_TITLES: Final = {
    Kind.REGISTRY: "consumer registry",
    Kind.READER: "shard reader",
    Kind.SINK: "sink gateway",
    Kind.STAGES: "stage scheduler",
}


def _addresses(given: list[str] | str | None, kind: Kind) -> list[str]:
    addresses = list(dict.fromkeys(parts(given)))
    try:
        check_no_user(",".join(addresses))
        for address in addresses:
            check_address(address)
    except RpcOptionError as error:
        raise RpcOptionError(f"{kind.value}_endpoint", error.reason) from error
    return addresses


def parts(given: list[str] | str | None) -> list[str]:
    """What `Several` collected, or a variable holds: parts between commas."""
    texts = [given] if isinstance(given, str) else given or []
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


class Several(argparse.Action):
    """Flags together; they replace what the environment says."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*(before if isinstance(before, list) else []), str(values)])


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


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
    "list_shards": "true: list streams and shards with AWS's default settings; false: call no Kinesis. Default: true "
    "where a flag or a variable of AWS names a region or a profile",
    "allow_insecure_endpoint": "true: credentials may go to an http:// endpoint of another host",
    "local_readers": "false: leave out readers in drivers of this user and machine that have no registry",
    "list_streams": "false: show only the streams that services name, and do not call ListStreams",
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
    list_streams: bool = True
    """Whether all streams of the account and region are shown, also those that no service names; needs `aws`."""
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
                raise RpcOptionError(name, f"{value:g} is not between {least:g} and 1e9")

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add a flag per setting; each falls back to `PENSTOCK_CONSOLE_<NAME>`."""
        for name, words in _SWITCHES.items():
            add_switch(parser, PREFIX, name, words)
        Endpoint.add_arguments(parser)
        AwsOptions.add_arguments(parser, PREFIX, note="; turns listing streams and shards on")
        numbers = {name: f"{words}; default {default:g}" for name, (default, _, words) in _NUMBERS.items()}
        add_settings(parser, PREFIX, starmap(Setting, {**_TEXTS, **_FILES, **numbers}.items()))

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError, AwsOptionError: a setting is wrong; the error names it.
        """
        environment = os.environ if environment is None else environment
        numbers = {name: _number(name, getattr(arguments, name)) for name in _NUMBERS if getattr(arguments, name)}
        return cls(
            server=_server(arguments, environment),
            endpoints=Endpoint.from_arguments(arguments, environment),
            aws=_aws(arguments, environment),
            local_readers=read_switch("local_readers", arguments.local_readers or "true"),
            list_streams=read_switch("list_streams", arguments.list_streams or "true"),
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


_AWS_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE")


def _aws(arguments: argparse.Namespace, environ: Mapping[str, str]) -> AwsOptions | None:
    options = AwsOptions.from_arguments(arguments)
    wanted = arguments.list_shards and read_switch("list_shards", arguments.list_shards)
    if wanted is False and read_switch("list_streams", arguments.list_streams or "false"):
        raise RpcOptionError("list_streams", "does not go with --list-shards false")
    # Without a flag it is asked where the environment names a region, as for every other client of AWS.
    is_set_up = options != AwsOptions() or any(environ.get(name) for name in _AWS_VARIABLES)
    if wanted is False or not (wanted or is_set_up):
        if read_switch("list_streams", arguments.list_streams or "false"):
            raise RpcOptionError("list_streams", "needs --region, or another setting of how to reach Kinesis")
        read_switch("allow_insecure_endpoint", arguments.allow_insecure_endpoint or "")
        return None
    return check_encrypted(options, arguments.allow_insecure_endpoint, environ)


def _number(name: str, text: str) -> float:
    number = read_number(name, text, float)
    if not math.isfinite(number):
        raise RpcOptionError(name, f"{text!r} is not a number to count with")
    return number


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
