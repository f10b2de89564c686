"""The sink gateway as a server."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from time import monotonic
from typing import Any

from penstock.async_sink import (
    SERVICE_NAME,
    AsyncSinkBase,
    AsyncSinkConfig,
    DynamoDbSink,
    FirehoseSink,
    KinesisStreamsSink,
    SharedDestinations,
    SinkGatewayServicer,
    SqsSink,
    dynamodb_config,
    firehose_config,
    kinesis_strategy,
    rate_strategy,
    slow_start_strategy,
    sqs_config,
)
from penstock.aws import AwsError, AwsLocation, AwsOptionError, AwsOptions, AwsSession
from penstock.rpc import GrpcServer
from penstock.services.sink_gateway._settings import STREAMS_DECREASE_FACTOR, GatewaySettings


def _sink(settings: GatewaySettings, stream: str) -> KinesisStreamsSink:
    """The sink of a stream's name or ARN."""
    strategy = rate_strategy(kinesis_strategy, usual_decrease_factor=STREAMS_DECREASE_FACTOR, **settings.rates)
    if stream.startswith("arn:"):
        return KinesisStreamsSink(settings.aws, stream_arn=stream, config=settings.sink, strategy=strategy)
    return KinesisStreamsSink(settings.aws, stream, config=settings.sink, strategy=strategy)


def sinks(settings: GatewaySettings) -> dict[str, Callable[[str], AsyncSinkBase[Any, Any]]]:
    """The sinks of each kind, by the name of their destination.

    Raises:
        AwsOptionError: an endpoint is not a URL.
    """

    firehose, dynamodb, sqs = (_aws_options(settings, kind) for kind in ("firehose", "dynamodb", "sqs"))
    usual = rate_strategy(slow_start_strategy, **settings.rates)

    def config(of_kind: Callable[..., AsyncSinkConfig]) -> AsyncSinkConfig:
        limits, own = dict(settings.other_limits), of_kind()
        # A buffer that is enough for a stream has room for a request of each other kind as well.
        for name, least in (
            ("max_buffered_requests", own.max_batch_size + 1),
            ("max_buffered_bytes", own.max_batch_size_in_bytes),
        ):
            if name in limits:
                limits[name] = max(limits[name], least)
        return of_kind(**limits)

    return {
        "kinesis": lambda name: _sink(settings, name),
        "firehose": lambda name: FirehoseSink(firehose, name, config=config(firehose_config), strategy=usual),
        "dynamodb": lambda name: DynamoDbSink(dynamodb, name, config=config(dynamodb_config), strategy=usual),
        "sqs": lambda url: SqsSink(sqs, url, config=config(sqs_config), strategy=usual),
    }


def _aws_options(settings: GatewaySettings, kind: str) -> AwsOptions:
    if kind == "kinesis":
        return settings.aws
    try:
        return replace(settings.aws, endpoint_url=settings.other_endpoints.get(kind))
    except AwsOptionError as error:
        raise AwsOptionError(f"{kind}_endpoint_url", error.reason) from error


def _locations(settings: GatewaySettings) -> Callable[[str], AwsLocation]:
    """Where the destinations of a kind are; found when a client first asks for the kind."""

    @cache
    def location(kind: str) -> AwsLocation:
        return AwsLocation.of(AwsSession(_aws_options(settings, kind)), kind)

    return location


@asynccontextmanager
async def gateway_server(settings: GatewaySettings) -> AsyncIterator[GrpcServer]:
    """Serve the gateway between enter and exit; the exit writes what was accepted, within the drain time.

    Raises:
        ServerStartError: the address cannot be bound.
    """
    others = sinks(settings)
    destinations = SharedDestinations(
        others.pop("kinesis"),
        others,
        max_destinations=settings.max_destinations,
        idle_seconds=settings.destination_idle_seconds,
    )
    servicer = SinkGatewayServicer(
        destinations,
        settings.window,
        max_weight=settings.max_client_weight,
        location=_locations(settings),
        endpoint_aliases=settings.endpoint_aliases,
    )
    # Shared by three: clients get most of it, what is left of their calls a little, and what they left behind the rest.
    drain_seconds = settings.server.drain_seconds
    calls = replace(settings.server, drain_seconds=drain_seconds / 20)
    drain_ends = monotonic()
    try:
        async with GrpcServer(calls, register=[servicer.add_to], service_names=[SERVICE_NAME]) as server:
            destinations.expire_idle()
            try:
                yield server
            finally:
                drain_ends = monotonic() + 0.95 * drain_seconds
                await servicer.drain(0.9 * drain_seconds)
    finally:
        # What clients that are gone had sent is written too.
        await destinations.close(max(0.0, drain_ends - monotonic()))


def checked_settings(arguments: Namespace) -> GatewaySettings:
    """The settings, tried: limits against the limits of the services, and AWS without any call of the services.

    Raises:
        RpcOptionError: a setting is wrong; the error names it.
        SinkOptionError: a limit is more than a service takes.
        AwsOptionError: a URL is invalid, or the profile, authorities' file, region or credentials are missing.
    """
    settings = GatewaySettings.from_arguments(arguments)
    for make in sinks(settings).values():
        make("flights")
    _check_aws(settings.aws)
    return settings


def _check_aws(options: AwsOptions) -> None:
    try:
        session = AwsSession(options)
        session.endpoint_url()
        session.ssl_context()
        if options.role_arn is None:
            # A role is assumed by the first request: STS may be away for a moment.
            session.frozen_credentials()
    except AwsError:
        raise
    except Exception as error:
        # botocore's own words about configuration files.
        raise AwsOptionError("awsProfile" if options.profile else "region", str(error)) from error
