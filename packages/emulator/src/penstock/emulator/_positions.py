"""From a starting position, as GetShardIterator and SubscribeToShard name it, to a position in a shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import invalid_argument

if TYPE_CHECKING:
    from ._shard import Shard

# A client's clock may be ahead of ours by a little.
_FUTURE_SECONDS = 5.0


def resolve_position(
    shard: Shard,
    *,
    kind: str,
    sequence_number: str | None,
    timestamp: float | None,
    horizon: float,
    now: float,
) -> int:
    """Resolve one of the five shard iterator types.

    A timestamp before the first record means TRIM_HORIZON. `horizon` is the time before which records are trimmed.

    Raises:
        KinesisError: InvalidArgumentException where what the type needs is missing, or the sequence number is not of
            this shard, or from before the horizon: what came after it may be lost.
    """
    if kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        if sequence_number is None:
            raise invalid_argument(f"Must specify a sequence number for type {kind}.")
        position = shard.position_of(sequence_number)
        if position is None:
            raise invalid_argument(
                "Invalid StartingSequenceNumber. It encodes a shard or a position that is not of "
                f"{shard.id}: {sequence_number}"
            )
        if shard.is_before(sequence_number, horizon):
            raise invalid_argument(
                f"StartingSequenceNumber {sequence_number} used on {shard.id} is invalid because it is older than the "
                "retention period of the stream."
            )
        return position if kind == "AT_SEQUENCE_NUMBER" else position + 1
    if sequence_number is not None:
        raise invalid_argument(f"Cannot specify a sequence number for type {kind}.")
    if kind == "AT_TIMESTAMP":
        if timestamp is None:
            raise invalid_argument("Must specify a timestamp for type AT_TIMESTAMP.")
        if timestamp > now + _FUTURE_SECONDS:
            raise invalid_argument(
                "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {int(timestamp * 1000)}, currentTimestampInMillis: {int(now * 1000)}"
            )
        return shard.position_at(timestamp)
    return 0 if kind == "TRIM_HORIZON" else shard.tip
