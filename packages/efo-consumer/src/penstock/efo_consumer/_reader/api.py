"""The contract of shard readers: one long-lived reader, exact ranges. In-process and over gRPC alike."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypedDict

# The contract over gRPC is derived from what is here, so that the types are imported.
from penstock.aws import AwsLocation
from penstock.efo_consumer._model.positions import ShardRange, StreamPositions, ranges_between
from penstock.efo_consumer._publish.condition import ShardCondition
from penstock.efo_consumer._publish.publisher import RecordPublisherType
from penstock.efo_consumer._reader.config import SessionSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._publish.config import Deaggregation


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
    """Starts a session, takes over the one of the same id, or joins it again.

    The number of the run decides which caller has a session. It outlives every reader: the reader gives it to a new
    run, and the caller brings it along to all further openings, here, at other readers and after restarts.

    Attributes:
        session_id: chosen by the caller; the same for a restart of the same query.
        positions: where to begin. LATEST was resolved by the caller, once.
        record_publisher: how records are fetched.
        consumers: one per stream with enhanced fan-out, none with polling.
        named_shards_only: follow exactly the shards that `positions` names, and let their children enter nothing: the
            caller spreads shards over several readers, and places children itself.
        session_seconds: after which a session without calls is ended; 0 leaves it to the reader.
        fail_on_data_loss: whether records that the stream no longer holds are an error, instead of counted and
            skipped; None leaves it to the reader.
        retry_patience_seconds: how long errors that may pass are retried; 0 for no limit, None leaves it to the reader.
        settings: how this session's shards are followed; None leaves all of it to the reader.
        caller: where the caller's streams are. A reader behind an endpoint refuses streams of another place than its
            own; None compares nothing.
        epoch: number of the caller's run, as an earlier `open` gave it; 0 for a new run, which takes the session over.
        after_epoch: with a new run, the newest number that its checkpoint knows: its own will be larger.
        owner: host and process of the caller, for the error of a predecessor.
        number_only: only give the number of a new run, and open nothing. A reader may handle a call after its caller
            abandoned it; a caller that repeats calls asks for the number first, and opens with it as `epoch`.
    """

    session_id: str
    positions: StreamPositions
    record_publisher: RecordPublisherType = RecordPublisherType.EFO
    consumers: tuple[StreamConsumer, ...] = ()
    named_shards_only: bool = False
    session_seconds: float = 0.0
    fail_on_data_loss: bool | None = None
    retry_patience_seconds: float | None = None
    settings: SessionSettings | None = None
    caller: AwsLocation | None = None
    epoch: int = 0
    after_epoch: int = 0
    owner: str = ""
    number_only: bool = False


@dataclass(frozen=True)
class ShardLineage:
    """Where a shard comes from: no parent, one after a split, two after a merge.

    Attributes:
        is_gone: whether nothing of it is left in Kinesis. All shards that are listed are shown beside it.
    """

    stream_name: str
    shard_id: str
    parent_shard_ids: tuple[str, ...]
    is_gone: bool = False


@dataclass(frozen=True, kw_only=True)
class ShardSkew:
    """How far apart shards are in time, where a bound was asked for.

    Times are in milliseconds since the epoch, by the service's clock.

    Attributes:
        slowest_stream: the stream of the shard that was read least far; empty if no shard counts.
        slowest_shard: that shard.
        slowest_millis: the time up to which it was read; None while unknown.
        latest_millis: the latest arrival time of the answer's records; None without any.
        holds_back: whether records are buffered that arrived too late to be in the answer.
        left_behind: shards that hold nothing back any more, as they made no progress.
    """

    slowest_stream: str = ""
    slowest_shard: str = ""
    slowest_millis: int | None = None
    latest_millis: int | None = None
    holds_back: bool = False
    left_behind: int = 0


@dataclass(frozen=True)
class PositionsSnapshot:
    """How far the buffers reach.

    Attributes:
        positions: equal to the start when nothing is new.
        records: buffered records between start and positions.
        bytes: their data and partition keys.
        millis_behind_latest: the largest of all open shards, as in `ShardStats`; -1 when one is not known.
        lineage: the children of shards whose position is SHARD_END, and their ancestors where these are known.
        skew: how far apart the shards are; None where no bound was asked for. With `horizon_millis` alone it has only
            `latest_millis` and `holds_back`.
    """

    positions: StreamPositions
    records: int
    bytes: int
    millis_behind_latest: int
    lineage: tuple[ShardLineage, ...] = ()
    skew: ShardSkew | None = None


@dataclass(frozen=True)
class SlowShard:
    """A shard that was read less far than others.

    Attributes:
        stream_name: the stream.
        shard_id: the shard.
        read_millis: the time up to which it was read, in milliseconds since the epoch; None while unknown.
        waits: whether records of it are buffered and were not answered.
    """

    stream_name: str
    shard_id: str
    read_millis: int | None
    waits: bool


@dataclass(frozen=True)
class ProfilePoint:
    """How many records arrived at or before a time.

    Attributes:
        arrived_millis: the time, in milliseconds since the epoch.
        records: so many did.
        bytes: their data and partition keys.
    """

    arrived_millis: int
    records: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ShardsLook:
    """What a reader shows of its shards, for a caller that has several readers keep step.

    Times are in milliseconds since the epoch, by the service's clock.

    Attributes:
        newest_millis: the time up to which the shard was read that is furthest; None without one.
        slow: the shards that were read up to a time before the one that was asked about, or of which it is unknown, and
            in any case those that are least far.
        left_out_millis: the arrival time of the first record that `max_records_per_shard` leaves out; None without one.
        interval_seconds: time between two answers of a shard that is well; 0 if the service sends them.
        profile: how many of the waiting records, within the limits that were asked about, arrived at or before some
            times; empty if no limit was asked about.
        is_cut: whether the limits leave records out of the profile.
    """

    newest_millis: int | None = None
    slow: tuple[SlowShard, ...] = ()
    left_out_millis: int | None = None
    interval_seconds: float = 0.0
    profile: tuple[ProfilePoint, ...] = ()
    is_cut: bool = False


@dataclass(frozen=True)
class FollowedBatch:
    """A part of what a live consumer gets.

    Attributes:
        records: READ_SCHEMA; None where positions moved without records.
        reached: how far all batches so far lead, with the last batch of a step; None with those before it.
    """

    records: pa.RecordBatch | None
    reached: PositionsSnapshot | None


@dataclass(frozen=True)
class ShardStats:
    """Numbers about a shard, since its session was opened.

    Attributes:
        millis_behind_latest: how far behind its tip the shard is known to be, at most: what Kinesis said last, and the
            time since then, by the service's clock; 0 while answers say that it is at its tip; -1 when nothing is
            known.
        records: received.
        bytes: received, data and partition keys.
        subscriptions: times that the reader began to follow the shard.
        buffered_records: in memory now.
        buffered_bytes: in memory now, data and partition keys.
        replays: ranges that were read again from Kinesis.
        losses: positions whose records were gone, and that were skipped.
        starved: subscriptions that Kinesis cut because there was no room for their events, and that were renewed.
        condition: what the shard is doing, since when and why.
        taken_over: whether another reader took a subscription of the shard by the same consumer, and may still read by
            it.
        user_records_of_siblings: user records of aggregates that were dropped, because a producer sends them again to
            another shard; again if a range is read again. The same for the next one.
        user_records_outside_shard: user records of aggregates that were delivered although their keys belong to another
            shard.
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
    losses: int = 0
    starved: int = 0
    condition: ShardCondition = ShardCondition()  # noqa: RUF009  # frozen
    taken_over: bool = False
    user_records_of_siblings: int = 0
    user_records_outside_shard: int = 0


@dataclass(frozen=True, kw_only=True)
class SessionInfo:
    """A session that is open.

    Attributes:
        session_id: chosen by its caller.
        epoch: number of the run that has it.
        idle_seconds: since the last call; 0 while one waits for an answer.
        time_to_live_seconds: after which it is ended without calls; None if it never is.
        shard_count: shards that are or were followed.
        shards: their numbers, on request only.
        owner: host and process of the caller that has it; empty if unknown.
    """

    session_id: str
    epoch: int
    idle_seconds: float
    time_to_live_seconds: float | None
    shard_count: int
    shards: tuple[ShardStats, ...] = ()
    owner: str = ""


_WAIT_SECONDS = 60.0
_STEP_BYTES = 4 * 1024 * 1024


class Limits(TypedDict, total=False):
    """The limits of `ShardReader.positions` and `FleetMember.look`, for readers that pass them on."""

    max_records: int
    max_bytes: int
    max_records_per_shard: int


class PositionsOptions(Limits, total=False):
    """The options of `ShardReader.positions`, likewise."""

    wait_seconds: float
    max_shard_skew_seconds: float | None
    horizon_millis: int | None


class RangeOptions(TypedDict, total=False):
    """The options of `ShardReader.read_range`, for readers that pass them on."""

    with_encryption_type: bool
    max_batch_bytes: int
    fail_on_data_loss: bool | None
    retry_patience_seconds: float | None


class SessionReader(Protocol):
    """Keeps shards open, and gives the records of exact ranges as often as they are asked for."""

    @property
    def deaggregates(self) -> Deaggregation | None:
        """How KPL aggregates are taken apart; None while it is not known, or where several readers differ."""
        ...

    async def open(self, request: OpenRequest) -> int:
        """Open a session and give the number of the caller's run; smaller ones are refused from then on.

        A new run's number is larger than all that the reader has seen, and than `after_epoch`.

        Raises:
            StaleEpochError: a newer run has the session.
            FencedConsumerError: a consumer's lease is older than one that was seen.
            EfoConsumerConfigError: a consumer does not belong to its stream.
            PositionsError: the request has no positions.
            DataLossError: a position is older than what the stream holds.
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
        max_records_per_shard: int = 0,
        horizon_millis: int | None = None,
    ) -> PositionsSnapshot:
        """Return how far the buffers lead from `start`; what was answered is promised to be readable.

        Records are given in the order in which they arrived, whatever shard they are in. Limits of 0 do not bound.
        Waits at most `wait_seconds` for the first record beyond `start`. Idle shards' continuations come along with
        records, or alone at most every `idle_offset_interval`. No record is given that arrived after `horizon_millis`.

        Raises:
            SessionNotFoundError: no such session, or one that only predecessors have opened here.
            StaleEpochError: a newer run has the session.
            ShardFailedError: a shard cannot be followed, and all that it brought was answered before.
            DataLossError: Kinesis refused a shard's position, and all that was read before was answered.
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
        fail_on_data_loss: bool | None = None,
        retry_patience_seconds: float | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the records of the ranges, range by range, in sequence order, always the same ones.

        With several readers each gives the records of its shards in one turn.

        Needs no session: what no buffer holds is read again from Kinesis. Epoch 0 skips the check of the epoch.
        `fail_on_data_loss` and `retry_patience_seconds` are as in `OpenRequest`; None leaves them to what the session
        was opened with.

        Raises:
            DataLossError: the stream no longer holds a range.
            RangeDeadlineError: a range did not come in time.
            StaleEpochError: a newer run than `epoch` has the session.
        """
        ...

    async def commit(self, session_id: str, epoch: int, positions: StreamPositions) -> None:
        """Drop what lies at or before the positions from the buffers.

        Raises:
            SessionNotFoundError, StaleEpochError: as `positions`.
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


class ShardReader(SessionReader, Protocol):
    """A reader of all shards of a session.

    Attributes:
        is_draining: whether live consumers are to end between two steps, because the reader is about to close.
    """

    is_draining: bool

    async def positions(
        self,
        session_id: str,
        epoch: int,
        start: StreamPositions,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
        max_records_per_shard: int = 0,
        max_shard_skew_seconds: float | None = None,
        horizon_millis: int | None = None,
    ) -> PositionsSnapshot:
        """See `SessionReader.positions`.

        With `max_shard_skew_seconds` a record is given only if it arrived no later than so long after the time up to
        which the slowest shard was read. A shard that holds others back without progress for a minute, or for the
        patience if that is shorter, is left behind.
        """
        ...

    async def follow(
        self,
        session_id: str,
        epoch: int,
        start: StreamPositions,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        with_encryption_type: bool = False,
    ) -> AsyncGenerator[FollowedBatch, None]:
        """Give the records beyond `start` as they come, each step with the positions that it leads to.

        Nothing is read ahead of the caller but what the buffers hold. The limits apply to one step. Ends when the
        reader drains.

        Raises:
            What `positions` and `read_range` raise.
        """
        position = start
        while not self.is_draining:
            snapshot = await self.positions(
                session_id,
                epoch,
                position,
                max_records=max_records,
                max_bytes=max_bytes or _STEP_BYTES,
                wait_seconds=_WAIT_SECONDS,
            )
            before, position = position, snapshot.positions
            if not is_news(before, position):
                continue
            last: pa.RecordBatch | None = None
            if position != before:
                ranges = ranges_between(before, position)
                batches = self.read_range(session_id, ranges, epoch=epoch, with_encryption_type=with_encryption_type)
                async with aclosing(batches):
                    async for batch in batches:
                        if last is not None:
                            yield FollowedBatch(last, None)
                        last = batch
            yield FollowedBatch(last, snapshot)


class FleetMember(SessionReader, Protocol):
    """A reader that can keep step with others; see `FleetShardReader`."""

    async def look(
        self,
        session_id: str,
        epoch: int,
        start: StreamPositions,
        *,
        before_millis: int | None = None,
        max_records: int = 0,
        max_bytes: int = 0,
        max_records_per_shard: int = 0,
    ) -> ShardsLook:
        """Show how far the shards were read, and what waits beyond `start`; promises nothing.

        Args:
            session_id: as in `open`.
            epoch: as `open` gave it.
            start: as in `positions`.
            before_millis: shards that were read less far are listed; None lists those whose time is unknown.
            max_records: as in `positions`.
            max_bytes: as in `positions`.
            max_records_per_shard: as in `positions`.

        Raises:
            What `positions` raises.
        """
        ...

    async def sessions(self, *, with_shards: bool = False) -> list[SessionInfo]:
        """Give one entry per open session, ordered by id. Asking keeps none of them alive."""
        ...


def is_news(before: StreamPositions, after: StreamPositions) -> bool:
    """Whether positions moved, or more is known of them."""
    return after != before or after.to_json() != before.to_json()
