"""Bearer tokens in a file: several of them, each with an end if it is to have one.

A line is a token, or a token and the moment at which it expires (ISO 8601, with a zone): `s3cret 2027-01-31T00:00:00Z`.
Empty lines and those that begin with `#` mean nothing. A server takes all tokens that have not expired; a client sends
the first of them.

A file that can be read and holds no token revokes all of them. One that is gone, unreadable or malformed may be in the
middle of a change: its last tokens are taken for another minute, and then none.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics

from penstock.rpc._security.files import RereadFile
from penstock.rpc.errors import RpcOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_ERRORS = metrics.get_meter("penstock.rpc").create_counter(
    "tokenFileErrors", unit="{error}", description="Changed files of tokens that could not be read"
)
MIN_TOKEN_CHARACTERS: Final = 32
"""Shorter tokens can be guessed. Servers do not take them, and clients do not send them."""
_TOO_SHORT: Final = (
    f"a token must have at least {MIN_TOKEN_CHARACTERS} characters: make one with `openssl rand -hex 32`"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token."""

    value: str = field(repr=False)
    """The secret."""
    expires: datetime | None = None
    """When it expires; None: never."""

    def is_valid(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires is None or now < self.expires


def parse_tokens(text: str) -> tuple[Token, ...]:
    """The tokens of a file's text, in its order.

    Raises:
        RpcOptionError: a line is more than a token and a moment, or its token is too short. Never shows the line.
    """
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or line.lstrip().startswith("#"):
            continue
        if len(parts) > 2 or not (parts[0].isascii() and parts[0].isprintable()):
            raise RpcOptionError("token_file", f"line {number} is not a token and, if need be, the moment of its end")
        if len(parts[0]) < MIN_TOKEN_CHARACTERS:
            raise RpcOptionError("token_file", f"line {number}: {_TOO_SHORT}")
        tokens.append(Token(parts[0], _moment(parts[1], number) if len(parts) == 2 else None))
    return tuple(tokens)


def _moment(text: str, line: int) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        # The text may be half of a token: it is not shown.
        raise RpcOptionError("token_file", f"line {line}: the end is not a moment such as 2027-01-31T00:00:00Z")
    return moment


def verdict(sent: str, tokens: Sequence[Token], now: datetime) -> str | None:
    """Why a token that was sent is refused; None when it is taken. Takes the same time whatever was sent."""
    valid = expired = False
    for token in tokens:
        same = hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), token.value.encode())
        valid |= same and token.is_valid(now)
        expired |= same
    if valid:
        return None
    return "the bearer token has expired" if expired else "the bearer token is missing or wrong"


def check_length(token: str, option: str) -> None:
    """Refuse a token that can be guessed. Raises: RpcOptionError."""
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise RpcOptionError(option, _TOO_SHORT)


class TokenFile:
    """The tokens of a file, read again when it has changed.

    Safe to use from several threads.

    Args:
        path: the file.
        clock: seconds that only grow, for how long a file cannot be read.

    Raises:
        RpcOptionError: at first, it cannot be read or holds no token, or one that is too short.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        def parse(content: bytes) -> tuple[Token, ...]:
            try:
                return parse_tokens(content.decode())
            except UnicodeDecodeError as error:
                raise RpcOptionError("token_file", f"{path} is not text") from error

        nothing: tuple[Token, ...] = ()
        self._file = RereadFile(path, "token_file", parse, nothing, noun="token", errors=_ERRORS, clock=clock)
        self._sent = self._file.value()
        if not self._sent:
            raise RpcOptionError("token_file", "holds no token: write one per line")

    def tokens(self) -> tuple[Token, ...]:
        """The tokens that are taken now; none after the file was emptied, or could not be read for a minute."""
        return self._file.value()

    def current(self) -> str:
        """The token to send: the first that has not expired; the last one there was, for the server to judge."""
        now = datetime.now(UTC)
        self._sent = tokens = self.tokens() or self._sent
        return next((token for token in tokens if token.is_valid(now)), tokens[-1]).value
