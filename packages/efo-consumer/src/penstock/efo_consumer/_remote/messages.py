"""Values to messages of the gRPC contract and back."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.aws import AwsError, AwsLocation
from penstock.efo_consumer._model.positions import PositionType, ShardPosition, ShardRange, StreamPositions
from penstock.efo_consumer._publish.condition import ShardCondition, ShardState
from penstock.efo_consumer._publish.publisher import RecordPublisherType
from penstock.efo_consumer._reader.api import (
    OpenRequest,
    PositionsSnapshot,
    SessionInfo,
    ShardLineage,
    ShardSkew,
    ShardsLook,
    ShardStats,
    SlowShard,
    StreamConsumer,
)
from penstock.efo_consumer.errors import EfoConsumerConfigError, PositionsError
from penstock.proto.aws.v1.aws_pb2 import AwsLocation as AwsLocationMessage
from penstock.proto.aws.v1.aws_pb2 import Backoff
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.aws import BackoffPolicy
    from penstock.efo_consumer._publish.config import Deaggregation
    from penstock.efo_consumer._reader.config import SessionSettings

_T = TypeVar("_T")
MAX_SESSION_SECONDS: Final = 86_400.0
"""For which a caller may have a session kept that it does not call."""
MAX_NAME_CHARACTERS: Final = 1_024
"""Of a session's id, and of its owner."""
_MAX_BATCH_BYTES = 32 * 1024 * 1024  # half of the largest message
_POSITION_TYPES = {kind: pb.PositionType.Value(f"POSITION_TYPE_{kind.name}") for kind in PositionType}
_STATE_TYPES = {state: pb.ShardState.Value(f"SHARD_STATE_{state.name}") for state in ShardState}
_STATES = {number: state for state, number in _STATE_TYPES.items()}
_POSITION_KINDS = {number: kind for kind, number in _POSITION_TYPES.items()}


def _to_message(kind: Callable[..., _T], value: object, **others: object) -> _T:
    """A message whose fields have the names of the value's, and hold the same but for `others`."""
    names = [one.name for one in fields(value) if one.name not in others]  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: getattr(value, name) for name in names}, **others)


def _from_message(kind: type[_T], message: object, **others: object) -> _T:
    """A value whose fields have the names of the message's, and hold the same but for `others`."""
    names = [one.name for one in fields(kind) if one.name not in others]  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: getattr(message, name) for name in names}, **others)


def position_to_message(position: ShardPosition) -> pb.ShardPosition:
    """Position to message."""
    return _to_message(pb.ShardPosition, position, type=_POSITION_TYPES[position.type])


def position_from_message(message: pb.ShardPosition) -> ShardPosition:
    """Message to position.

    Raises:
        PositionsError: the type is not specified, or a field is malformed.
    """
    kind = _POSITION_KINDS.get(message.type)
    if kind is None:
        raise PositionsError("a position needs a type")
    return ShardPosition(
        kind,
        timestamp_millis=message.timestamp_millis if kind is PositionType.AT_TIMESTAMP else None,
        sequence_number=message.sequence_number if kind is PositionType.AFTER_SEQUENCE_NUMBER else None,
        caught_up_millis=message.caught_up_millis or None,
        record=message.record if message.HasField("record") else None,
        arrived_millis=message.arrived_millis or None,
        first_record=message.first_record or None,
    )


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
        record_publisher=pb.RecordPublisherType.Value(f"RECORD_PUBLISHER_TYPE_{request.record_publisher.name}"),
        consumers=[_to_message(pb.StreamConsumer, consumer) for consumer in request.consumers],
        named_shards_only=request.named_shards_only,
        session_seconds=request.session_seconds,
        fail_on_data_loss=request.fail_on_data_loss,
        retry_patience_seconds=request.retry_patience_seconds,
        settings=None if request.settings is None else settings_to_message(request.settings),
        caller=None if request.caller is None else AwsLocationMessage(**vars(request.caller)),
        epoch=request.epoch,
        after_epoch=request.after_epoch,
        owner=request.owner,
        number_only=request.number_only,
    )


def open_from_message(message: pb.OpenRequest) -> OpenRequest:
    """Message to request.

    Raises:
        EfoConsumerConfigError: a setting or name is beyond what a caller may ask for.
        PositionsError: a position is malformed.
    """
    for option, text in (("session_id", message.session_id), ("owner", message.owner)):
        if len(text) > MAX_NAME_CHARACTERS:
            raise EfoConsumerConfigError(option=option, reason=f"is longer than {MAX_NAME_CHARACTERS} characters")
    if not 0 <= message.session_seconds <= MAX_SESSION_SECONDS:
        reason = f"{message.session_seconds} is not between 0 and {MAX_SESSION_SECONDS:g} seconds"
        raise EfoConsumerConfigError(option="session_seconds", reason=reason)
    polling = message.record_publisher == pb.RECORD_PUBLISHER_TYPE_POLLING
    return OpenRequest(
        session_id=message.session_id,
        positions=positions_from_messages(message.positions),
        record_publisher=RecordPublisherType.POLLING if polling else RecordPublisherType.EFO,
        consumers=tuple(_from_message(StreamConsumer, consumer) for consumer in message.consumers),
        named_shards_only=message.named_shards_only,
        session_seconds=message.session_seconds,
        fail_on_data_loss=message.fail_on_data_loss if message.HasField("fail_on_data_loss") else None,
        retry_patience_seconds=patience_from_message(message),
        settings=settings_from_message(message.settings) if message.HasField("settings") else None,
        caller=_from_message(AwsLocation, message.caller) if message.HasField("caller") else None,
        epoch=message.epoch,
        after_epoch=message.after_epoch,
        owner=message.owner,
        number_only=message.number_only,
    )


def open_response(epoch: int, deaggregates: Deaggregation | None) -> pb.OpenResponse:
    """What `ShardReader.open` and `ShardReader.deaggregates` give, to message."""
    is_known = deaggregates is not None
    return pb.OpenResponse(
        epoch=epoch,
        deaggregates=bool(deaggregates) if is_known else None,
        keeps_all_user_records=deaggregates == "all",
    )


def deaggregation_from_message(message: pb.OpenResponse) -> Deaggregation | None:
    """Message to what `ShardReader.deaggregates` gives."""
    if not message.HasField("deaggregates"):
        return None
    return "all" if message.keeps_all_user_records else message.deaggregates


_BACKOFFS = ("subscribe_to_shard", "get_records", "get_shard_iterator")
_TIMES = ("get_records_interval", "connect_timeout", "discovery_interval", "idle_offset_interval")
_PLAIN = ("get_records_max_records", "get_records_adaptive", "subscribe_transport")


def settings_to_message(settings: SessionSettings) -> pb.SessionSettings:
    """Settings to message."""
    values: dict[str, Any] = {name: getattr(settings, name) for name in _PLAIN}
    for name in _BACKOFFS:
        policy = getattr(settings, name)
        values[name] = None if policy is None else _backoff_to_message(policy)
    for name in _TIMES:
        time = getattr(settings, name)
        values[f"{name}_seconds"] = None if time is None else time.total_seconds()
    return pb.SessionSettings(**values)


def settings_from_message(message: pb.SessionSettings) -> SessionSettings:
    """Message to settings.

    Raises:
        EfoConsumerConfigError: a value is out of range.
    """
    # Tasks import this module too: they open no sessions, and are spared what is behind this.
    from penstock.efo_consumer._publish.config import SubscribeTransportType
    from penstock.efo_consumer._reader.config import SessionSettings

    given = {field.name: value for field, value in message.ListFields()}
    # False and 0 are given, too, where the message has them.
    values: dict[str, Any] = {name: given[name] for name in _PLAIN if name in given}
    try:
        values |= {name: _backoff_from_message(given[name]) for name in _BACKOFFS if name in given}
        values |= {name: timedelta(seconds=given[f"{name}_seconds"]) for name in _TIMES if f"{name}_seconds" in given}
        if "subscribe_transport" in values:
            values["subscribe_transport"] = SubscribeTransportType(values["subscribe_transport"])
    except (AwsError, OverflowError, ValueError) as error:
        raise EfoConsumerConfigError(option="settings", reason=str(error)) from error
    return SessionSettings(**values)


def _backoff_to_message(policy: BackoffPolicy) -> Backoff:
    return Backoff(
        base_seconds=policy.base.total_seconds(),
        maximum_seconds=policy.maximum.total_seconds(),
        exponent=policy.exponent,
        max_attempts=policy.max_attempts or 0,
    )


def _backoff_from_message(message: Backoff) -> BackoffPolicy:
    from penstock.aws import BackoffPolicy

    return BackoffPolicy(
        base=timedelta(seconds=message.base_seconds),
        maximum=timedelta(seconds=message.maximum_seconds),
        exponent=message.exponent,
        max_attempts=message.max_attempts or None,
    )


def patience_from_message(message: pb.OpenRequest | pb.ReadRangeRequest) -> float | None:
    """How long errors that may pass are retried, in seconds; None where the request leaves it to the reader.

    Raises:
        EfoConsumerConfigError: the request has a time that is out of range.
    """
    if not message.HasField("retry_patience_seconds"):
        return None
    seconds = message.retry_patience_seconds
    if not 0 <= seconds <= timedelta.max.total_seconds():
        raise EfoConsumerConfigError(option="retry_patience", reason=f"{seconds} is not a number of seconds, 0 or more")
    return seconds


def batch_bytes_from_message(message: pb.ReadRangeRequest) -> int:
    """Most bytes of one batch; 0 where the request leaves them to the reader.

    Raises:
        EfoConsumerConfigError: more than a message of gRPC may hold.
    """
    if not 0 <= message.max_batch_bytes <= _MAX_BATCH_BYTES:
        reason = f"{message.max_batch_bytes} is not between 0 and {_MAX_BATCH_BYTES} bytes"
        raise EfoConsumerConfigError(option="max_batch_bytes", reason=reason)
    return message.max_batch_bytes


def snapshot_to_message(snapshot: PositionsSnapshot) -> pb.PositionsResponse:
    """Snapshot to message."""
    return pb.PositionsResponse(
        positions=positions_to_messages(snapshot.positions),
        records=snapshot.records,
        bytes=snapshot.bytes,
        millis_behind_latest=snapshot.millis_behind_latest,
        lineage=[_to_message(pb.ShardLineage, shard) for shard in snapshot.lineage],
        skew=None if snapshot.skew is None else _to_message(pb.ShardSkew, snapshot.skew),
    )


def snapshot_from_message(message: pb.PositionsResponse) -> PositionsSnapshot:
    """Message to snapshot."""
    return PositionsSnapshot(
        positions_from_messages(message.positions),
        message.records,
        message.bytes,
        message.millis_behind_latest,
        tuple(
            ShardLineage(item.stream_name, item.shard_id, tuple(item.parent_shard_ids), item.is_gone)
            for item in message.lineage
        ),
        _from_message(ShardSkew, message.skew, **_present(message.skew, "slowest_millis", "latest_millis"))
        if message.HasField("skew")
        else None,
    )


def look_to_message(look: ShardsLook) -> pb.LookResponse:
    """Look to message."""
    return _to_message(
        pb.LookResponse,
        look,
        slow=[_to_message(pb.SlowShard, one) for one in look.slow],
        profile=[_to_message(pb.ProfilePoint, one) for one in look.profile],
    )


def look_from_message(message: pb.LookResponse) -> ShardsLook:
    """Message to look."""
    # Tasks import this module too: they look at nothing, and are spared what is behind this.
    from penstock.efo_consumer._reader.merge import ProfilePoint

    return _from_message(
        ShardsLook,
        message,
        slow=tuple(_from_message(SlowShard, one, **_present(one, "read_millis")) for one in message.slow),
        profile=tuple(_from_message(ProfilePoint, one) for one in message.profile),
        **_present(message, "newest_millis", "left_out_millis"),
    )


def _present(message: Any, *names: str) -> dict[str, int | None]:
    """Optional numbers; None where the message has none."""
    return {name: getattr(message, name) if message.HasField(name) else None for name in names}


def ranges_to_messages(ranges: Sequence[ShardRange]) -> list[pb.ShardRange]:
    """Ranges to messages."""
    return [
        pb.ShardRange(
            stream_name=item.stream_name,
            shard_id=item.shard_id,
            after=position_to_message(item.after),
            upto=position_to_message(item.upto),
            created_millis=item.created_millis or 0,
        )
        for item in ranges
    ]


def ranges_from_messages(messages: Iterable[pb.ShardRange]) -> list[ShardRange]:
    """Messages to ranges."""
    return [
        ShardRange(
            item.stream_name,
            item.shard_id,
            position_from_message(item.after),
            position_from_message(item.upto),
            item.created_millis or None,
        )
        for item in messages
    ]


def stats_to_message(stats: ShardStats) -> pb.ShardStats:
    """Stats to message."""
    state = _STATE_TYPES[stats.condition.state]
    return _to_message(pb.ShardStats, stats, condition=_to_message(pb.ShardCondition, stats.condition, state=state))


def stats_from_message(message: pb.ShardStats) -> ShardStats:
    """Message to stats."""
    condition = message.condition
    # A reader of another version may know more states, or none.
    state = _STATES.get(condition.state, ShardState.READING)
    return _from_message(ShardStats, message, condition=_from_message(ShardCondition, condition, state=state))


def session_to_message(session: SessionInfo) -> pb.Session:
    """Session to message."""
    return _to_message(pb.Session, session, shards=[stats_to_message(shard) for shard in session.shards])


def session_from_message(message: pb.Session) -> SessionInfo:
    """Message to session."""
    return _from_message(
        SessionInfo,
        message,
        time_to_live_seconds=message.time_to_live_seconds if message.HasField("time_to_live_seconds") else None,
        shards=tuple(stats_from_message(shard) for shard in message.shards),
    )
