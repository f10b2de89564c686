"""Serves a shard reader over gRPC."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc

from penstock.aws import AwsError, AwsLocation, LocationMismatch, account_of
from penstock.efo_consumer._model.positions import ShardRange
from penstock.efo_consumer._model.schema import read_schema
from penstock.efo_consumer._reader.api import FleetMember, OpenRequest
from penstock.efo_consumer._remote.arrow_stream import BatchEncoder, encode, encode_block
from penstock.efo_consumer._remote.client import CONTRACT, MESSAGES
from penstock.efo_consumer._remote.messages import STATUS, position_from_message
from penstock.efo_consumer._remote.shared_blocks import BlockPool, BlockWriter
from penstock.efo_consumer.errors import EfoConsumerError, LocationMismatchError
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.rpc import Servicer, errors_as_status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    import pyarrow as pa


_log = logging.getLogger(__name__)


class ReaderLocation:
    """Where a reader's streams are.

    Args:
        location: what the reader knows of it without a call.
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
            # Its consumer's ARN says which stream was leased, by any caller.
            arn = consumers.get(stream, "")
            leased = arn.split(":")
            if len(leased) > 5:
                consumer = AwsLocation(region=leased[3], account_id=leased[4])
                self._refuse(stream, consumer.mismatch(AwsLocation(account_id=account_of(stream))), arn)
                await self._compare(stream, consumer, arn)

    async def _compare(self, stream: str, caller: AwsLocation, consumer_arn: str = "") -> None:
        found = await caller.stream_mismatch(self._location, stream, self._arn, self._endpoint_aliases)
        self._refuse(stream, found, consumer_arn)

    def _refuse(self, stream: str, different: LocationMismatch | None, consumer_arn: str) -> None:
        if different is not None:
            raise LocationMismatchError(
                stream=stream,
                fact=different.fact,
                caller=different.caller,
                found=different.service,
                consumer_arn=consumer_arn,
            )

    async def _arn(self, stream: str) -> str | None:
        try:
            return await self._stream_arn(stream)
        except (AwsError, EfoConsumerError) as error:
            # Reading needs no permission for it. The region and the endpoint are compared anyway.
            _log.warning("cannot compare the account of stream %s with its caller's: %s", stream, error)
            return None


SERVICE_NAME: Final = CONTRACT.service.full_name
"""For health checks and reflection."""
SIGN_SECONDS: Final = 0.5
"""A caller for ranges that hears nothing for longer asks another reader: a few of these must fit into its patience."""


class ShardReaderServicer(Servicer):
    """Answers for a reader. `add_to` is what `GrpcServer(register=…)` wants.

    Args:
        reader: whose answers are given.
        blocks: in the folder of the server's Unix socket, if tasks may get batches there.
        location: where the reader's streams are; what callers mean is compared with it. None compares nothing.
    """

    contract = CONTRACT

    def __init__(
        self,
        reader: FleetMember,
        blocks: BlockPool | None = None,
        *,
        location: ReaderLocation | None = None,
    ) -> None:
        super().__init__(reader)
        self._reader = reader
        self._blocks = blocks
        self._location = location

    def add_to(self, server: grpc.aio.Server) -> None:
        """Let the server answer for this servicer."""
        super().add_to(server)
        read_range = grpc.unary_stream_rpc_method_handler(
            self.ReadRange, request_deserializer=pb.ReadRangeRequest.FromString, response_serializer=None
        )
        # In place of the handler of that method, whose serializer would take messages only.
        server.add_registered_method_handlers(SERVICE_NAME, {"ReadRange": read_range})  # type: ignore[attr-defined]  # missing in the stubs

    async def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS):
            asked = MESSAGES.of(OpenRequest, request)
            if self._location is not None:
                await self._location.check(asked)
            epoch = await self._reader.open(asked)
        how = self._reader.deaggregates
        return pb.OpenResponse(
            epoch=epoch, deaggregates=None if how is None else bool(how), keeps_all_user_records=how == "all"
        )

    async def ReadRange(self, request: pb.ReadRangeRequest, context: Any) -> AsyncIterator[Any]:
        """See the contract; the answers are their bytes already."""
        encoder = BatchEncoder(read_schema(with_encryption_type=request.with_encryption_type))
        pool = self._blocks if request.with_shared_blocks else None
        blocks = None if pool is None else BlockWriter(pool)
        async with errors_as_status(context, STATUS):
            has_patience = request.HasField("retry_patience_seconds")
            at = position_from_message
            ranges = (
                ShardRange(one.stream_name, one.shard_id, at(one.after), at(one.upto), one.created_millis or None)
                for one in request.ranges
            )
            batches = self._reader.read_range(
                request.session_id,
                [*ranges],
                epoch=request.epoch,
                with_encryption_type=request.with_encryption_type,
                max_batch_bytes=request.max_batch_bytes,
                fail_on_data_loss=request.fail_on_data_loss if request.HasField("fail_on_data_loss") else None,
                retry_patience_seconds=request.retry_patience_seconds if has_patience else None,
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


async def _one_ahead(
    batches: AsyncGenerator[pa.RecordBatch, None], encoder: BatchEncoder, blocks: BlockWriter | None
) -> AsyncGenerator[bytes, None]:
    """Encode each batch while the one before it is on its way. Yields a sign of life while no batch is ready."""

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
