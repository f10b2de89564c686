"""The contract of a shard reader, and the client that is derived from it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Unpack

import grpc

from penstock.aws import AwsError, BackoffPolicy
from penstock.efo_consumer._model.positions import ShardRange, StreamPositions
from penstock.efo_consumer._publish.condition import ShardState
from penstock.efo_consumer._publish.config import Deaggregation, SubscribeTransportType
from penstock.efo_consumer._publish.publisher import RecordPublisherType
from penstock.efo_consumer._reader.api import FleetMember, OpenRequest, RangeOptions
from penstock.efo_consumer._reader.config import SessionSettings
from penstock.efo_consumer._remote.arrow_stream import BatchDecoder, decode
from penstock.efo_consumer._remote.messages import (
    CALL_SECONDS,
    READ_RANGE,
    SERVICE,
    STATUS,
    position_from_message,
    position_to_message,
    ranges_to_messages,
    reader_error,
)
from penstock.efo_consumer.errors import EfoConsumerConfigError
from penstock.proto.aws.v1.aws_pb2 import Backoff
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.rpc import ClientSecurity, Contract, Messages, RemoteApi, Rpc, calls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    import pyarrow as pa


def _positions_to_messages(positions: StreamPositions) -> list[pb.StreamPositions]:
    """Positions to one message per stream."""
    return [
        pb.StreamPositions(
            stream_name=stream,
            shards={shard: position_to_message(position) for shard, position in shards.items()},
            created_millis=positions.created.get(stream, 0),
        )
        for stream, shards in positions.streams.items()
    ]


def _positions_from_messages(messages: Iterable[pb.StreamPositions]) -> StreamPositions:
    streams, created = {}, {}
    for message in messages:
        name = message.stream_name
        streams[name] = {shard: position_from_message(position) for shard, position in message.shards.items()}
        if message.created_millis:
            created[name] = message.created_millis
    return StreamPositions(streams, created)


def _settings_to_message(settings: SessionSettings) -> pb.SessionSettings:
    """Settings to message: times in seconds, under names that say so."""
    values: dict[str, Any] = {}
    for name, value in vars(settings).items():
        if isinstance(value, BackoffPolicy):
            values[name] = Backoff(
                base_seconds=value.base.total_seconds(),
                maximum_seconds=value.maximum.total_seconds(),
                exponent=value.exponent,
                max_attempts=value.max_attempts or 0,
            )
        elif isinstance(value, timedelta):
            values[f"{name}_seconds"] = value.total_seconds()
        elif value is not None:
            values[name] = value
    return pb.SessionSettings(**values)


def _settings_from_message(message: pb.SessionSettings) -> SessionSettings:
    """Message to settings.

    Raises:
        EfoConsumerConfigError: a value is out of range.
    """
    values: dict[str, Any] = {}
    try:
        # False and 0 are given, too, where the message has them.
        for field, value in message.ListFields():
            if isinstance(value, Backoff):
                values[field.name] = BackoffPolicy(
                    base=timedelta(seconds=value.base_seconds),
                    maximum=timedelta(seconds=value.maximum_seconds),
                    exponent=value.exponent,
                    max_attempts=value.max_attempts or None,
                )
            elif field.name.endswith("_seconds"):
                values[field.name.removesuffix("_seconds")] = timedelta(seconds=value)
            else:
                values[field.name] = SubscribeTransportType(value) if field.name == "subscribe_transport" else value
    except (AwsError, OverflowError, ValueError) as error:
        raise EfoConsumerConfigError(option="settings", reason=str(error)) from error
    return SessionSettings(**values)


MESSAGES: Final = Messages(
    # A reader or caller of another version may have more of them, or fewer.
    unknown={RecordPublisherType: RecordPublisherType.EFO, ShardState: ShardState.READING},
    by_hand={
        StreamPositions: (_positions_to_messages, _positions_from_messages),
        SessionSettings: (_settings_to_message, _settings_from_message),
    },
    invalid=lambda field, value: EfoConsumerConfigError(option=field, reason=f"{value!r} is unknown"),
)
CONTRACT: Final = Contract(
    FleetMember,
    SERVICE,
    {
        "positions": Rpc("Positions"),
        "look": Rpc("Look"),
        "commit": Rpc("Commit"),
        "stats": Rpc("Stats", "shards"),
        "sessions": Rpc("ListSessions", "sessions"),
        "close_session": Rpc("Close"),
    },
    MESSAGES,
    STATUS,
)


class RemoteShardReader(RemoteApi):
    """A `FleetMember` behind an endpoint, for the event loop that first uses it; also lists its sessions.

    It neither waits for the reader nor opens a session again: `FleetShardReader` does, also with one endpoint.

    Args:
        endpoint: `host:port`.
        security: TLS and token.
    """

    contract = CONTRACT

    def __init__(self, endpoint: str, security: ClientSecurity | None = None) -> None:
        super().__init__(endpoint, security, timeout_seconds=CALL_SECONDS)
        self.deaggregates: Deaggregation | None = None
        """How the reader takes aggregates apart; None before `open`, and if it does not say."""

    async def open(self, request: OpenRequest) -> int:
        """See `ShardReader.open`."""
        answer: pb.OpenResponse = await self._ask("Open", MESSAGES.to(pb.OpenRequest, request), {})
        is_known = answer.HasField("deaggregates")
        self.deaggregates = ("all" if answer.keeps_all_user_records else answer.deaggregates) if is_known else None
        return answer.epoch

    positions = calls(FleetMember.positions)
    look = calls(FleetMember.look)
    commit = calls(FleetMember.commit)
    stats = calls(FleetMember.stats)
    sessions = calls(FleetMember.sessions)
    close_session = calls(FleetMember.close_session)
    aclose = RemoteApi.close

    async def read_range(
        self, session_id: str, ranges: Sequence[ShardRange], *, epoch: int = 0, **options: Unpack[RangeOptions]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """See `ShardReader.read_range`. Leaving the generator early ends the call."""
        decoder = BatchDecoder()
        read_range = self._open().unary_stream(
            READ_RANGE, request_serializer=pb.ReadRangeRequest.SerializeToString, response_deserializer=decode
        )
        asked = ranges_to_messages(ranges)
        call = read_range(pb.ReadRangeRequest(session_id=session_id, epoch=epoch, ranges=asked, **options))
        try:
            async for answer in call:
                for batch in decoder.decode(answer):
                    yield batch
        except grpc.RpcError as error:
            raise self._error(error, "ReadRange") from error
        finally:
            call.cancel()

    def _error(self, error: grpc.RpcError, operation: str) -> Exception:
        return reader_error(error, self._endpoint)
