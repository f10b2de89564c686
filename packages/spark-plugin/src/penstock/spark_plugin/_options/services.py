"""Services that a query uses, the credentials for these services, and the query's identity."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.rpc import MIN_TOKEN_CHARACTERS, RpcOptionError, check_address
from penstock.spark_plugin._options.spec import field_name
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

_own_reader = partial(
    option, acts="driver", only="stream", not_with={"readerEndpoint": "the query does not start a reader of its own"}
)
_proof = partial(option, acts="driver task", only="stream write")


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Options of services and identity."""

    job_id: str | None = option(otherwise="random", acts="driver task registry reader", only="stream write")
    """Name of the query that stays the same over restarts. With it, a restarted query takes over the stream consumer
    at once. Without it, a restarted query does so by a name in its checkpoint; before the first micro-batch is
    logged, and with efoRegistration=eager, only on the machine where its predecessor's process has ended. Otherwise
    it waits until the predecessor's lease expires."""
    reader_endpoint: tuple[str, ...] = option("strings", acts="driver task", only="stream")
    """`host:port` of shard-reader services, or `unix:PATH`. Default: the reader runs in the query's process.
    Bounded reads always poll in their own tasks."""
    executor_readers: bool = option(
        "boolean",
        "true",
        acts="driver task",
        only="stream",
        not_with={"readerEndpoint": "the query uses the services that it names"},
    )
    """Whether the query uses the shard readers that `start_readers` runs on the executors of its session, if there
    are any when it starts."""
    reader_host: str | None = _own_reader(otherwise="127.0.0.1 in local mode, else spark.driver.host")
    """Address of the driver by which executors reach the query's own reader. The environment variable
    `PENSTOCK_READER_HOST` may give another default."""
    reader_bind_address: str | None = _own_reader(otherwise="spark.driver.bindAddress, or readerHost")
    """Address that the query's own reader listens on."""
    reader_port: int = _own_reader("integer", "0", minimum=0, maximum=65_535)
    """Port that the query's own reader listens on; 0: the system picks one."""
    registry_endpoint: str | None = option(acts="driver", only="stream")
    """`host:port` of the consumer registry. It leases stream consumers, and lists the query's readers for the
    console, also for a query that polls. Default: in-process, on SQLite."""
    registry_store: str | None = option(
        acts="registry",
        needs="recordPublisher=efo",
        not_with={"registryEndpoint": "the registry has a store of its own: start it with --store"},
    )
    """SQLite file of the in-process registry. Default: in the user's state directory."""
    sink_endpoint: str | None = option(acts="task", only="write")
    """`host:port` of the sink gateway. Default: each write task writes to Kinesis directly."""
    service_token: str | None = _proof(pattern=_TOKEN, secret=True, not_with={"serviceTokenFile": "there is one token"})
    """Token that the services require; at least 32 characters."""
    service_token_file: str | None = _proof()
    """File that holds the token instead, on the driver and all executors. It is read again when it changes."""
    service_ca_file: str | None = _proof()
    """PEM file of the services' authority; turns TLS on."""
    service_certificate_file: str | None = _proof(needs="servicePrivateKeyFile")
    """PEM file of the query's own certificate, for services with mutual TLS; with `servicePrivateKeyFile`."""
    service_private_key_file: str | None = _proof(needs="serviceCertificateFile")
    """PEM file of the key of that certificate."""
    traceparent: str | None = option(pattern=_TRACE, otherwise="the environment's TRACEPARENT", acts="driver task")
    """W3C trace context that the query's spans belong to."""


PROOFS = ("serviceToken", "serviceTokenFile", "serviceCaFile", "serviceCertificateFile", "servicePrivateKeyFile")
"""Options by which a query authenticates to services."""


def check_services(options: "KinesisOptions") -> None:
    """Check that the services have addresses, and that credentials for services are given with a service.

    Raises:
        OptionError: an option is missing or contradicts another one; the error names it.
    """
    endpoints = [("readerEndpoint", one) for one in options.reader_endpoint]
    endpoints += [("registryEndpoint", options.registry_endpoint)] if options.registry_endpoint else []
    endpoints += [("sinkEndpoint", options.sink_endpoint)] if options.sink_endpoint else []
    for name, endpoint in endpoints:
        try:
            check_address(endpoint)
        except RpcOptionError:
            rule = "host:port, such as 10.0.0.5:50051, or unix:PATH"
            raise OptionError.invalid(name, "***" if "@" in endpoint else endpoint, rule) from None
    if options.registry_endpoint and options.reader_endpoint and options.record_publisher == "polling":
        reason = (
            "a query that polls with services has neither stream consumers to lease nor readers to announce: "
            "give $recordPublisher=efo for enhanced fan-out, or leave $registryEndpoint out"
        )
        raise OptionError.contradictory("registryEndpoint", "readerEndpoint", reason)
    given = [name for name in PROOFS if getattr(options, field_name(name)) is not None]
    if given and not endpoints:
        reason = f"'${given[0]}' needs one of $readerEndpoint, $registryEndpoint or $sinkEndpoint"
        raise OptionError.missing("readerEndpoint", reason)
