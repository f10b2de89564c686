"""Serves a shard reader over gRPC."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc

from penstock.aws import AwsError, AwsLocation, LocationMismatch, account_of
from penstock.efo_consumer._model.schema import read_schema
from penstock.efo_consumer._remote import messages
from penstock.efo_consumer._remote.arrow_stream import BatchEncoder, encode, encode_block
from penstock.efo_consumer._remote.client import status_table
from penstock.efo_consumer._remote.shared_blocks import BlockWriter
from penstock.efo_consumer.errors import EfoConsumerError, LocationMismatchError
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.proto.shard_reader.v1 import shard_reader_pb2_grpc as pb_grpc
from penstock.rpc import MethodRights, ServiceRights, abort_with

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    import pyarrow as pa

    from penstock.efo_consumer._reader.api import FleetMember, OpenRequest
    from penstock.efo_consumer._remote.shared_blocks import BlockPool


_log = logging.getLogger(__name__)


class ReaderLocation:
    """Where a reader's streams are.

    Args:
        location: as far as the reader knows it without a call.
        stream_arn: asks for the ARN of the stream that a name means to the reader.
        endpoint_aliases: further URLs by which callers know the reader's endpoint.
    """

    def __init__(
        self,
        location: AwsLocation,
        stream_arn: Callable[[str], Awaitable[str | None]],
        endpoint_aliases: Sequence[str] = (),
    ) -> None:
        self._location = location
        self._stream_arn = stream_arn
        self._endpoint_aliases = endpoint_aliases

    async def check(self, request: OpenRequest) -> None:
        """Compare what both sides know of each stream.

        Raises:
            LocationMismatchError: they mean different streams.
        """
        consumers = {one.stream_name: one.consumer_arn for one in request.consumers}
        for stream in request.positions.streams:
            if request.caller is not None:
                await self._compare(stream, request.caller)
            # Its consumer's ARN says which stream was leased, whoever leased it.
            leased = consumers.get(stream, "").split(":")
            if len(leased) > 5:
                consumer = AwsLocation(region=leased[3], account_id=leased[4])
                self._refuse(stream, consumer.mismatch(AwsLocation(account_id=account_of(stream))))
                await self._compare(stream, consumer)

    async def _compare(self, stream: str, caller: AwsLocation) -> None:
        found = await caller.stream_mismatch(self._location, stream, self._arn, self._endpoint_aliases)
        self._refuse(stream, found)

    def _refuse(self, stream: str, different: LocationMismatch | None) -> None:
        if different is not None:
            raise LocationMismatchError(
                stream=stream, fact=different.fact, caller=different.caller, found=different.service
            )

    async def _arn(self, stream: str) -> str | None:
        try:
            return await self._stream_arn(stream)
        except (AwsError, EfoConsumerError) as error:
            # Reading needs no permission for it. The region and the endpoint are compared all the same.
            _log.warning("cannot compare the account of stream %s with its caller's: %s", stream, error)
            return None


SERVICE_NAME: Final = pb.DESCRIPTOR.services_by_name["ShardReaderService"].full_name
"""For health checks and reflection."""
_SESSION: Final = {"jobs": ("session_id",)}
RIGHTS: Final = ServiceRights(
    "shard-reader",
    SERVICE_NAME,
    {
        "Open": MethodRights(
            resources={
                **_SESSION,
                "streams": ("positions.stream_name", "consumers.stream_name", "consumers.consumer_arn"),
                "consumers": ("consumers.consumer_arn",),
            },
            owned="session_id",
            change="open session",
        ),
        "Positions": MethodRights(resources={**_SESSION, "streams": ("start.stream_name",)}, owned="session_id"),
        "Look": MethodRights(resources={**_SESSION, "streams": ("start.stream_name",)}, owned="session_id"),
        "ReadRange": MethodRights(resources={**_SESSION, "streams": ("ranges.stream_name",)}, owned="session_id"),
        "Commit": MethodRights(resources={**_SESSION, "streams": ("positions.stream_name",)}, owned="session_id"),
        "Stats": MethodRights(resources=_SESSION, owned="session_id"),
        "ListSessions": MethodRights(all_of=("jobs",), tells_owned=("sessions.session_id",)),
        "Close": MethodRights(resources=_SESSION, owned="session_id", change="close session"),
    },
)
"""What the methods act on."""
SIGN_SECONDS: Final = 0.5
"""A caller for ranges that hears nothing for longer asks another reader: a few of these must fit into its patience."""


class ShardReaderServicer(pb_grpc.ShardReaderServiceServicer):
    """Answers for a reader. `add_to` is what `GrpcServer(register=…)` wants.

    Args:
        reader: whose answers are given.
        blocks: in the folder of the server's Unix socket, if tasks may get batches there.
        location: where the reader's streams are; what callers mean is compared with it. None compares nothing.
    """

    rights: Final = RIGHTS
    """What its methods act on, for `GrpcServer(rights=…)`."""

    def __init__(
        self,
        reader: FleetMember,
        blocks: BlockPool | None = None,
        *,
        location: ReaderLocation | None = None,
    ) -> None:
        self._reader = reader
        self._blocks = blocks
        self._location = location

    def add_to(self, server: grpc.aio.Server) -> None:
        """Let the server answer for this servicer."""
        read_range = grpc.unary_stream_rpc_method_handler(
            self.ReadRange, request_deserializer=pb.ReadRangeRequest.FromString, response_serializer=None
        )
        pb_grpc.add_ShardReaderServiceServicer_to_server(self, server)
        # In place of the generated handler of that method, whose serializer would take messages only.
        server.add_registered_method_handlers(SERVICE_NAME, {"ReadRange": read_range})  # type: ignore[attr-defined]  # missing in the stubs

    async def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenResponse:
        """See the contract."""
        async with _told(context):
            asked = messages.open_from_message(request)
            if self._location is not None:
                await self._location.check(asked)
            epoch = await self._reader.open(asked)
        return messages.open_response(epoch, self._reader.deaggregates)

    async def Positions(self, request: pb.PositionsRequest, context: Any) -> pb.PositionsResponse:
        """See the contract."""
        async with _told(context):
            snapshot = await self._reader.positions(
                request.session_id,
                request.epoch,
                messages.positions_from_messages(request.start),
                max_records=request.max_records,
                max_bytes=request.max_bytes,
                wait_seconds=request.wait_seconds,
                max_records_per_shard=request.max_records_per_shard,
                max_shard_skew_seconds=request.max_shard_skew_seconds
                if request.HasField("max_shard_skew_seconds")
                else None,
                horizon_millis=request.horizon_millis if request.HasField("horizon_millis") else None,
            )
        return messages.snapshot_to_message(snapshot)

    async def Look(self, request: pb.LookRequest, context: Any) -> pb.LookResponse:
        """See the contract."""
        async with _told(context):
            look = await self._reader.look(
                request.session_id,
                request.epoch,
                messages.positions_from_messages(request.start),
                before_millis=request.before_millis if request.HasField("before_millis") else None,
                max_records=request.max_records,
                max_bytes=request.max_bytes,
                max_records_per_shard=request.max_records_per_shard,
            )
        return messages.look_to_message(look)

    async def ReadRange(self, request: pb.ReadRangeRequest, context: Any) -> AsyncIterator[Any]:
        """See the contract; the answers are their bytes already."""
        encoder = BatchEncoder(read_schema(with_encryption_type=request.with_encryption_type))
        pool = self._blocks if request.with_shared_blocks else None
        blocks = None if pool is None else BlockWriter(pool)
        async with _told(context):
            batches = self._reader.read_range(
                request.session_id,
                messages.ranges_from_messages(request.ranges),
                epoch=request.epoch,
                with_encryption_type=request.with_encryption_type,
                max_batch_bytes=messages.batch_bytes_from_message(request),
                fail_on_data_loss=request.fail_on_data_loss if request.HasField("fail_on_data_loss") else None,
                retry_patience_seconds=messages.patience_from_message(request),
            )
            try:
                yield encoder.schema
                async with aclosing(_one_ahead(batches, encoder, blocks)) as answers:
                    async for message in answers:
                        yield message
                if blocks is not None:
                    await blocks.taken()
            finally:
                if blocks is not None:
                    blocks.close()
                await batches.aclose()

    async def Commit(self, request: pb.CommitRequest, context: Any) -> pb.CommitResponse:
        """See the contract."""
        async with _told(context):
            positions = messages.positions_from_messages(request.positions)
            await self._reader.commit(request.session_id, request.epoch, positions)
        return pb.CommitResponse()

    async def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsResponse:
        """See the contract."""
        async with _told(context):
            stats = await self._reader.stats(request.session_id)
        return pb.StatsResponse(shards=[messages.stats_to_message(shard) for shard in stats])

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Any) -> pb.ListSessionsResponse:
        """See the contract."""
        sessions = await self._reader.sessions(with_shards=request.with_shards)
        return pb.ListSessionsResponse(sessions=[messages.session_to_message(session) for session in sessions])

    async def Close(self, request: pb.CloseRequest, context: Any) -> pb.CloseResponse:
        """See the contract."""
        await self._reader.close_session(request.session_id, request.epoch)
        return pb.CloseResponse()


@asynccontextmanager
async def _told(context: Any) -> AsyncIterator[None]:
    """Answer by the status of the error, and with its fields, where the reader raises one."""
    try:
        yield
    except EfoConsumerError as error:
        await abort_with(context, error, status_table(error))


async def _one_ahead(
    batches: AsyncGenerator[pa.RecordBatch, None], encoder: BatchEncoder, blocks: BlockWriter | None
) -> AsyncGenerator[bytes, None]:
    """Encode each batch while the one before it is on its way; a sign of life while there is none."""

    async def encode_next() -> bytes | None:
        batch = await anext(batches, None)
        if batch is None:
            return None
        if blocks is None:
            return encoder.encode(batch)
        parts = encoder.parts(batch)
        written = await blocks.write(parts)
        return encode(parts) if written is None else encode_block(*written)

    following = asyncio.create_task(encode_next(), name="encode the next batch")
    try:
        while True:
            if not (await asyncio.wait((following,), timeout=SIGN_SECONDS))[0]:
                yield b""
                continue
            if (message := following.result()) is None:
                return
            following = asyncio.create_task(encode_next(), name="encode the next batch")
            yield message
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
