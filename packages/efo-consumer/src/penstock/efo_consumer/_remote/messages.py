"""Values to messages of the gRPC contract and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.efo_consumer._model.positions import PositionType, ShardPosition, ShardRange, StreamPositions
from penstock.efo_consumer._publish.publisher import RecordPublisherType
from penstock.efo_consumer._reader.api import (
    FollowedBatch,
    OpenRequest,
    PositionsSnapshot,
    SessionInfo,
    ShardLineage,
    ShardStats,
    StreamConsumer,
)
from penstock.efo_consumer.errors import PositionsError
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_POSITION_TYPES = {
    PositionType.TRIM_HORIZON: pb.POSITION_TYPE_TRIM_HORIZON,
    PositionType.AT_TIMESTAMP: pb.POSITION_TYPE_AT_TIMESTAMP,
    PositionType.AFTER_SEQUENCE_NUMBER: pb.POSITION_TYPE_AFTER_SEQUENCE_NUMBER,
    PositionType.SHARD_END: pb.POSITION_TYPE_SHARD_END,
}
_PUBLISHER_TYPES = {
    RecordPublisherType.EFO: pb.RECORD_PUBLISHER_TYPE_EFO,
    RecordPublisherType.POLLING: pb.RECORD_PUBLISHER_TYPE_POLLING,
}


def position_to_message(position: ShardPosition) -> pb.ShardPosition:
    """Position to message."""
    return pb.ShardPosition(
        type=_POSITION_TYPES[position.type],
        timestamp_millis=position.timestamp_millis or 0,
        sequence_number=position.sequence_number or "",
        caught_up_millis=position.caught_up_millis or 0,
        record=position.record,
        arrived_millis=position.arrived_millis or 0,
        first_record=position.first_record or "",
    )


def position_from_message(message: pb.ShardPosition) -> ShardPosition:
    """Message to position.

    Raises:
        PositionsError: the type is not specified, or a field is malformed.
    """
    for kind, number in _POSITION_TYPES.items():
        if number == message.type:
            return ShardPosition(
                kind,
                timestamp_millis=message.timestamp_millis if kind is PositionType.AT_TIMESTAMP else None,
                sequence_number=message.sequence_number if kind is PositionType.AFTER_SEQUENCE_NUMBER else None,
                caught_up_millis=message.caught_up_millis or None,
                record=message.record if message.HasField("record") else None,
                arrived_millis=message.arrived_millis or None,
                first_record=message.first_record or None,
            )
    raise PositionsError("a position needs a type")


def positions_to_messages(positions: StreamPositions) -> list[pb.StreamPositions]:
    """Positions to one message per stream."""
    return [
        pb.StreamPositions(
            stream_name=stream,
            shards={shard: position_to_message(position) for shard, position in shards.items()},
            created_millis=positions.created.get(stream, 0),
        )
        for stream, shards in positions.streams.items()
    ]


def positions_from_messages(messages: Iterable[pb.StreamPositions]) -> StreamPositions:
    """Messages to positions."""
    streams, created = {}, {}
    for message in messages:
        name = message.stream_name
        streams[name] = {shard: position_from_message(position) for shard, position in message.shards.items()}
        if message.created_millis:
            created[name] = message.created_millis
    return StreamPositions(streams, created)


def open_to_message(request: OpenRequest) -> pb.OpenRequest:
    """Request to message."""
    return pb.OpenRequest(
        session_id=request.session_id,
        positions=positions_to_messages(request.positions),
        record_publisher=_PUBLISHER_TYPES[request.record_publisher],
        consumers=[
            pb.StreamConsumer(
                stream_name=consumer.stream_name,
                consumer_arn=consumer.consumer_arn,
                fencing_token=consumer.fencing_token,
            )
            for consumer in request.consumers
        ],
        named_shards_only=request.named_shards_only,
        session_seconds=request.session_seconds,
        fail_on_data_loss=request.fail_on_data_loss,
    )


def open_from_message(message: pb.OpenRequest) -> OpenRequest:
    """Message to request."""
    polling = message.record_publisher == pb.RECORD_PUBLISHER_TYPE_POLLING
    return OpenRequest(
        session_id=message.session_id,
        positions=positions_from_messages(message.positions),
        record_publisher=RecordPublisherType.POLLING if polling else RecordPublisherType.EFO,
        consumers=tuple(
            StreamConsumer(item.stream_name, item.consumer_arn, item.fencing_token) for item in message.consumers
        ),
        named_shards_only=message.named_shards_only,
        session_seconds=message.session_seconds,
        fail_on_data_loss=message.fail_on_data_loss if message.HasField("fail_on_data_loss") else None,
    )


def snapshot_to_message(snapshot: PositionsSnapshot) -> pb.PositionsResponse:
    """Snapshot to message."""
    return pb.PositionsResponse(
        positions=positions_to_messages(snapshot.positions),
        records=snapshot.records,
        bytes=snapshot.bytes,
        millis_behind_latest=snapshot.millis_behind_latest,
        lineage=[
            pb.ShardLineage(
                stream_name=shard.stream_name, shard_id=shard.shard_id, parent_shard_ids=shard.parent_shard_ids
            )
            for shard in snapshot.lineage
        ],
    )


def snapshot_from_message(message: pb.PositionsResponse) -> PositionsSnapshot:
    """Message to snapshot."""
    return PositionsSnapshot(
        positions_from_messages(message.positions),
        message.records,
        message.bytes,
        message.millis_behind_latest,
        tuple(ShardLineage(item.stream_name, item.shard_id, tuple(item.parent_shard_ids)) for item in message.lineage),
    )


def followed_to_message(batch: FollowedBatch) -> pb.FollowResponse:
    """Batch to message; the schema went before."""
    return pb.FollowResponse(
        arrow_ipc=b"" if batch.records is None else batch.records.serialize().to_pybytes(),
        reached=None if batch.reached is None else snapshot_to_message(batch.reached),
    )


def ranges_to_messages(ranges: Sequence[ShardRange]) -> list[pb.ShardRange]:
    """Ranges to messages."""
    return [
        pb.ShardRange(
            stream_name=item.stream_name,
            shard_id=item.shard_id,
            after=position_to_message(item.after),
            upto=position_to_message(item.upto),
        )
        for item in ranges
    ]


def ranges_from_messages(messages: Iterable[pb.ShardRange]) -> list[ShardRange]:
    """Messages to ranges."""
    return [
        ShardRange(item.stream_name, item.shard_id, position_from_message(item.after), position_from_message(item.upto))
        for item in messages
    ]


def stats_to_message(stats: ShardStats) -> pb.ShardStats:
    """Stats to message."""
    return pb.ShardStats(
        stream_name=stats.stream_name,
        shard_id=stats.shard_id,
        millis_behind_latest=stats.millis_behind_latest,
        records=stats.records,
        bytes=stats.bytes,
        subscriptions=stats.subscriptions,
        buffered_records=stats.buffered_records,
        buffered_bytes=stats.buffered_bytes,
        replays=stats.replays,
        losses=stats.losses,
        starved=stats.starved,
        condition=stats.condition,
    )


def stats_from_message(message: pb.ShardStats) -> ShardStats:
    """Message to stats."""
    return ShardStats(
        stream_name=message.stream_name,
        shard_id=message.shard_id,
        millis_behind_latest=message.millis_behind_latest,
        records=message.records,
        bytes=message.bytes,
        subscriptions=message.subscriptions,
        buffered_records=message.buffered_records,
        buffered_bytes=message.buffered_bytes,
        replays=message.replays,
        losses=message.losses,
        starved=message.starved,
        condition=message.condition,
    )


def session_to_message(session: SessionInfo) -> pb.Session:
    """Session to message."""
    return pb.Session(
        session_id=session.session_id,
        epoch=session.epoch,
        idle_seconds=session.idle_seconds,
        time_to_live_seconds=session.time_to_live_seconds,
        shard_count=session.shard_count,
        shards=[stats_to_message(shard) for shard in session.shards],
    )


def session_from_message(message: pb.Session) -> SessionInfo:
    """Message to session."""
    lives = message.HasField("time_to_live_seconds")
    return SessionInfo(
        session_id=message.session_id,
        epoch=message.epoch,
        idle_seconds=message.idle_seconds,
        time_to_live_seconds=message.time_to_live_seconds if lives else None,
        shard_count=message.shard_count,
        shards=tuple(stats_from_message(shard) for shard in message.shards),
    )
