"""Bearer tokens in a file: several of them, each with an end if it is to have one.

A line is a token, or a token and the moment at which it expires (ISO 8601, with a zone): `s3cret 2027-01-31T00:00:00Z`.
Empty lines and those that begin with `#` mean nothing. A server takes all tokens that have not expired; a client sends
the first of them.
"""

from __future__ import annotations

import hmac
import logging
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.rpc._files import Stamp, read_file, stamp_of
from penstock.rpc.errors import RpcOptionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_log = logging.getLogger("penstock.rpc")


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token."""

    value: str = field(repr=False)
    """The secret."""
    expires: datetime | None = None
    """When it is no longer taken; None: never."""

    def is_valid(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires is None or now < self.expires


def parse_tokens(text: str) -> tuple[Token, ...]:
    """The tokens of a file's text, in its order.

    Raises:
        RpcOptionError: a line is more than a token and a moment, or there is no token. Never shows the line.
    """
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or line.lstrip().startswith("#"):
            continue
        if len(parts) > 2 or not (parts[0].isascii() and parts[0].isprintable()):
            raise RpcOptionError("token_file", f"line {number} is not a token and, if need be, the moment of its end")
        tokens.append(Token(parts[0], _moment(parts[1], number) if len(parts) == 2 else None))
    if not tokens:
        raise RpcOptionError("token_file", "holds no token: write one per line")
    return tuple(tokens)


def _moment(text: str, line: int) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        # The text may be half of a token: it is not shown.
        raise RpcOptionError("token_file", f"line {line}: the end is no moment such as 2027-01-31T00:00:00Z")
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


class TokenFile:
    """The tokens of a file, read again when it has changed.

    A file that cannot be read any more, or holds no token, changes nothing: it may be half written. That is logged.
    Safe to use from several threads.

    Raises:
        RpcOptionError: at first, it cannot be read or holds no token.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: Stamp = stamp_of([path])
        self._tokens = self._read()

    def tokens(self) -> tuple[Token, ...]:
        """What the file holds by now."""
        stamp = stamp_of([self._path])
        with self._lock:
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._tokens = self._read()
                    _log.info("took over the changed tokens of %s", self._path)
                except RpcOptionError as error:
                    _log.warning("the tokens stay as they were: %s", error)
            return self._tokens

    def current(self) -> str:
        """The token to send: the first that has not expired. When all have, the last, for the server to say so."""
        now = datetime.now(UTC)
        tokens = self.tokens()
        return next((token for token in tokens if token.is_valid(now)), tokens[-1]).value

    def _read(self) -> tuple[Token, ...]:
        content = read_file(self._path, "token_file") or b""
        try:
            return parse_tokens(content.decode())
        except UnicodeDecodeError as error:
            raise RpcOptionError("token_file", f"{self._path} is no text") from error
