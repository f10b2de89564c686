"""What a bounded read takes of each shard: decided once, when it is planned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from penstock.aws import AwsSession
from penstock.efo_consumer import HashKeyRange, Shard, ShardPosition
from penstock.spark_plugin._initial_positions import ancestors, named, seam_of
from penstock.spark_plugin._option_values import InitialPosition, InitialPositionType
from penstock.spark_plugin._options import KinesisOptions


@dataclass(frozen=True, slots=True)
class BoundedShard:
    """A shard, and what a bounded read takes of it."""

    stream_name: str
    shard_id: str
    after: ShardPosition
    before_micros: int | None = None
    """The first record that arrived at this time (microseconds since 1970) or later ends it, and is left out."""
    upto: str | None = None
    """The last sequence number; later ones are left out."""
    hash_keys: HashKeyRange | None = None
    """The shard's: user records of aggregates outside of it come by another shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Both ends of a bounded read: each is a position for all shards, or one for each that is named."""

    after: ShardPosition
    after_shards: Mapping[str, Mapping[str, ShardPosition]]
    """By stream and shard, where the user has named them; children of these begin at TRIM_HORIZON."""
    before_micros: int | None
    upto_shards: Mapping[str, Mapping[str, ShardPosition]]
    """By stream and shard, where the user has named them; nothing else is read then."""

    @classmethod
    def resolve(cls, session: AwsSession, options: KinesisOptions, now_micros: int) -> Self:
        """The bounds that the options name, for a read that is planned now. Makes seams that are not there yet."""
        start, end = options.initial_position, options.ending_position
        before: int | None
        if end is None:
            time = options.ending_timestamp
            before = now_micros if time is None else int(time.timestamp() * 1e6)
        elif end.type is InitialPositionType.TRIM_HORIZON:
            before = 0
        elif end.streams is not None:
            before = None
        else:
            before = _micros(session, options, end, now_micros)
        return cls(
            after=_after(session, options, start, now_micros),
            after_shards=named(start, options) if start is not None else {},
            before_micros=before,
            upto_shards=named(end, options) if end is not None else {},
        )

    def of_stream(self, stream: str, shards: Sequence[Shard]) -> Iterator[BoundedShard]:
        """The shards of a stream that are read, and how far."""
        after_shards, upto_shards = self.after_shards.get(stream), self.upto_shards.get(stream)
        past: set[str] = set()
        if after_shards is not None:
            past = ancestors(after_shards, {one.shard_id: set(one.parent_shard_ids) for one in shards})
        # All that precedes a named end belongs to the read: the parents of its shards are read to their end.
        whole: set[str] = set()
        if upto_shards is not None:
            whole = ancestors(upto_shards, {one.shard_id: set(one.parent_shard_ids) for one in shards})
        for shard in shards:
            after = (after_shards or {}).get(shard.shard_id, self.after)
            upto = (upto_shards or {}).get(shard.shard_id)
            skipped = upto_shards is not None and upto is None and shard.shard_id not in whole
            if skipped or shard.shard_id in past or after.is_shard_end:
                continue
            if upto is not None and not upto.is_shard_end and upto.sequence_number is None:
                continue  # up to TRIM_HORIZON: nothing
            yield BoundedShard(
                stream,
                shard.shard_id,
                after,
                self.before_micros,
                upto.sequence_number if upto is not None else None,
                HashKeyRange.of(shard.starting_hash_key, shard.ending_hash_key),
            )


def _after(
    session: AwsSession, options: KinesisOptions, start: InitialPosition | None, now_micros: int
) -> ShardPosition:
    """Where shards begin that are not named."""
    if start is None or start.streams is not None or start.type is InitialPositionType.TRIM_HORIZON:
        return ShardPosition.trim_horizon()
    # LATEST: nothing, unless the end lies in the future.
    return ShardPosition.at_timestamp(_micros(session, options, start, now_micros) // 1000)


def _micros(session: AwsSession, options: KinesisOptions, position: InitialPosition, now_micros: int) -> int:
    if position.type is InitialPositionType.SEAM:
        return seam_of(session, options, position) * 1000
    return now_micros if position.timestamp is None else int(position.timestamp.timestamp() * 1e6)
