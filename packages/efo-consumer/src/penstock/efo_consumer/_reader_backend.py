"""What a shard reader needs of Kinesis: narrow, so that a fake can stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from penstock.efo_consumer._positions import ShardPosition
    from penstock.efo_consumer._publisher import RecordPublisher, RecordPublisherType, ShardEvent


class KnownShard(Protocol):
    """A shard as ListShards shows it."""

    @property
    def shard_id(self) -> str:
        """Chosen by Kinesis."""
        ...

    @property
    def parent_shard_ids(self) -> tuple[str, ...]:
        """None, one after a split, two after a merge; expired parents may be missing."""
        ...

    @property
    def starting_hash_key(self) -> str:
        """Decimal, inclusive."""
        ...

    @property
    def ending_hash_key(self) -> str:
        """Decimal, inclusive."""
        ...


class ReaderBackend(Protocol):
    """Kinesis, as far as a shard reader uses it."""

    def record_publisher(
        self, record_publisher: RecordPublisherType, consumer_arns: Mapping[str, str]
    ) -> RecordPublisher:
        """Make a publisher for one session; `consumer_arns` is by stream name."""
        ...

    async def list_shards(self, stream_name: str) -> Sequence[KnownShard]:
        """Give all shards that the stream still lists, open and closed."""
        ...

    def read_once(self, stream_name: str, shard_id: str, after: ShardPosition) -> AsyncGenerator[ShardEvent, None]:
        """Poll a shard from a position on, in order, up to its tip or end; for ranges that are read again.

        Events without records are told too: they show that reading goes on.
        """
        ...

    async def retention_seconds(self, stream_name: str) -> float:
        """Tell how long the stream keeps its records."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
