"""A directory of readers over gRPC: servicer and client."""

from __future__ import annotations

from typing import Any, Final

import grpc

from penstock.proto.reader_directory.v1 import reader_directory_pb2 as pb
from penstock.registration._readers import AnnouncedReader, KnownReaders, ReaderDirectory
from penstock.registration._remote.messages import STATUS, registration_error
from penstock.registration.errors import RegistrationOptionError
from penstock.rpc import ClientSecurity, Contract, Messages, RemoteApi, Rpc, Servicer, calls

_CALL_SECONDS: Final = 5.0


def _announcement(arguments: dict[str, Any]) -> pb.AnnounceRequest:
    reader = arguments["reader"]
    return pb.AnnounceRequest(job_id=reader.job_id, reader=_MESSAGES.to(pb.Reader, reader))


def _listed(reader: AnnouncedReader) -> pb.AnnouncedReader:
    return pb.AnnouncedReader(
        job_id=reader.job_id,
        reader=_MESSAGES.to(pb.Reader, reader),
        age_seconds=reader.age_seconds,
        silent_seconds=reader.silent_seconds,
    )


def _reader(message: pb.AnnouncedReader | pb.AnnounceRequest, **seen: float) -> AnnouncedReader:
    return _MESSAGES.of(AnnouncedReader, message.reader, job_id=message.job_id, **seen)


def _seen(message: pb.AnnouncedReader) -> AnnouncedReader:
    return _reader(message, age_seconds=message.age_seconds, silent_seconds=message.silent_seconds)


_MESSAGES: Final = Messages(
    by_hand={AnnouncedReader: (_listed, _seen)},
    invalid=lambda field, value: RegistrationOptionError(option=field, reason=f"{value!r} is unknown"),
)
_CONTRACT: Final = Contract(
    ReaderDirectory,
    pb.DESCRIPTOR.services_by_name["ReaderDirectoryService"],
    {
        "announce": Rpc(
            "Announce",
            "time_to_live_seconds",
            request=_announcement,
            arguments=lambda request: {"reader": _reader(request)},
        ),
        "withdraw": Rpc("Withdraw"),
        "readers": Rpc("ListReaders", "readers"),
    },
    _MESSAGES,
    STATUS,
)
READERS_SERVICE_NAME: Final = _CONTRACT.service.full_name
"""For health checks and reflection."""


class ReaderDirectoryServicer(Servicer):
    """Answers for readers that are known. `add_to` is what `GrpcServer(register=…)` wants."""

    contract = _CONTRACT

    def __init__(self, known: KnownReaders | None = None) -> None:
        self._known = known or KnownReaders()
        super().__init__(self._known)

    async def Withdraw(self, request: pb.WithdrawRequest, context: Any) -> pb.WithdrawResponse:
        """See the contract."""
        self._known.forget(request.job_id, request.reader_id)
        return pb.WithdrawResponse()


class RemoteReaderDirectory(RemoteApi):
    """A ReaderDirectory behind an endpoint (`host:port`). Belongs to the event loop that first uses it."""

    contract = _CONTRACT

    def __init__(self, endpoint: str, security: ClientSecurity | None = None) -> None:
        super().__init__(endpoint, security, timeout_seconds=_CALL_SECONDS)

    announce = calls(ReaderDirectory.announce)
    withdraw = calls(ReaderDirectory.withdraw)
    readers = calls(ReaderDirectory.readers)

    def _error(self, error: grpc.RpcError, operation: str) -> Exception:
        return registration_error(error, self._endpoint, operation)
