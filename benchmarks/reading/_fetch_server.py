"""The other process of `hatch run bench fetch`: a shard reader with a full buffer, beside it a bare stream of bytes.

Both are served by one gRPC server. The bare stream sends the very messages that ReadRange answers, made beforehand.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from typing import Any

import grpc

from penstock.efo_consumer import (
    SERVICE_NAME,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    ShardReaderServicer,
    ranges_between,
)
from penstock.efo_consumer.testing import FakeKinesis
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.rpc import GrpcServer, ServerSettings

SESSION = "fetch"
STREAM = "fetch"
SHARDS = 4
BYTES = 64 * 1024 * 1024
_RECORD_BYTES = 1000
# 1 MiB and more, as subscriptions to a busy shard bring it.
_RECORDS_PER_EVENT = 1100
_METHOD = "Stream"


class _Bare(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """`/bench.Bare/Stream`: the messages, whole and as they are."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """See grpc."""
        if handler_call_details.method != f"/bench.Bare/{_METHOD}":
            return None

        async def stream(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
            for message in self._messages:
                yield message

        return grpc.unary_stream_rpc_method_handler(stream)


async def _serve(pipe: Connection) -> None:
    kinesis = FakeKinesis(event_records=_RECORDS_PER_EVENT)
    for shard in kinesis.create_stream(STREAM, SHARDS):
        kinesis.put(STREAM, shard, BYTES // SHARDS // _RECORD_BYTES, size=_RECORD_BYTES)
    start = kinesis.trim_horizon(STREAM)
    config = ReaderConfig(buffer_bytes_per_shard=2 * BYTES, buffer_bytes=4 * BYTES)
    async with LocalShardReader(kinesis, config) as reader:
        epoch = await reader.open(OpenRequest(session_id=SESSION, positions=start))
        records = end = None
        while end is None or records != SHARDS * (BYTES // SHARDS // _RECORD_BYTES):
            await asyncio.sleep(0.01)
            found = await reader.positions(SESSION, epoch, start, wait_seconds=10)
            records, end = found.records, found.positions
        messages = []
        async for batch in reader.read_range(SESSION, ranges_between(start, end)):
            message = pb.ReadRangeResponse(arrow_ipc=batch.serialize().to_pybytes())
            messages.append(message.SerializeToString())

        def register(server: grpc.aio.Server) -> None:
            ShardReaderServicer(reader).add_to(server)
            server.add_generic_rpc_handlers((_Bare(messages),))

        async with GrpcServer(ServerSettings(), register=[register], service_names=[SERVICE_NAME]) as server:
            pipe.send((server.address, start.to_json(), end.to_json(), records, sum(map(len, messages))))
            # In a thread that sleeps: it costs nothing while a fetch is measured.
            while await asyncio.to_thread(pipe.recv) is not None:
                pipe.send(time.process_time())


def serve(pipe: Connection) -> None:
    """Serve until None is sent; answer whatever else is sent with the processor time of this process, in seconds."""
    asyncio.run(_serve(pipe))
