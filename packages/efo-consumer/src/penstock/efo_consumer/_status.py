"""Errors of a shard reader to gRPC status codes and back."""

from __future__ import annotations

from typing import Final

import grpc

from penstock.efo_consumer import errors
from penstock.efo_consumer.errors import EfoConsumerError, PositionsError, ReaderUnavailableError, ShardFailedError
from penstock.rpc import StatusTable, typed_error

STATUS: Final[StatusTable] = {
    errors.PositionsError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.EfoConsumerConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.SessionNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.StaleEpochError: grpc.StatusCode.ABORTED,
    errors.FencedConsumerError: grpc.StatusCode.ABORTED,
    errors.DataLossError: grpc.StatusCode.OUT_OF_RANGE,
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

_TYPES: Final = (
    errors.SessionNotFoundError,
    errors.StaleEpochError,
    errors.FencedConsumerError,
    errors.DataLossError,
    errors.RangeDeadlineError,
    errors.ShardFailedError,
    errors.EfoConsumerConfigError,
)


def status_table(error: Exception) -> StatusTable:
    """The table, made precise for a shard that failed: its code is Kinesis' own."""
    if isinstance(error, ShardFailedError) and error.code in _OF_KINESIS:
        return {**STATUS, ShardFailedError: _OF_KINESIS[error.code]}
    return STATUS


def reader_error(error: grpc.RpcError, endpoint: str) -> EfoConsumerError:
    """What the servicer raised; when it raised nothing, why the reader could not be reached."""
    told = typed_error(error, _TYPES)
    if isinstance(told, EfoConsumerError):
        return told
    code = getattr(error, "code", lambda: None)()
    details = str(getattr(error, "details", lambda: None)() or "")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return PositionsError(details)
    name = code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
    return ReaderUnavailableError(endpoint=endpoint, reason=f"{name}: {details}" if details else name)
