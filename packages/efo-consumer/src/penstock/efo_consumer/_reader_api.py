"""The contract of shard readers: one long-lived reader, exact ranges. In-process and over gRPC alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.efo_consumer._publisher import RecordPublisherType

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._positions import ShardRange, StreamPositions


@dataclass(frozen=True)
class StreamConsumer:
    """A stream consumer that the caller leased, by which a stream is read with enhanced fan-out.

    Attributes:
        stream_name: the stream.
        consumer_arn: chosen by Kinesis.
        fencing_token: of the lease; 0 without one. A reader refuses an older token than it has seen.
    """

    stream_name: str
    consumer_arn: str
    fencing_token: int = 0


@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """Starts a session, or takes over the one of the same id.

    Attributes:
        session_id: chosen by the caller; the same for a restart of the same query.
        positions: where to begin. LATEST was resolved by the caller, once.
        record_publisher: how records are fetched.
        consumers: one per stream with enhanced fan-out, none with polling.
    """

    session_id: str
    positions: StreamPositions
    record_publisher: RecordPublisherType = RecordPublisherType.EFO
    consumers: tuple[StreamConsumer, ...] = ()


@dataclass(frozen=True)
class PositionsSnapshot:
    """How far the buffers reach.

    Attributes:
        positions: equal to the start when nothing is new.
        records: between start and positions, as far as they were buffered.
        bytes: their data and partition keys.
        millis_behind_latest: the largest of all open shards, by Kinesis at its newest event; -1 when one is
            not known yet.
    """

    positions: StreamPositions
    records: int
    bytes: int
    millis_behind_latest: int


@dataclass(frozen=True)
class ShardStats:
    """Numbers about a shard, since its session was opened.

    Attributes:
        millis_behind_latest: by Kinesis at the newest event; -1 when not known.
        records: received.
        bytes: received, data and partition keys.
        subscriptions: times that the reader began to follow the shard.
        buffered_records: in memory now.
        buffered_bytes: in memory now, data and partition keys.
        replays: ranges that were read again from Kinesis.
    """

    stream_name: str
    shard_id: str
    millis_behind_latest: int
    records: int
    bytes: int
    subscriptions: int
    buffered_records: int
    buffered_bytes: int
    replays: int


class ShardReader(Protocol):
    """Keeps shards open, and gives the records of exact ranges as often as they are asked for."""

    async def open(self, request: OpenRequest) -> int:
        """Open a session and give its epoch, larger than any before; older epochs are refused from then on.

        Raises:
            FencedConsumerError: a consumer's lease is older than one that was seen.
            PositionsError: the request has no positions.
        """
        ...

    async def positions(
        self,
        session_id: str,
        epoch: int,
        start: StreamPositions,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
    ) -> PositionsSnapshot:
        """Tell how far the buffers lead from `start`; what was answered is promised to be readable.

        Limits of 0 do not bound. Waits at most `wait_seconds` for the first record beyond `start`. Idle
        shards' continuations come along with records, or alone at most every `idle_offset_interval`.

        Raises:
            SessionNotFoundError: no such session.
            StaleEpochError: the session was opened again.
            ShardFailedError: a shard cannot be followed, and nothing else is left to answer.
        """
        ...

    def read_range(
        self,
        session_id: str,
        ranges: Sequence[ShardRange],
        *,
        epoch: int = 0,
        with_encryption_type: bool = False,
        max_batch_bytes: int = 0,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the records of the ranges, range by range, in sequence order, always the same ones.

        Needs no session: what no buffer holds is read again from Kinesis. Epoch 0 skips the check of the
            epoch.

        Raises:
            DataLossError: the stream no longer holds a range.
            RangeDeadlineError: a range did not come in time.
            StaleEpochError: the session was opened again since `epoch`.
        """
        ...

    async def commit(self, session_id: str, epoch: int, positions: StreamPositions) -> None:
        """Drop what lies at or before the positions from the buffers.

        Raises:
            SessionNotFoundError: no such session.
            StaleEpochError: the session was opened again.
        """
        ...

    async def stats(self, session_id: str) -> list[ShardStats]:
        """Give one entry per shard that is or was followed.

        Raises:
            SessionNotFoundError: no such session.
        """
        ...

    async def close_session(self, session_id: str, epoch: int) -> None:
        """End the session and its subscriptions. One that is gone, or was opened again, is left alone."""
        ...

    async def aclose(self) -> None:
        """End every session, or the connection to a remote reader."""
        ...


class BlockingShardReader(Protocol):
    """One session of a shard reader for callers without an event loop. Safe to share between threads."""

    def open(
        self,
        session_id: str,
        positions: StreamPositions,
        record_publisher: RecordPublisherType = RecordPublisherType.EFO,
        consumers: Sequence[StreamConsumer | tuple[str, str, int]] = (),
    ) -> int:
        """See `ShardReader.open`; the other calls are for the session that was opened last."""
        ...

    def positions(
        self, start: StreamPositions, *, max_records: int = 0, max_bytes: int = 0, wait_seconds: float = 0.0
    ) -> PositionsSnapshot:
        """See `ShardReader.positions`."""
        ...

    def commit(self, positions: StreamPositions) -> None:
        """See `ShardReader.commit`."""
        ...

    def stats(self) -> list[ShardStats]:
        """See `ShardReader.stats`."""
        ...

    def close(self) -> None:
        """End the session."""
        ...
