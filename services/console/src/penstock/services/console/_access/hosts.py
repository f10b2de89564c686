"""Which names a browser may call the console by, where a form may come from, and what has no place in an address."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl, urlsplit

_TOKENS = frozenset({"token", "access_token", "authorization", "bearer", "password"})


def is_known_host(header: str, names: Collection[str]) -> bool:
    """Whether the Host header is an address, localhost or one of the names.

    A page of somebody else that makes its own name lead to this machine (DNS rebinding) calls by that name; a page
    cannot make an address lead elsewhere.
    """
    try:
        parts = urlsplit(f"//{header}")
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if parts.path or parts.query or parts.fragment or "@" in header:
        return False
    if host == "localhost" or host in {name.lower() for name in names}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a form comes from a page of the console itself. One that says nothing is refused."""
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is None and origin is None:
        return False
    if site not in (None, "same-origin"):
        return False
    # Not the scheme: behind a proxy that ends TLS the console does not know its own.
    if origin is None:
        return True
    try:
        place = urlsplit(origin).netloc
    except ValueError:
        return False
    return place != "" and place == headers.get("Host")


def is_local_path(path: str) -> bool:
    """Whether a redirect to the path stays on the console."""
    return path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()


def holds_token(query: str) -> bool:
    """Whether somebody put a token into an address, which browsers remember and proxies write down."""
    return any(name.strip().lower() in _TOKENS for name, _ in parse_qsl(query, keep_blank_values=True))


def where_to(path: str) -> str:
    """Where a login leads: the path, or the first page if that is not the console's own or holds a token."""
    return path if is_local_path(path) and not holds_token(path.partition("?")[2]) else "/"
