"""Between the values and errors of this package and the messages and status codes of `consumer_registry.v1`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import grpc

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.proto.rules.v1 import rules_pb2
from penstock.registration import errors
from penstock.registration._registry import ServedRegistry
from penstock.registration._times import RegistrarConfig
from penstock.registration._values import (
    AcquireRequest,
    ConflictPolicy,
    Lease,
    OrphanFate,
    RegistrationStrategy,
)
from penstock.registration.errors import RegistrationError, RegistrationOptionError, RegistryUnavailableError
from penstock.rpc import Contract, Messages, Rpc, StatusTable, typed_error

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

MOST_WAIT_SECONDS: Final[float] = (
    pb.AcquireRequest.DESCRIPTOR.fields_by_name["wait_seconds"].GetOptions().Extensions[rules_pb2.field].maximum
)

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
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        field, _, rule = details.partition(" ")
        return errors.RegistrationOptionError(option=field, reason=rule)
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


def acquire_message(request: AcquireRequest) -> pb.AcquireRequest:
    """The timeout is the call's deadline. It is in the message as far as the contract allows a call to wait."""
    message = MESSAGES.to(pb.AcquireRequest, request)
    if request.timeout is not None:
        message.wait_seconds = min(request.timeout.total_seconds(), MOST_WAIT_SECONDS)
    if request.time_to_live is not None:
        message.time_to_live_seconds = request.time_to_live.total_seconds()
    if request.config is not None:
        message.register_timeout_seconds = request.config.register_timeout.total_seconds()
    return message


def acquire_request(message: pb.AcquireRequest) -> AcquireRequest:
    """Raises RegistrationOptionError when the message is not a valid request."""
    time_to_live = _time("time_to_live_seconds", message.time_to_live_seconds)
    register = _time("register_timeout_seconds", message.register_timeout_seconds)
    config = None if register is None else RegistrarConfig(register_timeout=register)
    timeout = timedelta(seconds=message.wait_seconds or MOST_WAIT_SECONDS)
    return MESSAGES.of(AcquireRequest, message, time_to_live=time_to_live, config=config, timeout=timeout)


def _time(field: str, seconds: float) -> timedelta | None:
    try:
        return timedelta(seconds=seconds) if seconds else None
    except (OverflowError, ValueError) as error:
        raise RegistrationOptionError(option=field, reason=f"{seconds} s is not a valid time") from error


def lease_named(message: pb.HeartbeatRequest | pb.ReleaseRequest, consumer_arn: str = "") -> Lease:
    """The lease that a heartbeat or a release is about; what the message does not carry is empty."""
    return MESSAGES.of(Lease, message, consumer_arn=consumer_arn, time_to_live_seconds=0.0, registration_is_ours=False)


def _release_request(arguments: dict[str, Any]) -> pb.ReleaseRequest:
    lease = arguments["lease"]
    message = MESSAGES.to(pb.ReleaseRequest, lease)
    message.disowned_consumer_arn = lease.consumer_arn if arguments["disown"] else ""
    return message


def _release_arguments(message: pb.ReleaseRequest) -> dict[str, Any]:
    arn = message.disowned_consumer_arn
    return {"lease": lease_named(message, arn), "disown": bool(arn)}


MESSAGES: Final = Messages(
    unknown={
        # What is unspecified, or of a newer client, is the default. A fate of a newer registry is one that leaves the
        # consumer alone.
        RegistrationStrategy: RegistrationStrategy.LAZY,
        ConflictPolicy: ConflictPolicy.REFUSE,
        OrphanFate: OrphanFate.KEPT,
    },
    invalid=lambda field, value: RegistrationOptionError(option=field, reason=f"{value!r} is unknown"),
)
CONTRACT: Final = Contract(
    ServedRegistry,
    pb.DESCRIPTOR.services_by_name["ConsumerRegistryService"],
    {
        "release": Rpc("Release", "will_deregister", request=_release_request, arguments=_release_arguments),
        "list_consumers": Rpc("ListConsumers", "consumers"),
        "force_release": Rpc("ForceRelease", "lease"),
        "adopt": Rpc("AdoptConsumer", "consumer"),
        "collect_garbage": Rpc("CollectGarbage", "orphans"),
    },
    MESSAGES,
    STATUS,
)
