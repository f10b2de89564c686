"""Is the Spark session set up for short micro-batches, and can tasks reach the reader?"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.cli._doctor._surroundings import Finding, Surroundings, ok, problem, skipped, warning

# In which order a reader of a query looks for its address on a cluster; see the option readerHost.
_HOST_VARIABLES: Final = ("SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP", "SPARK_DRIVER_BIND_ADDRESS", "NM_HOST")
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*"})
_SHOWN_CHARACTERS: Final = 40
_LINE: Final = re.compile(r"^\s*([\w.]+)\s*(?:=|:|\s)\s*(.*?)\s*$")


def read_spark_conf(path: Path) -> dict[str, str]:
    """Settings of a `spark-defaults.conf`.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: the file is not text.
    """
    settings = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.lstrip().startswith(("#", "!")) and (match := _LINE.match(line)):
            settings[match[1]] = match[2]
    return settings


def default_spark_conf(environ: Mapping[str, str]) -> Path | None:
    """Where Spark itself looks for settings; None without such a file."""
    folder = environ.get("SPARK_CONF_DIR")
    if not folder and environ.get("SPARK_HOME"):
        folder = f"{environ['SPARK_HOME']}/conf"
    path = Path(folder) / "spark-defaults.conf" if folder else None
    return path if path is not None and path.is_file() else None


def check_session_settings(surroundings: Surroundings) -> Iterator[Finding]:
    """The settings that `penstock.spark_plugin.configure` makes."""
    settings = surroundings.spark_settings
    if settings is None:
        yield skipped("Session settings", "they are not known", "give --spark-conf FILE or --conf NAME=VALUE")
        return
    try:
        from penstock.spark_plugin import recommended_settings
    except ImportError as error:
        yield skipped("Session settings", f"penstock.spark_plugin cannot be imported: {error}")
        return
    missing = {name: value for name, value in recommended_settings().items() if settings.get(name) != value}
    for name, value in missing.items():
        slow = "redaction" not in name
        effect = "micro-batches are longer" if slow else "secrets of options may be shown in plans and logs"
        by_hand = f"it to {value}" if len(value) <= _SHOWN_CHARACTERS else "what recommended_settings() says"
        cure = f"use penstock.spark_plugin.configure(builder), or set {by_hand}"
        yield warning("Session settings", f"{name} is not as recommended: {effect}", cure)
    if not missing:
        yield ok("Session settings", f"as recommended, in {surroundings.spark_settings_from}")


def check_reader_address(surroundings: Surroundings) -> Iterator[Finding]:
    """On a cluster, tasks come to the reader in the driver over the network."""
    settings = surroundings.spark_settings or {}
    master = settings.get("spark.master") or surroundings.environ.get("MASTER") or "local"
    chosen = _chosen_host(surroundings, settings)
    is_local = master.startswith("local")
    if chosen is None:
        where = "local mode: loopback is enough" if is_local else f"master {master}: the address of the default route"
        yield ok("Reader's address", where)
        return
    host, source = chosen
    cure = "set readerHost or PENSTOCK_READER_HOST to an address of the driver that executors can reach"
    if host in _WILDCARDS:
        yield ok("Reader's address", f"{source}={host}: everywhere")
        return
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host.strip("[]"), None)}
    except (OSError, UnicodeError) as error:
        yield problem("Reader's address", f"{source}={host} cannot be resolved: {error}", cure)
        return
    loopback = all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)
    if loopback and not is_local:
        text = f"{source}={host} is loopback, and the master is {master}: executors on other machines cannot come there"
        yield problem("Reader's address", text, cure)
    elif not any(map(_is_own, addresses)):
        text = f"{source}={host} is not an address of this machine"
        yield warning(
            "Reader's address", text, f"if this is the driver's machine, {cure}; behind NAT: readerBindAddress too"
        )
    else:
        yield ok("Reader's address", f"{source}={host}")


def check_time_zone(surroundings: Surroundings) -> Iterator[Finding]:
    """Times are shown, and windows by the day are cut, in the session's zone."""
    name = surroundings.environ.get("TZ")
    if name and not name.startswith((":", "/")) and re.fullmatch(r"[A-Za-z_]+/[\w/+-]+", name):
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError):
            yield problem("Time zone", f"TZ={name} is not a known time zone", "pip install tzdata, or correct TZ")
            return
    zone = (surroundings.spark_settings or {}).get("spark.sql.session.timeZone")
    if zone is not None:
        yield ok("Time zone", f"spark.sql.session.timeZone={zone}")
    elif time.strftime("%z") in ("+0000", ""):
        yield ok("Time zone", "UTC")
    else:
        text = f"the session takes the machine's, {time.strftime('%Z')}: days are cut and times are shown in it"
        yield warning("Time zone", text, "set spark.sql.session.timeZone=UTC, if that is what is meant")


def _chosen_host(surroundings: Surroundings, settings: Mapping[str, str]) -> tuple[str, str] | None:
    environ = surroundings.environ
    if surroundings.reader_host:
        return surroundings.reader_host, "readerHost"
    if environ.get("PENSTOCK_READER_HOST"):
        return environ["PENSTOCK_READER_HOST"], "PENSTOCK_READER_HOST"
    if (settings.get("spark.master") or environ.get("MASTER") or "local").startswith("local"):
        return None
    if settings.get("spark.driver.host"):
        return settings["spark.driver.host"], "spark.driver.host"
    return next(((environ[name], name) for name in _HOST_VARIABLES if environ.get(name)), None)


def _is_own(address: str) -> bool:
    """Whether one can listen there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
