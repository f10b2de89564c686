"""Where the reader in the driver listens, and the address under which tasks find it."""

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.session.driver_settings import driver_settings

READER_HOST = "PENSTOCK_READER_HOST"
"""Environment variable of the driver: the default of `readerHost`."""
LOOPBACK = "127.0.0.1"
_WILDCARDS = frozenset({"0.0.0.0", "::", "*"})
_OWN_NAMES = ("SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP", "SPARK_DRIVER_BIND_ADDRESS", "NM_HOST")
"""Variables in which Spark is told its host: by its user, by Kubernetes, and by YARN for a driver in a container."""
_ANYWHERE = ("192.0.2.1", 9)
"""An address of documentation, to which nothing is sent: which of its own would this machine use to get there?"""

Route = Callable[[str, int], str | None]


@dataclass(frozen=True, slots=True)
class ReaderAddress:
    """Where the reader listens (`bind_host`, `port`; 0: the system picks one), and as what tasks know it (`host`)."""

    bind_host: str
    host: str
    port: int
    reason: str
    """Which setting it follows, for errors and logs."""


def reader_address(
    options: KinesisOptions,
    *,
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    route: Route | None = None,
) -> ReaderAddress:
    """The address of a query's own reader.

    On a cluster it is the driver's own (`spark.driver.host`, listening on `spark.driver.bindAddress`). In local mode,
    and where the cluster cannot be seen, the reader stays on loopback, where other machines cannot come to.

    Args:
        options: the query's; `readerHost`, `readerBindAddress` and `readerPort` go before everything else.
        settings: `driver_settings()`, when left out.
        environ: `PENSTOCK_READER_HOST`, and what Spark itself reads.
        route: the own address from which another one is reached; None when it is not.
    """
    environ = os.environ if environ is None else environ
    if settings is None:
        settings = driver_settings(environ=environ)
    host, reason = _host(options, settings, environ, route or route_to)
    bind = options.reader_bind_address
    if bind is None and reason.startswith("spark."):
        bind = settings.get("spark.driver.bindAddress") or environ.get("SPARK_DRIVER_BIND_ADDRESS")
    if bind is None:
        bind = host
    if host in _WILDCARDS:
        # To listen everywhere is one thing; tasks need one address to call.
        host = settings.get("spark.driver.host") or (route or route_to)(*_ANYWHERE) or LOOPBACK
    return ReaderAddress(_bracketed(bind), _bracketed(host), options.reader_port, reason)


def _host(
    options: KinesisOptions, settings: Mapping[str, str], environ: Mapping[str, str], route: Route
) -> tuple[str, str]:
    if options.reader_host:
        return options.reader_host, "readerHost"
    if environ.get(READER_HOST):
        return environ[READER_HOST], READER_HOST
    master = settings.get("spark.master", "local")
    if master.startswith("local"):
        return LOOPBACK, "local mode"
    if settings.get("spark.driver.host"):
        return settings["spark.driver.host"], "spark.driver.host"
    for name in _OWN_NAMES:
        if environ.get(name):
            return environ[name], name
    standalone = re.match(r"spark://(\[[^]]+\]|[^:,/]+):(\d+)", master)
    target = (standalone[1].strip("[]"), int(standalone[2])) if standalone else _ANYWHERE
    return route(*target) or LOOPBACK, "the route to the master" if standalone else "the default route"


def route_to(host: str, port: int) -> str | None:
    """The address of this machine from which another is reached. A datagram socket's `connect` sends nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
