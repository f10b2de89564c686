"""A directory of readers over gRPC: servicer and client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import grpc

from penstock.proto.reader_directory.v1 import reader_directory_pb2 as pb
from penstock.proto.reader_directory.v1 import reader_directory_pb2_grpc as pb_grpc
from penstock.registration._readers.directory import AnnouncedReader, AnnouncedShard, KnownReaders
from penstock.registration._remote.status import STATUS, registration_error
from penstock.rpc import ClientSecurity, MethodRights, ServiceRights, errors_as_status, open_aio_channel

READERS_SERVICE_NAME: Final = pb.DESCRIPTOR.services_by_name["ReaderDirectoryService"].full_name
"""For health checks and reflection."""
_CALL_SECONDS: Final = 5.0
RIGHTS: Final = ServiceRights(
    "consumer-registry",
    READERS_SERVICE_NAME,
    {
        "Announce": MethodRights(
            resources={"streams": ("reader.stream_names",), "jobs": ("job_id",)},
            owned="job_id",
        ),
        "Withdraw": MethodRights(resources={"jobs": ("job_id",)}, owned="job_id"),
        "ListReaders": MethodRights(all_of=("jobs",), tells_owned=("readers.job_id",)),
    },
)
"""What the methods act on."""


class ReaderDirectoryServicer(pb_grpc.ReaderDirectoryServiceServicer):
    """Answers for readers that are known. `add_to` is what `GrpcServer(register=…)` wants."""

    rights: Final = RIGHTS
    """What its methods act on, for `GrpcServer(rights=…)`."""

    def __init__(self, known: KnownReaders | None = None) -> None:
        self._known = known or KnownReaders()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Let the server answer for this servicer."""
        pb_grpc.add_ReaderDirectoryServiceServicer_to_server(self, server)

    async def Announce(self, request: pb.AnnounceRequest, context: Any) -> pb.AnnounceResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS):
            seconds = await self._known.announce(_reader_of(request.job_id, request.reader))
            return pb.AnnounceResponse(time_to_live_seconds=seconds)

    async def Withdraw(self, request: pb.WithdrawRequest, context: Any) -> pb.WithdrawResponse:
        """See the contract."""
        self._known.forget(request.job_id, request.reader_id)
        return pb.WithdrawResponse()

    async def ListReaders(self, request: pb.ListReadersRequest, context: Any) -> pb.ListReadersResponse:
        """See the contract."""
        readers = await self._known.readers()
        return pb.ListReadersResponse(
            readers=[
                pb.AnnouncedReader(
                    job_id=one.job_id,
                    reader=_message_of(one),
                    age_seconds=one.age_seconds,
                    silent_seconds=one.silent_seconds,
                )
                for one in readers
            ]
        )


class RemoteReaderDirectory:
    """A ReaderDirectory behind an endpoint (`host:port`). Belongs to the event loop that first uses it."""

    def __init__(self, endpoint: str, security: ClientSecurity | None = None) -> None:
        self._endpoint = endpoint
        self._security = security
        self._channel: grpc.aio.Channel | None = None

    async def announce(self, reader: AnnouncedReader) -> float:
        """See ReaderDirectory."""
        request = pb.AnnounceRequest(job_id=reader.job_id, reader=_message_of(reader))
        answer: pb.AnnounceResponse = await self._ask("Announce", request)
        return answer.time_to_live_seconds

    async def withdraw(self, reader: AnnouncedReader) -> None:
        """See ReaderDirectory."""
        await self._ask("Withdraw", pb.WithdrawRequest(job_id=reader.job_id, reader_id=reader.reader_id))

    async def readers(self) -> Sequence[AnnouncedReader]:
        """See ReaderDirectory."""
        answer: pb.ListReadersResponse = await self._ask("ListReaders", pb.ListReadersRequest())
        return [
            _reader_of(one.job_id, one.reader, age_seconds=one.age_seconds, silent_seconds=one.silent_seconds)
            for one in answer.readers
        ]

    async def close(self) -> None:
        """See ReaderDirectory."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    async def _ask(self, operation: str, message: Any) -> Any:
        if self._channel is None:
            self._channel = open_aio_channel(self._endpoint, self._security)
        stub = pb_grpc.ReaderDirectoryServiceStub(self._channel)
        try:
            return await getattr(stub, operation)(message, timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise registration_error(error, self._endpoint, operation) from error


def _message_of(reader: AnnouncedReader) -> pb.Reader:
    return pb.Reader(
        reader_id=reader.reader_id,
        address=reader.address,
        view_token=reader.view_token,
        query=reader.query,
        owner=reader.owner,
        stream_names=reader.stream_names,
        shards=reader.shards,
        troubled_shards=reader.troubled_shards,
        millis_behind_latest=reader.millis_behind_latest,
        condition=reader.condition,
        worst_shards=[pb.ReaderShard(**asdict(one)) for one in reader.worst_shards],
    )


def _reader_of(job_id: str, message: pb.Reader, **seen: float) -> AnnouncedReader:
    return AnnouncedReader(
        job_id=job_id,
        reader_id=message.reader_id,
        address=message.address,
        view_token=message.view_token,
        query=message.query,
        owner=message.owner,
        stream_names=tuple(message.stream_names),
        shards=message.shards,
        troubled_shards=message.troubled_shards,
        millis_behind_latest=message.millis_behind_latest,
        condition=message.condition,
        worst_shards=tuple(
            AnnouncedShard(**{one.name: getattr(shard, one.name) for one in fields(AnnouncedShard)})
            for shard in message.worst_shards
        ),
        **seen,
    )
