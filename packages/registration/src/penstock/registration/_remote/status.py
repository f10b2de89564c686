"""Errors to gRPC status codes and back."""

from __future__ import annotations

from typing import Final

import grpc

from penstock.registration import errors
from penstock.registration.errors import RegistrationError, RegistryUnavailableError
from penstock.rpc import StatusTable, typed_error

STATUS: Final[StatusTable] = {
    errors.RegistrationOptionError: grpc.StatusCode.INVALID_ARGUMENT,
    "REGISTRY_LOCATION_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "CONSUMER_DELETING": grpc.StatusCode.FAILED_PRECONDITION,
    errors.StreamNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.ConsumerNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.ConsumerHeldError: grpc.StatusCode.ALREADY_EXISTS,
    "STALE_FENCING_TOKEN": grpc.StatusCode.ABORTED,
    errors.LeaseLostError: grpc.StatusCode.ABORTED,
    errors.AcquireTimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    "REGISTRATION_TIMEOUT": grpc.StatusCode.DEADLINE_EXCEEDED,
    "REGISTRATION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "CONSUMER_LIMIT": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "REGISTRATION_FAILED": grpc.StatusCode.INTERNAL,
    errors.RegistryUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.LeaseStoreError: grpc.StatusCode.UNAVAILABLE,
    "REGISTRY_CLOSED": grpc.StatusCode.UNAVAILABLE,
}
"""What the servicer answers. The error's class and fields travel along, so that the caller gets the same error back."""

_TYPES: Final[tuple[type[Exception], ...]] = (
    RegistrationError,
    *(kind for kind in STATUS if isinstance(kind, type) and issubclass(kind, RegistrationError)),
)
_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_AWAY: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def is_transport_failure(error: grpc.RpcError) -> bool:
    """Whether the registry itself was not reached, so that the call may be made again."""
    return typed_error(error, _TYPES) is None and _code(error) in _AWAY


def registration_error(error: grpc.RpcError, endpoint: str, operation: str) -> RegistrationError:
    """What the servicer raised, or what its absence means."""
    typed = typed_error(error, _TYPES)
    if isinstance(typed, RegistrationError):
        return typed
    code, details = _code(error), _details(error)
    where = f"the registry at {endpoint}"
    if code in _AWAY:
        return RegistryUnavailableError(where=where, reason=details or code.name.lower())
    if code in _REFUSED:
        return RegistrationError.of("REGISTRY_ACCESS", where=where, reason=details)
    return RegistrationError.of(
        "REGISTRATION_FAILED", operation=f"{operation} of {where}", error=code.name, reason=details
    )


def deadline_passed(error: grpc.RpcError) -> bool:
    """Whether the call's own deadline passed."""
    return typed_error(error, _TYPES) is None and _code(error) is grpc.StatusCode.DEADLINE_EXCEEDED


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    code = getattr(error, "code", lambda: None)()
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _details(error: grpc.RpcError) -> str:
    return str(getattr(error, "details", lambda: None)() or "")
