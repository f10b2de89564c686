"""Opaque tokens: shard iterators and NextTokens."""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import pybase64

if TYPE_CHECKING:
    from random import Random

_DIGEST_BYTES = 16


class TokenSealer:
    """Makes tokens that only the same emulator can read, so that nobody comes to rely on what is in them."""

    def __init__(self, random: Random) -> None:
        self.key = random.randbytes(32)
        """What tells these tokens from those of another emulator."""

    def seal(self, kind: str, content: list[Any]) -> str:
        """Put `content` (strings and numbers) into a token of this kind."""
        body = msgspec.msgpack.encode(content)
        return pybase64.b64encode(self._digest(kind, body) + body).decode()

    def open(self, kind: str, token: str) -> list[Any] | None:
        """Take the content out of a token; None for one that is forged, damaged, or of another kind."""
        try:
            sealed = pybase64.b64decode(token, validate=True)
        except ValueError:
            return None
        digest, body = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:]
        if not hmac.compare_digest(digest, self._digest(kind, body)):
            return None
        content: list[Any] = msgspec.msgpack.decode(body)
        return content

    def _digest(self, kind: str, body: bytes) -> bytes:
        return blake2b(kind.encode() + b"\0" + body, key=self.key, digest_size=_DIGEST_BYTES).digest()
