"""Addresses of services. No gRPC: who only looks at options does not load it."""

import ipaddress
import re
from typing import Final

from penstock.rpc.errors import RpcOptionError

# Of gRPC's name resolvers, those that lead to a service.
_SCHEME: Final = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|xds):.+")
_HOST: Final = re.compile(r"\[[0-9a-fA-F:.]+(%\w+)?\]|[^\s:/\[\]]+")


def is_loopback(host: str) -> bool:
    """Whether nothing but this machine can be behind the host name or address."""
    name = host.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(endpoint: str) -> str:
    """The host of `host:port`, `[v6]:port`; a Unix socket counts as localhost."""
    if endpoint.startswith("unix:"):
        return "localhost"
    return endpoint.rpartition(":")[0] or endpoint


def check_address(endpoint: str) -> None:
    """Refuse what is neither `host:port` nor of one of gRPC's schemes, which it would take for something else.

    Raises:
        RpcOptionError: the address is neither.
    """
    if _SCHEME.match(endpoint):
        return
    host, _, port = endpoint.rpartition(":")
    if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise RpcOptionError("endpoint", f"{endpoint!r} is not a HOST:PORT, such as 127.0.0.1:50051")
