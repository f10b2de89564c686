"""Between the values of this package and the messages of `consumer_registry.v1`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from penstock.aws import BackoffPolicy
from penstock.proto.aws.v1.aws_pb2 import Backoff
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
        message.register_backoff.CopyFrom(_backoff_message(request.config.policy("register")))
        message.list_backoff.CopyFrom(_backoff_message(request.config.policy("list")))
        message.register_timeout_seconds = request.config.register_timeout.total_seconds()
    return message


def _backoff_message(policy: BackoffPolicy) -> Backoff:
    return Backoff(
        base_seconds=policy.base.total_seconds(),
        maximum_seconds=policy.maximum.total_seconds(),
        exponent=policy.exponent,
        max_attempts=policy.max_attempts or 0,
    )


def acquire_request(message: pb.AcquireRequest) -> AcquireRequest:
    """Raises RegistrationOptionError when the message is not a valid request."""
    seconds = message.time_to_live_seconds
    try:
        time_to_live = timedelta(seconds=seconds) if seconds else None
    except (OverflowError, ValueError) as error:
        reason = f"{seconds} s is not a valid lifetime of a lease"
        raise RegistrationOptionError(option="time_to_live_seconds", reason=reason) from error
    try:
        config = _config_of(message)
    except (OverflowError, ValueError, RegistrationOptionError) as error:
        raise RegistrationOptionError(option="register_backoff", reason=str(error)) from error
    return MESSAGES.of(AcquireRequest, message, time_to_live=time_to_live, config=config, timeout=None)


def _config_of(message: pb.AcquireRequest) -> RegistrarConfig | None:
    if not message.HasField("register_backoff") or not message.HasField("list_backoff"):
        return None
    values: dict[str, Any] = {}
    for call, backoff in (("register", message.register_backoff), ("list", message.list_backoff)):
        values |= {
            f"{call}_max_retries": backoff.max_attempts - 1,
            f"{call}_backoff_base": timedelta(seconds=backoff.base_seconds),
            f"{call}_backoff_max": timedelta(seconds=backoff.maximum_seconds),
            f"{call}_backoff_expconst": backoff.exponent,
        }
    if message.register_timeout_seconds:
        values["register_timeout"] = timedelta(seconds=message.register_timeout_seconds)
    return RegistrarConfig(**values)


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
