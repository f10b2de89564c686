"""The client of one shard reader behind an endpoint."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Unpack

import grpc

from penstock.efo_consumer import errors
from penstock.efo_consumer._remote import messages
from penstock.efo_consumer._remote.arrow_stream import BatchDecoder, decode
from penstock.efo_consumer.errors import EfoConsumerError, PositionsError, ReaderUnavailableError, ShardFailedError
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.proto.shard_reader.v1 import shard_reader_pb2_grpc as pb_grpc
from penstock.rpc import ClientSecurity, StatusTable, open_aio_channel, typed_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._model.positions import ShardRange, StreamPositions
    from penstock.efo_consumer._publish.config import Deaggregation
    from penstock.efo_consumer._reader.api import (
        LookOptions,
        OpenRequest,
        PositionsOptions,
        PositionsSnapshot,
        RangeOptions,
        SessionInfo,
        ShardsLook,
        ShardStats,
    )

STATUS: Final[StatusTable] = {
    errors.PositionsError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.EfoConsumerConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.SessionNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.StaleEpochError: grpc.StatusCode.ABORTED,
    errors.FencedConsumerError: grpc.StatusCode.ABORTED,
    errors.SubscriptionTakenOverError: grpc.StatusCode.ABORTED,
    errors.DataLossError: grpc.StatusCode.OUT_OF_RANGE,
    errors.LocationMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StreamRecreatedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RangeDeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ShardFailedError: grpc.StatusCode.UNAVAILABLE,
}
"""What the servicer answers. The error's class and fields travel along, so that the caller gets the same error back."""

_OF_KINESIS: Final = {
    "AccessDeniedException": grpc.StatusCode.PERMISSION_DENIED,
    "KMSAccessDeniedException": grpc.StatusCode.PERMISSION_DENIED,
    "LimitExceededException": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ProvisionedThroughputExceededException": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ResourceNotFoundException": grpc.StatusCode.NOT_FOUND,
    "InvalidArgumentException": grpc.StatusCode.INVALID_ARGUMENT,
    "ValidationException": grpc.StatusCode.INVALID_ARGUMENT,
}

# A PositionsError has no fields: it is known by its status.
_TYPES: Final = tuple(
    kind
    for kind in STATUS
    if isinstance(kind, type) and issubclass(kind, EfoConsumerError) and kind is not PositionsError
)


def status_table(error: Exception) -> StatusTable:
    """The table, made precise for a shard that failed: its code is Kinesis' own."""
    if isinstance(error, ShardFailedError) and error.code in _OF_KINESIS:
        return {**STATUS, ShardFailedError: _OF_KINESIS[error.code]}
    return STATUS


def reader_error(error: grpc.RpcError, endpoint: str) -> EfoConsumerError:
    """What the servicer raised; when it raised nothing, why the reader could not be reached."""
    found = typed_error(error, _TYPES)
    if isinstance(found, errors.LocationMismatchError):
        return errors.LocationMismatchError(**{**vars(found), "address": endpoint})
    if isinstance(found, EfoConsumerError):
        return found
    code = getattr(error, "code", lambda: None)()
    details = str(getattr(error, "details", lambda: None)() or "")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return PositionsError(details)
    name = code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
    return ReaderUnavailableError(endpoint=endpoint, reason=f"{name}: {details}" if details else name)


READ_RANGE = f"/{pb.DESCRIPTOR.services_by_name['ShardReaderService'].full_name}/ReadRange"

CALL_SECONDS = 30.0
"""How long a call may take beside the time that its caller asked it to wait."""


class RemoteShardReader:
    """A `FleetMember` behind an endpoint, for the event loop that first uses it; also lists its sessions.

    It neither waits for the reader nor opens a session again: `FleetShardReader` does, also with one endpoint.

    Args:
        endpoint: `host:port`.
        security: TLS and token.
    """

    def __init__(self, endpoint: str, security: ClientSecurity | None = None) -> None:
        self.endpoint = endpoint
        self._security = security
        self._opened: grpc.aio.Channel | None = None
        self.deaggregates: Deaggregation | None = None
        """How the reader takes aggregates apart; None before `open`, and if it does not say."""

    async def open(self, request: OpenRequest) -> int:
        """See `ShardReader.open`."""
        with self._errors():
            answer = await self._stub().Open(messages.open_to_message(request), timeout=CALL_SECONDS)
        self.deaggregates = messages.deaggregation_from_message(answer)
        return answer.epoch

    async def positions(
        self, session_id: str, epoch: int, start: StreamPositions, **options: Unpack[PositionsOptions]
    ) -> PositionsSnapshot:
        """See `ShardReader.positions`."""
        asked = messages.positions_to_messages(start)
        request = pb.PositionsRequest(session_id=session_id, epoch=epoch, start=asked, **options)
        with self._errors():
            seconds = options.get("wait_seconds", 0.0) + CALL_SECONDS
            answer = await self._stub().Positions(request, timeout=seconds)
        return messages.snapshot_from_message(answer)

    async def look(
        self, session_id: str, epoch: int, start: StreamPositions, **options: Unpack[LookOptions]
    ) -> ShardsLook:
        """See `FleetMember.look`."""
        asked = messages.positions_to_messages(start)
        request = pb.LookRequest(session_id=session_id, epoch=epoch, start=asked, **options)
        with self._errors():
            return messages.look_from_message(await self._stub().Look(request, timeout=CALL_SECONDS))

    async def read_range(
        self, session_id: str, ranges: Sequence[ShardRange], *, epoch: int = 0, **options: Unpack[RangeOptions]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """See `ShardReader.read_range`. Leaving the generator early ends the call."""
        decoder = BatchDecoder()
        read_range = self._channel().unary_stream(
            READ_RANGE, request_serializer=pb.ReadRangeRequest.SerializeToString, response_deserializer=decode
        )
        asked = messages.ranges_to_messages(ranges)
        call = read_range(pb.ReadRangeRequest(session_id=session_id, epoch=epoch, ranges=asked, **options))
        with self._errors(call):
            async for answer in call:
                for batch in decoder.decode(answer):
                    yield batch

    async def commit(self, session_id: str, epoch: int, positions: StreamPositions) -> None:
        """See `ShardReader.commit`."""
        request = pb.CommitRequest(
            session_id=session_id, epoch=epoch, positions=messages.positions_to_messages(positions)
        )
        with self._errors():
            await self._stub().Commit(request, timeout=CALL_SECONDS)

    async def stats(self, session_id: str) -> list[ShardStats]:
        """See `ShardReader.stats`."""
        with self._errors():
            answer = await self._stub().Stats(pb.StatsRequest(session_id=session_id), timeout=CALL_SECONDS)
        return [messages.stats_from_message(shard) for shard in answer.shards]

    async def sessions(self, *, with_shards: bool = False) -> list[SessionInfo]:
        """See `FleetMember.sessions`."""
        request = pb.ListSessionsRequest(with_shards=with_shards)
        with self._errors():
            answer = await self._stub().ListSessions(request, timeout=CALL_SECONDS)
        return [messages.session_from_message(session) for session in answer.sessions]

    async def close_session(self, session_id: str, epoch: int) -> None:
        """See `ShardReader.close_session`."""
        with self._errors():
            await self._stub().Close(pb.CloseRequest(session_id=session_id, epoch=epoch), timeout=CALL_SECONDS)

    async def aclose(self) -> None:
        """Close the connection; sessions stay."""
        channel, self._opened = self._opened, None
        if channel is not None:
            await channel.close(None)

    @contextmanager
    def _errors(self, stream: grpc.aio.UnaryStreamCall[Any, Any] | None = None) -> Iterator[None]:
        """Raise what the servicer raised; a stream ends with this context."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise reader_error(error, self.endpoint) from error
        finally:
            if stream is not None:
                stream.cancel()

    def _stub(self) -> pb_grpc.ShardReaderServiceAsyncStub:
        return pb_grpc.ShardReaderServiceStub(self._channel())

    def _channel(self) -> grpc.aio.Channel:
        if self._opened is None:
            self._opened = open_aio_channel(self.endpoint, self._security)
        return self._opened
