"""Callers, by the token and the certificate of a call."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from penstock.rpc._security.principals import Principal, PrincipalsFile, everybody
from penstock.rpc._security.token_file import Token, TokenFile, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.rpc._security.security import ServerSecurity

_SCHEME = "Bearer "


class Callers:
    """Callers by token and certificate. A changed file counts from the next call on.

    Args:
        security: what the server demands.

    Raises:
        RpcOptionError: the file of tokens or principals cannot be read, or holds none.
    """

    def __init__(self, security: ServerSecurity) -> None:
        self.wants_token = security.wants_token
        self._shows_certificate = security.client_ca_file is not None
        self._principals: PrincipalsFile | None = None
        self._tokens: Callable[[], Sequence[Token]]
        if security.principals is not None:
            self._principals = PrincipalsFile(security.principals)
        if security.token_file is not None:
            self._tokens = TokenFile(security.token_file).tokens
        else:
            fixed = () if security.token is None else (Token(security.token),)
            self._tokens = lambda: fixed
        self._limited = () if security.limited_token is None else (Token(security.limited_token),)
        self._limited_to = security.limited_to
        self.can_change = security.token_file is not None or security.principals is not None
        """Whether who may call can change while the server runs."""

    @property
    def has_principals(self) -> bool:
        """Whether callers differ in what they may do."""
        return self._principals is not None

    def refusal(self, token: str) -> str | None:
        """Why a token that was sent is refused, or that none was; None when it is taken."""
        if self._principals is not None:
            return self._principals.knows(token)
        return verdict(token, self._tokens(), datetime.now(UTC))

    def is_limited_to(self, token: str, method: str) -> bool:
        """Whether a token that is good for some methods alone is good for this one, a full path."""
        return method in self._limited_to and verdict(token, self._limited, datetime.now(UTC)) is None

    def by_token(self, token: str) -> Principal | None:
        """Whose token it is, before a certificate is looked at; None where there are no principals."""
        return None if self._principals is None else self._principals.by_token(token)

    def find(self, token: str, names: Iterable[str]) -> Principal | str:
        """The caller with a token and a certificate of these names; or why it is refused."""
        if self._principals is not None:
            return self._principals.find(token, names)
        if self.wants_token:
            return self.refusal(token) or everybody("token")
        if not self._shows_certificate:
            return everybody("anybody")
        return everybody(f"certificate {next(iter(names), '')}".strip())


def address_of(context: Any) -> str:
    """Where a call comes from; empty for a Unix socket."""
    peer = unquote(context.peer())
    if peer.startswith("unix:"):
        return ""
    text = peer.removeprefix("ipv4:").removeprefix("ipv6:").rpartition(":")[0].strip("[]")
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return text[:100]
    return str(getattr(found, "ipv4_mapped", None) or found)


def token_of(metadata: Any) -> str:
    """The bearer token in a call's metadata; empty without one."""
    sent = str({str(key): value for key, value in metadata or ()}.get("authorization", ""))
    return sent.removeprefix(_SCHEME) if sent.startswith(_SCHEME) else ""
