"""Between the values of this package and the messages of `consumer_registry.v1`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from penstock.aws import AwsLocation, BackoffPolicy
from penstock.proto.aws.v1.aws_pb2 import AwsLocation as AwsLocationMessage
from penstock.proto.aws.v1.aws_pb2 import Backoff
from penstock.proto.consumer_registry.v1 import consumer_registry_pb2 as pb
from penstock.registration._config import RegistrarConfig
from penstock.registration._values import (
    AcquireRequest,
    ConflictPolicy,
    Consumer,
    ConsumerState,
    Lease,
    Orphan,
    OrphanFate,
    RegistrationStrategy,
)
from penstock.registration.errors import InvalidRequestError, RegistrationOptionError

_STRATEGIES: Final = {
    RegistrationStrategy.LAZY: pb.REGISTRATION_STRATEGY_LAZY,
    RegistrationStrategy.EAGER: pb.REGISTRATION_STRATEGY_EAGER,
    RegistrationStrategy.NONE: pb.REGISTRATION_STRATEGY_NONE,
}
_POLICIES: Final = {
    ConflictPolicy.REFUSE: pb.CONFLICT_POLICY_REFUSE,
    ConflictPolicy.WAIT: pb.CONFLICT_POLICY_WAIT,
    ConflictPolicy.TAKE_OVER: pb.CONFLICT_POLICY_TAKE_OVER,
}
_STATES: Final = {
    ConsumerState.CREATING: pb.CONSUMER_STATE_CREATING,
    ConsumerState.ACTIVE: pb.CONSUMER_STATE_ACTIVE,
    ConsumerState.DELETING: pb.CONSUMER_STATE_DELETING,
    ConsumerState.ABSENT: pb.CONSUMER_STATE_ABSENT,
}
_FATES: Final = {
    OrphanFate.KEPT: pb.ORPHAN_FATE_KEPT,
    OrphanFate.DUE: pb.ORPHAN_FATE_DUE,
    OrphanFate.ENDED: pb.ORPHAN_FATE_ENDED,
    OrphanFate.FAILED: pb.ORPHAN_FATE_FAILED,
}
_STATE_OF: Final = {code: state for state, code in _STATES.items()}
_FATE_OF: Final = {code: fate for fate, code in _FATES.items()}
# What is unspecified, or of a newer client, is the default.
_STRATEGY_OF: Final = {code: strategy for strategy, code in _STRATEGIES.items()}
_POLICY_OF: Final = {code: policy for policy, code in _POLICIES.items()}


def acquire_message(request: AcquireRequest) -> pb.AcquireRequest:
    """The timeout is not in it: it is the call's deadline."""
    return pb.AcquireRequest(
        stream_name=request.stream_name,
        stream_arn=request.stream_arn or "",
        consumer_name=request.consumer_name,
        job_id=request.job_id,
        strategy=_STRATEGIES[request.strategy],
        consumer_arn=request.consumer_arn or "",
        conflict_policy=_POLICIES[request.conflict_policy],
        time_to_live_seconds=request.time_to_live.total_seconds() if request.time_to_live else 0.0,
        claim=request.claim,
        after_fencing_token=request.after_fencing_token or 0,
        caller=None if request.caller is None else AwsLocationMessage(**vars(request.caller)),
        **({} if request.config is None else _config_fields(request.config)),
    )


def _config_fields(config: RegistrarConfig) -> dict[str, Any]:
    return {
        "register_backoff": _backoff_message(config.policy("register")),
        "list_backoff": _backoff_message(config.policy("list")),
        "register_timeout_seconds": config.register_timeout.total_seconds(),
    }


def _backoff_message(policy: BackoffPolicy) -> Backoff:
    return Backoff(
        base_seconds=policy.base.total_seconds(),
        maximum_seconds=policy.maximum.total_seconds(),
        exponent=policy.exponent,
        max_attempts=policy.max_attempts or 0,
    )


def acquire_request(message: pb.AcquireRequest) -> AcquireRequest:
    """Raises InvalidRequestError when the message is not a valid request."""
    seconds = message.time_to_live_seconds
    try:
        time_to_live = timedelta(seconds=seconds) if seconds else None
    except (OverflowError, ValueError) as error:
        reason = f"{seconds} s is not a valid lifetime of a lease"
        raise InvalidRequestError(field="time_to_live_seconds", reason=reason) from error
    try:
        config = _config_of(message)
    except (OverflowError, ValueError, RegistrationOptionError) as error:
        raise InvalidRequestError(field="register_backoff", reason=str(error)) from error
    return AcquireRequest(
        stream_name=message.stream_name,
        stream_arn=message.stream_arn or None,
        consumer_name=message.consumer_name,
        job_id=message.job_id,
        strategy=_STRATEGY_OF.get(message.strategy, RegistrationStrategy.LAZY),
        consumer_arn=message.consumer_arn or None,
        conflict_policy=_POLICY_OF.get(message.conflict_policy, ConflictPolicy.REFUSE),
        time_to_live=time_to_live,
        config=config,
        claim=message.claim,
        after_fencing_token=message.after_fencing_token or None,
        caller=_location_of(message.caller) if message.HasField("caller") else None,
    )


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


def _location_of(message: AwsLocationMessage) -> AwsLocation:
    return AwsLocation(region=message.region, account_id=message.account_id, endpoint_url=message.endpoint_url)


def lease_message(lease: Lease) -> pb.Lease:
    """All fields."""
    return pb.Lease(
        stream_name=lease.stream_name,
        stream_arn=lease.stream_arn,
        consumer_name=lease.consumer_name,
        job_id=lease.job_id,
        consumer_arn=lease.consumer_arn,
        fencing_token=lease.fencing_token,
        time_to_live_seconds=lease.time_to_live_seconds,
        registration_is_ours=lease.registration_is_ours,
    )


def lease_of(message: pb.Lease) -> Lease:
    """All fields."""
    return Lease(
        stream_name=message.stream_name,
        stream_arn=message.stream_arn,
        consumer_name=message.consumer_name,
        job_id=message.job_id,
        consumer_arn=message.consumer_arn,
        fencing_token=message.fencing_token,
        time_to_live_seconds=message.time_to_live_seconds,
        registration_is_ours=message.registration_is_ours,
    )


def lease_named(message: pb.HeartbeatRequest | pb.ReleaseRequest) -> Lease:
    """The lease that a heartbeat or a release is about; what the message does not carry is empty."""
    return Lease(
        stream_name=message.stream_name,
        stream_arn=message.stream_arn,
        consumer_name=message.consumer_name,
        job_id=message.job_id,
        consumer_arn="",
        fencing_token=message.fencing_token,
        time_to_live_seconds=0.0,
        registration_is_ours=False,
    )


def consumer_message(consumer: Consumer) -> pb.Consumer:
    """All fields; `lease` is absent when nobody holds the consumer."""
    return pb.Consumer(
        stream_name=consumer.stream_name,
        stream_arn=consumer.stream_arn,
        consumer_name=consumer.consumer_name,
        consumer_arn=consumer.consumer_arn,
        registration_is_ours=consumer.registration_is_ours,
        lease=None if consumer.lease is None else lease_message(consumer.lease),
        age_seconds=consumer.age_seconds,
        state=pb.CONSUMER_STATE_UNSPECIFIED if consumer.state is None else _STATES[consumer.state],
        held_seconds=consumer.held_seconds,
        cost_per_hour_usd=consumer.cost_per_hour_usd,
    )


def consumer_of(message: pb.Consumer) -> Consumer:
    """All fields."""
    return Consumer(
        stream_name=message.stream_name,
        stream_arn=message.stream_arn,
        consumer_name=message.consumer_name,
        consumer_arn=message.consumer_arn,
        registration_is_ours=message.registration_is_ours,
        lease=lease_of(message.lease) if message.HasField("lease") else None,
        age_seconds=message.age_seconds,
        state=_STATE_OF.get(message.state),
        held_seconds=message.held_seconds,
        cost_per_hour_usd=message.cost_per_hour_usd if message.HasField("cost_per_hour_usd") else None,
    )


def orphan_message(orphan: Orphan) -> pb.Orphan:
    """All fields."""
    return pb.Orphan(consumer=consumer_message(orphan.consumer), fate=_FATES[orphan.fate], reason=orphan.reason)


def orphan_of(message: pb.Orphan) -> Orphan:
    """All fields. A fate of a newer registry is one that leaves the consumer alone."""
    fate = _FATE_OF.get(message.fate, OrphanFate.KEPT)
    return Orphan(consumer=consumer_of(message.consumer), fate=fate, reason=message.reason)
