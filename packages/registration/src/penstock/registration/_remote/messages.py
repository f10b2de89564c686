"""Between the values of this package and the messages of `consumer_registry.v1`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.registration._config import RegistrarConfig
from penstock.registration._registry import ServedRegistry
from penstock.registration._remote.status import STATUS
from penstock.registration._values import (
    AcquireRequest,
    ConflictPolicy,
    Lease,
    OrphanFate,
    RegistrationStrategy,
)
from penstock.registration.errors import RegistrationOptionError
from penstock.rpc import Contract, Messages, Rpc


def acquire_message(request: AcquireRequest) -> pb.AcquireRequest:
    """The timeout is not in it: it is the call's deadline."""
    message = MESSAGES.to(pb.AcquireRequest, request)
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
    return MESSAGES.of(AcquireRequest, message, time_to_live=time_to_live, config=config, timeout=None)


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
