"""How often wrong tokens may come from one address: one count for all ways into a server.

Who guesses is slowed down, to four tokens a second in the long run. Nobody is locked out by another's guesses: a right
token gets in at once, and where an address has sent so many wrong ones that none of its tokens is looked at for some
seconds, those that were right there before still get in.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import unquote

from opentelemetry import metrics

from penstock.rpc.errors import RpcOptionError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SECONDS_EACH: Final = 0.25
"""That a wrong token costs its address."""
_FREE_SECONDS: Final = 2.5
"""Ten of them, for typing errors and jobs with an old token, are answered at once."""
_FULL_SECONDS: Final = 10.0
_MOST_ADDRESSES: Final = 10_000
_MOST_KNOWN: Final = 10_000
_log = logging.getLogger("penstock.rpc")
_WRONG = metrics.get_meter("penstock.rpc").create_counter(
    "wrongTokens", unit="{token}", description="Tokens that were refused, or not looked at after too many wrong ones"
)


class Attempts:
    """Counts wrong tokens by address; an IPv6 network of 64 bits counts as one.

    Args:
        trusted_proxies: addresses and networks whose `X-Forwarded-For` says where a call comes from.
        clock: monotonic seconds.
    """

    def __init__(self, trusted_proxies: Sequence[Network] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._trusted = trusted_proxies
        self._clock = clock
        self._paid_until: OrderedDict[str, float] = OrderedDict()
        self._known: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def address(self, peer: str, forwarded: str = "") -> str:
        """Where a call comes from.

        Args:
            peer: address of the connection, plain or as gRPC writes it; empty for one of this user, by a Unix socket.
            forwarded: what the call says of its way, `X-Forwarded-For`. Believed of trusted proxies only.
        """
        hops = [_plain(hop) for hop in (*forwarded.split(","), peer) if hop.strip()]
        while len(hops) > 1 and self._is_trusted(hops[-1]):
            hops.pop()
        return hops[-1] if hops else ""

    def may_try(self, address: str, token: str) -> bool:
        """Whether a token is looked at: unless too many wrong ones came from there, or where it was right before."""
        if not address or self._paid_until.get(_counted(address), 0.0) - self._clock() < _FULL_SECONDS:
            return True
        if (_counted(address), _digest(token)) in self._known:
            return True
        _WRONG.add(1)
        return False

    def right(self, address: str, token: str) -> None:
        """Remember that the token was right there."""
        if address:
            key = _counted(address), _digest(token)
            self._known[key] = None
            self._known.move_to_end(key)
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)

    def wrong(self, address: str) -> float:
        """Count a wrong token. Returns the seconds for which its answer is held back."""
        if not address:
            return 0.0
        _WRONG.add(1)
        key, now = _counted(address), self._clock()
        before = max(0.0, self._paid_until.get(key, 0.0) - now)
        after = before + SECONDS_EACH
        if before < _FULL_SECONDS <= after:
            _log.warning("%s has sent so many wrong tokens that further ones wait", address)
        self._paid_until[key] = now + after
        self._paid_until.move_to_end(key)
        while len(self._paid_until) > _MOST_ADDRESSES:
            self._paid_until.popitem(last=False)
        return max(0.0, after - _FREE_SECONDS)

    async def hold_back(self, address: str) -> None:
        """Count a wrong token, and wait for as long as its answer is held back."""
        await asyncio.sleep(self.wrong(address))

    def _is_trusted(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._trusted)


def networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks with commas between them.

    Raises:
        RpcOptionError: a part is neither an address nor a network.
    """
    try:
        return tuple(ipaddress.ip_network(one.strip()) for one in text.split(",") if one.strip())
    except ValueError as error:
        reason = f"{error}: give addresses or networks such as 10.0.0.7 or 10.0.0.0/24, with commas between them"
        raise RpcOptionError("trusted_proxies", reason) from error


def _plain(peer: str) -> str:
    """The address in `ipv4:1.2.3.4:5`, `ipv6:%5B::1%5D:5`, `1.2.3.4`, `1.2.3.4:5` or `::1`; empty for a Unix socket."""
    text = unquote(peer.strip())
    if text.startswith("unix:"):
        return ""
    text = text.removeprefix("ipv4:").removeprefix("ipv6:")
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return text[:100]
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def _counted(address: str) -> str:
    # Who has one address of IPv6 has the other 2^64 of its network.
    try:
        return str(ipaddress.IPv6Network(f"{address}/64", strict=False))
    except ValueError:
        # One of IPv4, or whatever a proxy writes in the place of an address.
        return address


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
