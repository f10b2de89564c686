"""Settings of the service: flags, each with an environment variable behind it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self

from penstock.async_sink import AsyncSinkConfig, CreditWindow, check_aimd
from penstock.async_sink.errors import SinkError, SinkOptionError
from penstock.aws import AwsError, AwsOptions, check_encrypted, endpoint_aliases
from penstock.rpc import ServerSettings, Setting, add_settings, read_settings
from penstock.rpc.service import ServiceKind

KIND: Final = ServiceKind("sink", (AwsError, SinkError, OSError))

_whole, _positive = partial(Setting, kind=int), partial(Setting, kind=int, above=0)
_above_zero = partial(Setting, kind=float, above=0)
_SINK: Final = (
    _whole("max_batch_size", "entries in a request"),
    _whole("max_in_flight_requests", "requests in flight per destination"),
    _whole("max_buffered_requests", "entries that wait per destination, besides those in flight"),
    _whole("max_buffered_bytes", "bytes of the entries that wait per destination"),
    _whole("linger_milliseconds", "longest that entries wait for a request to fill up; 50 if not given", least=1),
    _whole("max_attempts", "submissions of an entry before its client gets an error; no bound if not given"),
)
_LARGEST_RECORD: Final = 10 * 1024 * 1024
_STRATEGIES: Final = ("shards", "aimd", "none")
_RATES: Final = (
    Setting("rate_strategy", "how each rate is found: shards (default), aimd, none", choices=_STRATEGIES),
    Setting("rate_target", "what aimd limits: messages (if not given) or requests", choices=("messages", "requests")),
    _positive("initial_rate", "where aimd starts; at --rate-threshold if not given"),
    _positive("increase_rate", "what a success adds to aimd's limit; 10 if not given"),
    _above_zero("decrease_factor", "what a throttle multiplies it by; 0.99 for streams' messages, else 0.5"),
    _positive("rate_threshold", "the limit of aimd never grows past it; all that may be in flight if not given"),
    _above_zero("max_records_per_second", "most entries per second to each destination; what the answers allow"),
    _above_zero("max_bytes_per_second", "most bytes per second to each destination; what the answers allow"),
)
_CREDIT: Final = (
    _whole("credit_entries", "entries that a client may have without an acknowledgement"),
    _whole("credit_bytes", "bytes that a client may have without an acknowledgement"),
)
_SERVED: Final = (
    _whole("max_client_weight", "the most that a client's share of the turns may count; 16 if not given", least=1),
    _positive("max_destinations", "destinations that are served at a time; 1000 if not given"),
    _above_zero("destination_idle_seconds", "seconds until a destination without clients is closed; 600 if not given"),
)
"""Settings that `GatewaySettings` has by the same names."""
_ENDPOINTS: Final = {
    f"{kind}_endpoint_url": f"endpoint of {name}; the region's if not given"
    for kind, name in (("firehose", "Firehose"), ("dynamodb", "DynamoDB"), ("sqs", "SQS"))
}
_OTHERS: Final = (
    *(Setting(name, text) for name, text in _ENDPOINTS.items()),
    Setting("endpoint_aliases", "further URLs, with commas, by which clients know these endpoints"),
    Setting("allow_insecure_endpoint", "true: credentials may go to an http:// endpoint of another host"),
    _whole(
        "max_record_bytes", "bytes of a stream's record with its key; 1 MiB if not given", least=1, most=_LARGEST_RECORD
    ),
)


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
    """Seconds after which an unused destination is closed."""
    max_client_weight: int = 16
    """The most that a client's share of the turns may count."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add a flag per setting; each falls back to `PENSTOCK_SINK_<NAME>`."""
        ServerSettings.add_arguments(parser, KIND.prefix)
        AwsOptions.add_arguments(parser, KIND.prefix)
        add_settings(parser, KIND.prefix, (*_OTHERS, *_SINK, *_RATES, *_CREDIT, *_SERVED))

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError, AwsOptionError, SinkOptionError: a setting is wrong; the error names it.
        """
        environment = os.environ if environment is None else environment
        limits = read_settings(arguments, _SINK)
        # Clients send batches: waiting for more of them, as a writer of single records does, would only cost time.
        linger_milliseconds = limits.pop("linger_milliseconds", 50)
        try:
            linger = timedelta(milliseconds=linger_milliseconds)
        except OverflowError as error:
            raise SinkOptionError("linger_milliseconds", f"{linger_milliseconds} is too long") from error
        others = read_settings(arguments, _OTHERS)
        record: dict[str, Any] = {}
        if (most := others.get("max_record_bytes")) is not None:
            record["max_record_size_in_bytes"] = most
            record["max_batch_size_in_bytes"] = max(most, AsyncSinkConfig.max_batch_size_in_bytes)
        sink = AsyncSinkConfig(max_time_in_buffer=linger, **limits, **record)
        shared = {name: value for name, value in limits.items() if name != "max_batch_size"}
        credit = {name.removeprefix("credit_"): value for name, value in read_settings(arguments, _CREDIT).items()}
        return cls(
            server=ServerSettings.from_arguments(arguments, KIND.prefix, environment),
            aws=check_encrypted(
                AwsOptions.from_arguments(arguments),
                others.get("allow_insecure_endpoint"),
                environment,
                {name: others.get(name) for name in _ENDPOINTS},
            ),
            sink=sink,
            window=CreditWindow(
                largest_batch_entries=sink.max_batch_size,
                largest_batch_bytes=sink.max_batch_size_in_bytes,
                **credit,
            ),
            other_limits={"max_time_in_buffer": linger, **shared},
            other_endpoints={name.removesuffix("_endpoint_url"): others.get(name) or None for name in _ENDPOINTS},
            endpoint_aliases=endpoint_aliases(others.get("endpoint_aliases"), "endpoint_aliases"),
            rates=_rates(arguments, sink),
            **read_settings(arguments, _SERVED),
        )


_OF_AIMD: Final = ("rate_target", "initial_rate", "increase_rate", "decrease_factor", "rate_threshold")
_ARGUMENTS: Final = {"rate_strategy": "strategy", "rate_target": "target"}
STREAMS_DECREASE_FACTOR: Final = 0.99
"""That of aimd for messages to streams, if none is given."""


def _rates(arguments: argparse.Namespace, sink: AsyncSinkConfig) -> dict[str, Any]:
    rates = read_settings(arguments, _RATES)
    is_aimd = rates.get("rate_strategy") == "aimd"
    for name in _OF_AIMD:
        if name in rates and not is_aimd:
            raise SinkOptionError(name, "needs --rate-strategy aimd")
    if is_aimd:
        # Other kinds have requests of their own sizes: there a rate may be cut.
        check_aimd(
            max_in_flight_requests=sink.max_in_flight_requests,
            max_batch_size=sink.max_batch_size,
            usual_decrease_factor=STREAMS_DECREASE_FACTOR,
            **{_ARGUMENTS.get(name, name): rates.get(name) for name in _OF_AIMD},
        )
    return {_ARGUMENTS.get(name, name.removeprefix("max_")): value for name, value in rates.items()}
