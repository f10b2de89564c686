"""Settings of the service: flags, each with an environment variable behind it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Self

from penstock.async_sink import AsyncSinkConfig, check_aimd
from penstock.async_sink.errors import SinkOptionError
from penstock.async_sink.gateway import CreditWindow
from penstock.aws import AwsOptions, check_encrypted, endpoint_aliases
from penstock.rpc import ServerSettings, read_number
from penstock.terminal import add_setting

PREFIX: Final = "PENSTOCK_SINK"

_SINK: Final = {
    "max_batch_size": "entries in a request",
    "max_in_flight_requests": "requests in flight per destination",
    "max_buffered_requests": "entries that wait per destination, besides those in flight",
    "max_buffered_bytes": "bytes of the entries that wait per destination",
    "linger_milliseconds": "longest that entries wait for a request to fill up; 50 if not given",
    "max_attempts": "submissions of an entry before its client is told that it failed; no bound if not given",
}
_RECORD: Final = {
    "max_record_bytes": "bytes of a record of a stream, its partition key included, up to 10 MiB; 1 MiB if not given",
}
_LARGEST_RECORD: Final = 10 * 1024 * 1024
_RATES: Final[Mapping[str, tuple[type[int | float | str], str]]] = {
    "rate_strategy": (str, "how each destination's rate is found: shards, aimd or none; shards if not given"),
    "rate_target": (str, "what aimd limits in flight: messages or requests; messages if not given"),
    "initial_rate": (int, "where aimd starts; at --rate-threshold if not given"),
    "increase_rate": (int, "what a success adds to aimd's limit; 10 if not given"),
    "decrease_factor": (float, "what a throttle multiplies aimd's limit by; 0.99 for streams' messages, else 0.5"),
    "rate_threshold": (int, "the limit of aimd never grows past it; all that may be in flight if not given"),
    "max_records_per_second": (float, "most entries per second to each destination; what the answers allow"),
    "max_bytes_per_second": (float, "most bytes per second to each destination; what the answers allow"),
}
_CHOICES: Final = {"rate_strategy": ("shards", "aimd", "none"), "rate_target": ("messages", "requests")}
_DESTINATIONS: Final = {
    "max_destinations": "destinations that are served at a time; 1000 if not given",
    "destination_idle_seconds": "seconds after which a destination that nobody needs is closed; 600 if not given",
}
_ENDPOINTS: Final = {
    "firehose_endpoint_url": "endpoint of Firehose; the region's if not given",
    "dynamodb_endpoint_url": "endpoint of DynamoDB; the region's if not given",
    "sqs_endpoint_url": "endpoint of SQS; the region's if not given",
}
_ALIASES: Final = {
    "endpoint_aliases": "further URLs, with commas, by which clients know these endpoints",
    "allow_insecure_endpoint": "true: credentials may go to an http:// endpoint of another host",
}
_FAIR: Final = {"max_client_weight": "the most that a client's share of the turns may count; 16 if not given"}
_CREDIT: Final = {
    "credit_entries": "entries that a client may have without an acknowledgement",
    "credit_bytes": "bytes that a client may have without an acknowledgement",
}


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """All that the service needs to know."""

    server: ServerSettings
    """Where it listens and what it demands."""
    aws: AwsOptions
    """How it reaches Kinesis."""
    sink: AsyncSinkConfig = field(default_factory=AsyncSinkConfig)
    """Limits of each destination's writer."""
    window: CreditWindow = field(default_factory=CreditWindow)
    """What each client may have without an acknowledgement."""
    other_limits: Mapping[str, Any] = field(default_factory=dict)
    """Options of the writers of other kinds, whose requests have sizes of their own."""
    other_endpoints: Mapping[str, str | None] = field(default_factory=dict)
    """Endpoint of each other kind; None for the region's."""
    endpoint_aliases: tuple[str, ...] = ()
    """Further URLs by which clients know these endpoints."""
    rates: Mapping[str, Any] = field(default_factory=dict)
    """How each destination's writer finds its rate: arguments of `rate_strategy`, but for its defaults."""
    max_destinations: int = 1_000
    """Destinations that are served at a time."""
    destination_idle_seconds: float = 600.0
    """Seconds after which a destination that nobody needs is closed."""
    max_client_weight: int = 16
    """The most that a client's share of the turns may count."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add a flag per setting; each falls back to `PENSTOCK_SINK_<NAME>`."""
        ServerSettings.add_arguments(parser, PREFIX)
        rates = {name: text for name, (_, text) in _RATES.items()}
        numbers = {**_SINK, **_RECORD, **rates, **_CREDIT, **_FAIR, **_DESTINATIONS}
        AwsOptions.add_arguments(parser, PREFIX)
        for name, text in {**_ENDPOINTS, **_ALIASES, **numbers}.items():
            add_setting(parser, PREFIX, name, text)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError, AwsOptionError, SinkOptionError: a setting is wrong; the error names it.
        """
        environment = os.environ if environment is None else environment
        limits = _numbers(arguments, _SINK)
        # Clients send batches: waiting for more of them, as a writer of single records does, would only cost time.
        linger_milliseconds = limits.pop("linger_milliseconds", 50)
        if linger_milliseconds < 1:
            raise SinkOptionError("linger_milliseconds", f"{linger_milliseconds} must be at least 1")
        try:
            linger = timedelta(milliseconds=linger_milliseconds)
        except OverflowError as error:
            raise SinkOptionError("linger_milliseconds", f"{linger_milliseconds} is too long") from error
        sink = AsyncSinkConfig(max_time_in_buffer=linger, **limits, **_record_limits(arguments))
        shared = {name: value for name, value in limits.items() if name != "max_batch_size"}
        max_client_weight = _numbers(arguments, _FAIR).get("max_client_weight", 16)
        if max_client_weight < 1:
            raise SinkOptionError("max_client_weight", f"{max_client_weight} must be at least 1")
        served = {name: _positive(arguments, name, kind) for name, kind in _SERVED}
        credit = {name.removeprefix("credit_"): value for name, value in _numbers(arguments, _CREDIT).items()}
        return cls(
            server=ServerSettings.from_arguments(arguments, PREFIX, environment),
            aws=check_encrypted(
                AwsOptions.from_arguments(arguments),
                arguments.allow_insecure_endpoint,
                environment,
                {name: getattr(arguments, name) for name in _ENDPOINTS},
            ),
            sink=sink,
            window=CreditWindow(
                largest_batch_entries=sink.max_batch_size,
                largest_batch_bytes=sink.max_batch_size_in_bytes,
                **credit,
            ),
            other_limits={"max_time_in_buffer": linger, **shared},
            other_endpoints={
                name.removesuffix("_endpoint_url"): getattr(arguments, name) or None for name in _ENDPOINTS
            },
            endpoint_aliases=endpoint_aliases(arguments.endpoint_aliases, "endpoint_aliases"),
            rates=_rates(arguments, sink),
            **{name: value for name, value in served.items() if value is not None},
            max_client_weight=max_client_weight,
        )


_SERVED: Final = (("max_destinations", int), ("destination_idle_seconds", float))


def _positive(arguments: argparse.Namespace, name: str, kind: type[int | float]) -> Any:
    given = getattr(arguments, name)
    if given is None:
        return None
    try:
        value = kind(given)
    except ValueError as error:
        raise SinkOptionError(name, f"{given!r} is not a {'whole ' if kind is int else ''}number") from error
    if not value > 0:
        raise SinkOptionError(name, f"{given} must be more than 0")
    return value


_OF_AIMD: Final = ("rate_target", "initial_rate", "increase_rate", "decrease_factor", "rate_threshold")
_ARGUMENTS: Final = {"rate_strategy": "strategy", "rate_target": "target"}
STREAMS_DECREASE_FACTOR: Final = 0.99
"""That of aimd for messages to streams, if none is given."""


def _rates(arguments: argparse.Namespace, sink: AsyncSinkConfig) -> dict[str, Any]:
    rates: dict[str, Any] = {}
    for name, (kind, _) in _RATES.items():
        given = getattr(arguments, name)
        if kind is not str:
            rates[name] = _positive(arguments, name, kind)  # type: ignore[arg-type]  # not str
        elif given is not None and given not in _CHOICES[name]:
            raise SinkOptionError(name, f"{given!r} is unknown; choose {', '.join(_CHOICES[name])}")
        else:
            rates[name] = given
    for name in _OF_AIMD:
        if rates[name] is not None and rates["rate_strategy"] != "aimd":
            raise SinkOptionError(name, "needs --rate-strategy aimd")
    if rates["rate_strategy"] == "aimd":
        # Other kinds have requests of their own sizes: there a rate may be cut.
        check_aimd(
            max_in_flight_requests=sink.max_in_flight_requests,
            max_batch_size=sink.max_batch_size,
            usual_decrease_factor=STREAMS_DECREASE_FACTOR,
            **{_ARGUMENTS.get(name, name): rates[name] for name in _OF_AIMD},
        )
    return {
        _ARGUMENTS.get(name, name.removeprefix("max_")): value for name, value in rates.items() if value is not None
    }


def _record_limits(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a stream's largest record and largest request are, where the former is given."""
    given = _numbers(arguments, _RECORD).get("max_record_bytes")
    if given is None:
        return {}
    if not 1 <= given <= _LARGEST_RECORD:
        raise SinkOptionError("max_record_bytes", f"{given} must be 1 to {_LARGEST_RECORD}")
    return {
        "max_record_size_in_bytes": given,
        "max_batch_size_in_bytes": max(given, AsyncSinkConfig.max_batch_size_in_bytes),
    }


def _numbers(arguments: argparse.Namespace, names: Mapping[str, str]) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name in names}
    return {
        name: read_number(name, value, int, of="a whole number") for name, value in given.items() if value is not None
    }
