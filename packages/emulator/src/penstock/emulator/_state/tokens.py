"""Opaque tokens: shard iterators and NextTokens."""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pybase64

if TYPE_CHECKING:
    from random import Random

_DIGEST_BYTES: Final = 16
_ITERATOR: Final = "shard iterator"


class ShardIterator(NamedTuple):
    """What a shard iterator says."""

    made: float
    """When it was given, in seconds since the epoch."""
    stream: str
    stream_created: float
    shard: str
    position: int
    since: float = 0.0
    """The time up to which the shard was looked through, in seconds since the epoch."""
    empty_answers: int = 0
    """How many answers without records come before the next record or the end of the shard."""


class TokenSealer:
    """Makes tokens that only the same emulator can read, so that nobody comes to rely on what is in them."""

    def __init__(self, random: Random) -> None:
        # By it these tokens differ from those of another emulator.
        self._key = random.randbytes(32)

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

    def seal_iterator(self, iterator: ShardIterator) -> str:
        """The token of an iterator."""
        return self.seal(_ITERATOR, list(iterator))

    def open_iterator(self, token: str) -> ShardIterator | None:
        """Read the token of an iterator; None where it is none of this emulator's."""
        content = self.open(_ITERATOR, token)
        return ShardIterator(*content) if content is not None else None

    def _digest(self, kind: str, body: bytes) -> bytes:
        return blake2b(kind.encode() + b"\0" + body, key=self._key, digest_size=_DIGEST_BYTES).digest()
