"""Where the reader in the driver listens, and the address where tasks find it, from the settings of the JVM."""

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.spark_plugin._options.kinesis_options import KinesisOptions

SPARK = "org.apache.spark."
_ANCESTORS = 4
"""A shell or Spark's daemon may stand between this process and the JVM."""
_ASSIGNMENT = re.compile(r"\s*([^\s=:#!]+)\s*[=:\s]\s*(.*?)\s*$")


def driver_settings(
    *,
    command_lines: Iterable[Sequence[str]] | None = None,
    environ: Mapping[str, str] | None = None,
    read: Callable[[Path], str] | None = None,
) -> dict[str, str]:
    """The `spark.*` settings that the driver was started with; empty where they cannot be seen.

    Spark tells a source's process nothing about its cluster: not by environment, not by argument. But the process is a
    child of the driver, whose command line holds what `spark-submit` or the session's builder were given (Linux), and
    names the file with the rest. A setting that a session makes later is not seen.

    Args:
        command_lines: of this process's ancestors, the nearest first.
        environ: where `spark-defaults.conf` is looked for.
        read: the text of a file; raises OSError.
    """
    environ = os.environ if environ is None else environ
    read = read or Path.read_text
    lines = (line for _, line in ancestors()) if command_lines is None else command_lines
    line = next((line for line in lines if any(SPARK in part for part in line)), None)
    if line is None:
        return {}
    given = dict(_given(line))
    file = given.pop("", None) or _defaults_file(environ)
    return {**(_from_file(Path(file), read) if file else {}), **given}


def _given(line: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Settings of a command line; the properties file under an empty name."""
    for part, following in zip(line, [*line[1:], ""], strict=True):
        name, _, value = part.partition("=")
        if part in ("--conf", "-c"):
            name, _, value = following.partition("=")
            yield name, value
        elif name == "--conf":
            name, _, value = value.partition("=")
            yield name, value
        elif name in ("--master", "--properties-file"):
            yield "spark.master" if name == "--master" else "", value or following
        elif name.startswith("-Dspark."):
            yield name[2:], value


def _defaults_file(environ: Mapping[str, str]) -> str | None:
    folder = environ.get("SPARK_CONF_DIR")
    if folder is None and environ.get("SPARK_HOME"):
        folder = os.path.join(environ["SPARK_HOME"], "conf")
    return os.path.join(folder, "spark-defaults.conf") if folder else None


def _from_file(file: Path, read: Callable[[Path], str]) -> dict[str, str]:
    try:
        lines = read(file).splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = (_ASSIGNMENT.match(line) for line in lines if not line.lstrip().startswith(("#", "!")))
    # Spark escapes what it writes into a properties file: `spark\://host\:7077`.
    return {match[1]: re.sub(r"\\(.)", r"\1", match[2]) for match in found if match is not None}


def ancestors() -> Iterator[tuple[int, list[str]]]:
    """Process ids and command lines of this process's ancestors (Linux), the nearest first."""
    process = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            yield process, Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            # The command's name, in parentheses, may hold anything.
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


READER_HOST = "PENSTOCK_READER_HOST"
"""Environment variable of the driver: the default of `readerHost`."""
LOOPBACK = "127.0.0.1"
_WILDCARDS = frozenset({"0.0.0.0", "::", "*"})
_OWN_NAMES = ("SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP", "SPARK_DRIVER_BIND_ADDRESS", "NM_HOST")
"""Variables with Spark's host: set by its user, by Kubernetes, and by YARN for a driver in a container."""
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
