"""Services that a query uses, what it proves itself with, and its identity."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.rpc import MIN_TOKEN_CHARACTERS, RpcOptionError, check_address
from penstock.spark_plugin._options.spec import (
    BOOLEAN,
    DRIVER,
    INTEGER,
    NO_OWN_READER,
    OF_EFO,
    READER,
    REGISTRY,
    STREAM,
    STRINGS,
    TASK,
    WRITE,
    Refusal,
    field_name,
)
from penstock.spark_plugin._options.values import option
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_TRACE = (
    r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?",
    "a W3C trace context such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)
_TOKEN = (
    rf"(?s:.{{{MIN_TOKEN_CHARACTERS},}})",
    f"a token of at least {MIN_TOKEN_CHARACTERS} characters: make one with `openssl rand -hex 32`",
)

_proof = partial(option, acts=(DRIVER, TASK), only=(STREAM, WRITE))


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Options of services and identity."""

    reader_endpoint: tuple[str, ...] = option(STRINGS, acts=(DRIVER, TASK), only=(STREAM,))
    """`host:port` of shard-reader services, or `unix:PATH`. Default: the reader lives in the query's process.
    Bounded reads poll in their tasks, by themselves."""
    executor_readers: bool = option(
        BOOLEAN,
        "true",
        acts=(DRIVER, TASK),
        refused_with=(Refusal("readerEndpoint", "the query reads by the services that it names"),),
        only=(STREAM,),
    )
    """Whether the query reads by the shard readers that `start_readers` runs on the executors of its session,
    if there are any as it starts."""
    reader_host: str | None = option(
        otherwise="127.0.0.1 in local mode, else spark.driver.host",
        acts=(DRIVER,),
        refused_with=(NO_OWN_READER,),
        only=(STREAM,),
    )
    """Address of the driver by which executors reach the query's own reader. Its environment may give another
    default, by `PENSTOCK_READER_HOST`."""
    reader_bind_address: str | None = option(
        otherwise="spark.driver.bindAddress, or readerHost",
        acts=(DRIVER,),
        refused_with=(NO_OWN_READER,),
        only=(STREAM,),
    )
    """Address that the query's own reader listens on."""
    reader_port: int = option(
        INTEGER, "0", acts=(DRIVER,), refused_with=(NO_OWN_READER,), only=(STREAM,), minimum=0, maximum=65_535
    )
    """Port that the query's own reader listens on; 0: the system picks one."""
    registry_endpoint: str | None = option(acts=(DRIVER,), only=(STREAM,))
    """`host:port` of the consumer registry, which leases stream consumers, and lists the query's readers for
    the console, also of a query that polls. Default: in-process, on SQLite."""
    registry_store: str | None = option(
        acts=(REGISTRY,),
        refused_with=(
            OF_EFO,
            Refusal("registryEndpoint", "the registry has a store of its own: start it with --store"),
        ),
    )
    """SQLite file of the in-process registry. Default: in the user's state directory."""
    sink_endpoint: str | None = option(acts=(TASK,), only=(WRITE,))
    """`host:port` of the sink gateway. Default: each write task writes to Kinesis itself."""
    service_token: str | None = _proof(pattern=_TOKEN, secret=True)
    """Token that the services ask for; at least 32 characters."""
    service_token_file: str | None = _proof()
    """File of that token instead, on the driver and all executors; read again when it has changed."""
    service_ca_file: str | None = _proof()
    """PEM file of the services' authority; turns TLS on."""
    service_certificate_file: str | None = _proof(requires=("servicePrivateKeyFile", "is given with its key"))
    """PEM file of the query's own certificate, for services with mutual TLS; with `servicePrivateKeyFile`."""
    service_private_key_file: str | None = _proof(requires=("serviceCertificateFile", "is given with its certificate"))
    """PEM file of the key of that certificate."""
    job_id: str | None = option(otherwise="random", acts=(DRIVER, TASK, REGISTRY, READER), only=(STREAM, WRITE))
    """Name of the query that stays the same over restarts: with it, a restart takes over the stream consumer at
    once. Without it, it does so by a name in the checkpoint; with efoRegistration=eager, and before the first
    micro-batch is logged, only on the machine of a predecessor whose process is dead. Elsewhere it waits for
    the end of that one's lease."""
    traceparent: str | None = option(pattern=_TRACE, otherwise="the environment's TRACEPARENT", acts=(DRIVER, TASK))
    """W3C trace context that the query's spans belong to."""


_PROOFS = ("serviceToken", "serviceTokenFile", "serviceCaFile", "serviceCertificateFile", "servicePrivateKeyFile")


def check_services(options: "KinesisOptions") -> None:
    """Check that the services have addresses, and that what a query proves itself with is whole and for a service.

    Raises:
        OptionError: an option is missing or contradicts another one; the error names it.
    """
    if options.service_token is not None and options.service_token_file is not None:
        raise OptionError.contradictory("serviceToken", "serviceTokenFile", "there is one token")
    endpoints = [("readerEndpoint", one) for one in options.reader_endpoint]
    endpoints += [("registryEndpoint", one) for one in (options.registry_endpoint,) if one]
    endpoints += [("sinkEndpoint", one) for one in (options.sink_endpoint,) if one]
    for option_name, endpoint in endpoints:
        try:
            check_address(endpoint)
        except RpcOptionError:
            rule = "host:port, such as 10.0.0.5:50051, or unix:PATH"
            raise OptionError.invalid(option_name, "***" if "@" in endpoint else endpoint, rule) from None
    if options.registry_endpoint and options.reader_endpoint and options.record_publisher == "polling":
        raise OptionError.contradictory(
            "registryEndpoint",
            "readerEndpoint",
            "a query that polls by services has neither stream consumers to lease nor readers of its own to announce: "
            "give $recordPublisher=efo for enhanced fan-out, or leave $registryEndpoint out",
        )
    given = [name for name in _PROOFS if getattr(options, field_name(name)) is not None]
    if given and not endpoints:
        raise OptionError.missing(
            "readerEndpoint",
            f"'${given[0]}' is for services, and no service is given by it, '$registryEndpoint' or '$sinkEndpoint'. "
            f"Give one, or leave ${given[0]} out",
        )
