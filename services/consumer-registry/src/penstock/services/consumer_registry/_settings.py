"""Settings of the service: flags, each with an environment variable behind it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Self

from penstock.aws import AwsOptions, check_encrypted, endpoint_aliases
from penstock.registration import CONSUMER_SHARD_HOUR_USD, LeaseSettings, store_location
from penstock.registration.errors import RegistrationOptionError
from penstock.rpc import ServerSettings, read_number
from penstock.terminal import add_setting

PREFIX: Final = "PENSTOCK_REGISTRY"

_SECONDS: Final = {
    "time_to_live_seconds": (30.0, "seconds that a lease lives without a heartbeat, unless its request names them"),
    "longest_time_to_live_seconds": (300.0, "most seconds that a request may name"),
    "grace_seconds": (60.0, "seconds between the end of the last lease and the de-registration"),
    "sweep_seconds": (15.0, "seconds between two looks for leases that ran out"),
}
_ALIASES: Final = "endpoint_aliases"
_INSECURE: Final = "allow_insecure_endpoint"
_PRICE: Final = "consumer_shard_hour_usd"
FLAGS: Final = {
    "default_time_to_live": f"--time-to-live-seconds ({PREFIX}_TIME_TO_LIVE_SECONDS)",
    "longest_time_to_live": f"--longest-time-to-live-seconds ({PREFIX}_LONGEST_TIME_TO_LIVE_SECONDS)",
    "grace_period": f"--grace-seconds ({PREFIX}_GRACE_SECONDS)",
}
"""Flags, and the variables behind them, of options that `LeaseSettings` knows by other names."""


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """All that the service needs to know."""

    server: ServerSettings
    aws: AwsOptions
    store: str
    """See `penstock.registration.open_store`."""
    leases: LeaseSettings
    sweep_interval: timedelta
    consumer_shard_hour_usd: float
    """For `ls` and `gc`. Default: the list price of us-east-1."""
    endpoint_aliases: tuple[str, ...] = ()
    """Further URLs by which callers know the endpoint of Kinesis."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add a flag per setting; each falls back to `PENSTOCK_REGISTRY_<NAME>`."""
        add = partial(add_setting, parser, PREFIX)
        ServerSettings.add_arguments(parser, PREFIX)
        add("store", "where leases are kept: sqlite:///PATH, or dynamodb://TABLE for several replicas")
        AwsOptions.add_arguments(parser, PREFIX)
        add(_INSECURE, "true: credentials may go to an http:// endpoint of another host")
        add(_ALIASES, "further URLs, with commas, by which callers know the endpoint of Kinesis")
        for name, (default, text) in _SECONDS.items():
            add(name, f"{text}; default {default:g}")
        add(_PRICE, f"US dollars for a consumer, shard and hour; default {CONSUMER_SHARD_HOUR_USD:g}")

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the flags of `add_arguments`.

        Raises:
            RpcOptionError, AwsOptionError, RegistrationOptionError: a setting is wrong; the error names it.
        """
        environment = os.environ if environment is None else environment
        if not arguments.store:
            raise RegistrationOptionError(option="store", reason="is missing: say where, by --store sqlite:///PATH")
        # Before anything is opened: a word about the settings, not about a connection.
        store_location(arguments.store)
        seconds = {name: _seconds(name, getattr(arguments, name), default) for name, (default, _) in _SECONDS.items()}
        if seconds["sweep_seconds"] <= timedelta(0):
            raise RegistrationOptionError(option="sweep_seconds", reason="must be positive")
        return cls(
            server=ServerSettings.from_arguments(arguments, PREFIX, environment),
            aws=check_encrypted(AwsOptions.from_arguments(arguments), getattr(arguments, _INSECURE), environment),
            endpoint_aliases=endpoint_aliases(getattr(arguments, _ALIASES), _ALIASES),
            store=arguments.store,
            leases=LeaseSettings(
                default_time_to_live=seconds["time_to_live_seconds"],
                longest_time_to_live=seconds["longest_time_to_live_seconds"],
                grace_period=seconds["grace_seconds"],
            ),
            sweep_interval=seconds["sweep_seconds"],
            consumer_shard_hour_usd=_price(getattr(arguments, _PRICE)),
        )


def _seconds(name: str, value: str | None, default: float) -> timedelta:
    if value is None:
        return timedelta(seconds=default)
    return read_number(name, value, lambda text: timedelta(seconds=float(text)), of="a number of seconds")


def _price(value: str | None) -> float:
    if value is None:
        return CONSUMER_SHARD_HOUR_USD
    price = read_number(_PRICE, value, float, of="a number of US dollars")
    if not 0 <= price < float("inf"):
        raise RegistrationOptionError(option=_PRICE, reason="must not be negative")
    return price
