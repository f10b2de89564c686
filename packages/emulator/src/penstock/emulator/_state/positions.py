"""Where a reader starts in a shard, and the opaque tokens of shard iterators and NextTokens."""

from __future__ import annotations

import hmac
from hashlib import blake2b
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pybase64

from penstock.emulator.errors import invalid_argument

if TYPE_CHECKING:
    from random import Random

    from penstock.emulator._config import Behaviour
    from penstock.emulator._state.shard import Shard

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
    """Makes tokens that only the same emulator can read, so that clients cannot rely on their content."""

    def __init__(self, random: Random) -> None:
        # It makes these tokens differ from another emulator's.
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
        """Read the token of an iterator; None if another emulator made it."""
        content = self.open(_ITERATOR, token)
        return ShardIterator(*content) if content is not None else None

    def _digest(self, kind: str, body: bytes) -> bytes:
        return blake2b(kind.encode() + b"\0" + body, key=self._key, digest_size=_DIGEST_BYTES).digest()


# A client's clock may be slightly ahead of the emulator's.
_FUTURE_SECONDS = 5.0


class Start(NamedTuple):
    """Where a reader starts."""

    position: int
    since: float
    """The time from which on it wants records, in seconds since the epoch; no record that it wants is older."""


def resolve_position(
    shard: Shard,
    *,
    kind: str,
    sequence_number: str | None,
    timestamp: float | None,
    horizon: float,
    now: float,
    behaviour: Behaviour,
    continuations: bool = True,
) -> Start:
    """Resolve one of the five shard iterator types.

    A timestamp before the first record means TRIM_HORIZON. `horizon` is the time before which records are trimmed,
    `continuations` whether a sequence number may be one that no record has.

    Raises:
        KinesisError: InvalidArgumentException where what the type needs is missing, the sequence number is not of
            this shard or is trimmed, or `behaviour` wants the position refused.
    """
    oldest = max(horizon, shard.created)
    if kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        if sequence_number is None:
            raise invalid_argument(f"Must specify a sequence number for type {kind}.")
        position = shard.position_of(sequence_number)
        if position is None and behaviour.accept_deleted_numbers:
            place = shard.position_of_namesake(sequence_number)
            if place is not None:
                return Start(max(place, shard.trimmed_to), oldest)
        if position is None:
            raise invalid_argument(
                "Invalid StartingSequenceNumber. It encodes a shard or a position that is not of "
                f"{shard.id}: {sequence_number}"
            )
        if shard.is_before(sequence_number, horizon) and not behaviour.read_on_from_trimmed:
            raise invalid_argument(
                f"StartingSequenceNumber {sequence_number} used on {shard.id} is invalid because it is older than the "
                "retention period of the stream."
            )
        if not continuations and not shard.is_known_number(sequence_number):
            raise invalid_argument(
                f"Invalid StartingSequenceNumber. No record of {shard.id} has the sequence number {sequence_number}"
            )
        if kind == "AFTER_SEQUENCE_NUMBER":
            position += 1
        return Start(max(position, shard.trimmed_to), max(oldest, shard.given_out_at(sequence_number)))
    if sequence_number is not None:
        raise invalid_argument(f"Cannot specify a sequence number for type {kind}.")
    if kind == "AT_TIMESTAMP":
        if timestamp is None:
            raise invalid_argument("Must specify a timestamp for type AT_TIMESTAMP.")
        if round(timestamp * 1000) > ceil(
            (now + (0 if behaviour.refuse_future_timestamps else _FUTURE_SECONDS)) * 1000
        ):
            raise invalid_argument(
                "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {int(timestamp * 1000)}, currentTimestampInMillis: {int(now * 1000)}"
            )
        return Start(shard.position_at(timestamp), max(oldest, timestamp))
    return Start(shard.trimmed_to, oldest) if kind == "TRIM_HORIZON" else Start(shard.tip, now)
