"""The options of the emulator: its configuration, and what Kinesis leaves open (profiles `kind` and `hostile`)."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from penstock.emulator._state.quotas import DAILY_LIMITS, OPERATION_LIMITS
from penstock.emulator.errors import EmulatorConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROFILES = ("kind", "hostile")
"""The names that `Behaviour.profile` takes."""

_ZERO = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Answers to the questions that Amazon's documentation leaves open, or that servers answer differently.

    The defaults are the profile `kind`. A client is correct only if it loses no record, and repeats none, with every
    field on either side. Durations are on the emulator's clock. Random choices follow from `seed` and the order of
    calls.

    Raises:
        EmulatorConfigError: a field is out of range; the error names it.
    """

    read_on_from_trimmed: bool = False
    """GetShardIterator and SubscribeToShard with a sequence number older than the retention: InvalidArgumentException,
    or reading starts with the oldest record that is left."""
    refuse_expired_ahead: bool = False
    """Records that expire ahead of an open iterator or subscription: skipped silently, or GetRecords answers
    ExpiredIteratorException and the subscription ends. Skipping is the unkind side, and the one of both profiles."""
    refuse_continuations: bool = False
    """GetShardIterator with a `ContinuationSequenceNumber` that no record has: accepted, or InvalidArgumentException.
    SubscribeToShard accepts it always."""
    arrival_jitter: timedelta = _ZERO
    """How far `ApproximateArrivalTimestamp` may go back within a shard; 0: never. Retention and AT_TIMESTAMP follow the
    exact times, which are never earlier than those shown."""
    late_children: timedelta = _ZERO
    """How long after a reshard ListShards and DescribeStream show the parents as open and the children not at all; 0:
    not at all. Each reshard takes between half of it and all of it. The children can be read from the start."""
    unlist_expired_early: bool = False
    """When a closed shard leaves ListShards and DescribeStream: once it was closed longer ago than the retention, or
    already when its last record has expired. It can be read until the former either way."""
    get_records_lag: timedelta = _ZERO
    """How far GetRecords may be behind SubscribeToShard, with `MillisBehindLatest` 0 beside records that are there; 0:
    never. Every other call, on average, is not behind. No record is skipped: a later call gives it."""
    shard_end_without_event: bool = False
    """The end of a closed shard's subscription: a last event with `ChildShards`, or the stream ends without one, and
    so does each new subscription. GetRecords names the children either way."""
    subscriptions_outlive_shards: bool = False
    """The end of a closed shard's subscription: a last event with `ChildShards`, or the subscription stays open and
    sends empty events with the same `ContinuationSequenceNumber` and `MillisBehindLatest` 0, and so does each new
    subscription. GetRecords names the children either way. With `shard_end_without_event` too, each shard does one of
    the two, by chance."""
    refuse_future_timestamps: bool = False
    """AT_TIMESTAMP up to 5 s in the future: accepted, or InvalidArgumentException."""
    sequence_numbers_without_time: bool = False
    """Whether sequence numbers hold no arrival time. Decided for each shard when it is created."""
    sequence_numbers_start_over: bool = False
    """The first shards of a stream with the name of a deleted one: sequence numbers above all earlier ones, or the
    same ones again."""
    accept_deleted_numbers: bool = False
    """A sequence number of the deleted stream, given to the stream that has its name now: InvalidArgumentException, or
    reading starts at the place where the number would be in the order of sequence numbers."""
    page_span: timedelta | None = None
    """How much time one GetRecords call looks through, so that a gap takes many pages without records; None: all."""
    empty_answers: int = 0
    """How many answers of GetRecords have no records although there are more, or although the shard has ended. They
    come after each GetShardIterator, after each answer with records, and before the null iterator of a closed shard.
    On a closed shard they have `MillisBehindLatest` 0, on an open shard the true value. DynamoDB Streams, which has no
    `MillisBehindLatest`, also gives them where an open shard has no more records."""
    seed: int | None = None
    """Seed of the random choices; None: the `seed` of the emulator."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, timedelta) and value < _ZERO:
                raise EmulatorConfigError(option=item.name, reason="must not be negative")
        if self.empty_answers < 0:
            raise EmulatorConfigError(option="empty_answers", reason="must not be negative")
        if self.page_span == _ZERO:
            raise EmulatorConfigError(option="page_span", reason="must be positive, or None for no limit")

    @classmethod
    def from_environment(cls, *, profile: str | None = None, seed: int | None = None) -> Behaviour:
        """Give the profile that `PENSTOCK_EMULATOR_PROFILE` names, or `kind`; `PENSTOCK_EMULATOR_SEED` seeds it.

        Args:
            profile: in place of the first.
            seed: in place of the second.

        Raises:
            EmulatorConfigError: not a profile, or not a whole number; the error names the variable.
        """
        text = os.environ.get("PENSTOCK_EMULATOR_SEED")
        if seed is None and text:
            try:
                seed = int(text)
            except ValueError:
                reason = f"must be a whole number, not {text!r}"
                raise EmulatorConfigError(option="PENSTOCK_EMULATOR_SEED", reason=reason) from None
        name = profile or os.environ.get("PENSTOCK_EMULATOR_PROFILE") or "kind"
        try:
            return cls.profile(name, seed=seed)
        except EmulatorConfigError as error:
            if profile is not None:
                raise
            raise EmulatorConfigError(option="PENSTOCK_EMULATOR_PROFILE", reason=error.reason) from None

    @classmethod
    def kind(cls, *, seed: int | None = None) -> Behaviour:
        """The friendly answer to every question; the default."""
        return cls(seed=seed)

    @classmethod
    def hostile(cls, *, seed: int | None = None) -> Behaviour:
        """The unkind answer to every question at once."""
        return cls(
            read_on_from_trimmed=True,
            refuse_continuations=True,
            arrival_jitter=timedelta(seconds=1),
            late_children=timedelta(seconds=5),
            unlist_expired_early=True,
            get_records_lag=timedelta(seconds=1),
            shard_end_without_event=True,
            subscriptions_outlive_shards=True,
            refuse_future_timestamps=True,
            sequence_numbers_without_time=True,
            sequence_numbers_start_over=True,
            accept_deleted_numbers=True,
            page_span=timedelta(minutes=30),
            seed=seed,
        )

    @classmethod
    def profile(cls, name: str, *, seed: int | None = None) -> Behaviour:
        """The profile of this name, one of `kind` and `hostile`.

        Raises:
            EmulatorConfigError: no profile has this name.
        """
        match name:
            case "kind":
                return cls.kind(seed=seed)
            case "hostile":
                return cls.hostile(seed=seed)
        raise EmulatorConfigError(option="profile", reason=f"must be one of {', '.join(PROFILES)}")

    @property
    def profile_name(self) -> str:
        """`kind`, `hostile`, or `custom` for anything else; the seed does not matter."""
        names = (name for name in PROFILES if replace(self, seed=None) == Behaviour.profile(name))
        return next(names, "custom")

    def as_dict(self) -> dict[str, bool | float | int | None]:
        """The fields as JSON has them: durations in seconds."""
        values = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in values}

    def changed(self, values: Mapping[str, Any]) -> Behaviour:
        """A copy with some fields changed, given as in `as_dict`.

        Raises:
            EmulatorConfigError: a field is unknown, or its value has the wrong type or is out of range.
        """
        kinds = {item.name: str(item.type) for item in fields(self)}
        changes: dict[str, Any] = {}
        for name, value in values.items():
            if name not in kinds:
                raise EmulatorConfigError(option=name, reason=f"unknown; there are {', '.join(kinds)}")
            changes[name] = _converted(name, kinds[name], value)
        return replace(self, **changes)


def _converted(name: str, kind: str, value: Any) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None and kind.endswith("None"):
        return None
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind.startswith("int") and is_number and isinstance(value, int):
        return value
    if kind.startswith("timedelta") and is_number:
        try:
            return timedelta(seconds=value)
        except (OverflowError, ValueError) as error:
            raise EmulatorConfigError(option=name, reason="must be a number of seconds") from error
    wanted = {"bool": "true or false", "int": "an integer", "int | None": "an integer"}.get(kind, "a number of seconds")
    raise EmulatorConfigError(option=name, reason=f"must be {wanted}")


class Conduct:
    """The behaviour in force, which may change at any time, and its chance."""

    def __init__(self, behaviour: Behaviour, seed: int) -> None:
        self._default_seed = seed
        self._draws: Counter[tuple[str, ...]] = Counter()
        self._behaviour = behaviour

    @property
    def behaviour(self) -> Behaviour:
        """The behaviour in force; setting it restarts the random choices."""
        return self._behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._draws.clear()

    @property
    def seed(self) -> int:
        """The seed in force."""
        return self._default_seed if self._behaviour.seed is None else self._behaviour.seed

    def draw(self, *key: str) -> float:
        """A number from 0 up to 1, not included; always the same for the same key."""
        digest = blake2b("\0".join((str(self.seed), *key)).encode(), digest_size=8).digest()
        # 53 bits: what a float can hold, or the greatest would become 1.
        return (int.from_bytes(digest) >> 11) / (1 << 53)

    def next_draw(self, *key: str) -> float:
        """A new number with each call, from a sequence of the key's own."""
        self._draws[key] += 1
        return self.draw(*key, str(self._draws[key]))


MIB = 1024 * 1024
_COUNTS = {
    "consumers_per_stream",
    "consumers_creating_at_once",
    "streams_creating_at_once",
    "shards_per_account",
    "on_demand_streams",
}
_RATES: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("operation_limits", OPERATION_LIMITS),
    ("daily_limits", DAILY_LIMITS),
)
_ACTS_WITH = {
    "tls_port": "tls",
    "ca_file": "tls",
    "access_keys": "verify_signatures",
    "operation_limits": "enforce_limits",
    "daily_limits": "enforce_limits",
}
"""Options that do nothing without another one; the rates, too, need `enforce_limits`."""


@dataclass(frozen=True, kw_only=True)
class EmulatorConfig:
    """All settings of an emulator. The defaults are as in Kinesis, or say why they differ.

    Raises:
        EmulatorConfigError: an option is out of range, or would do nothing beside the others; the error names it.
    """

    host: str = "127.0.0.1"
    """Address on which both listeners are bound."""
    port: int = 0
    """Port of the plain-text listener (HTTP/1.1); 0 lets the system choose."""
    tls_port: int = 0
    """Port of the TLS listener (HTTP/2 or HTTP/1.1, by ALPN); 0 lets the system choose."""
    tls: bool = True
    """Whether there is a TLS listener at all. HTTP/2 needs one."""
    ca_file: Path | None = None
    """Where the PEM of the certificate authority is written; a temporary file by default."""
    region: str = field(default_factory=lambda: os.environ.get("AWS_REGION") or "us-east-1")
    """Region in the ARNs of streams. A stream that a signed request creates has the region of the signature instead."""
    account_id: str = "000000000000"
    """Account that appears in ARNs and messages; twelve digits."""

    behaviour: Behaviour = field(default_factory=Behaviour.from_environment)
    """What is done where Kinesis leaves things open, at the start; may be changed while the emulator runs."""

    companions: tuple[str, ...] = ()
    """Services that moto's server answers beside this one: `dynamodb`, `sqs`, `sts`, … (extra `companions`)."""
    firehose_folder: Path | None = None
    """Where the records of Firehose go, a folder for each delivery stream; a temporary folder by default."""

    stream_creation_delay: timedelta = timedelta(0)
    """How long a stream is CREATING. Tens of seconds in AWS; none here, so that tests start at once."""
    stream_update_delay: timedelta = timedelta(0)
    """How long a stream is UPDATING after a split, a merge or an update of the shard count."""
    stream_deletion_delay: timedelta = timedelta(0)
    """How long a stream is DELETING before it is gone."""
    consumer_creation_delay: timedelta = timedelta(seconds=0.5)
    """How long a stream consumer is CREATING. Seconds in AWS; short but present, so that callers have to wait."""
    consumer_deletion_delay: timedelta = timedelta(seconds=0.5)
    """How long a stream consumer is DELETING before it is gone."""

    subscription_lifetime: timedelta = timedelta(minutes=5)
    """How long a SubscribeToShard call lives (API reference: up to 5 minutes)."""
    resubscribe_interval: timedelta = timedelta(seconds=5)
    """Within this time of a successful SubscribeToShard, the same consumer and shard are refused."""
    idle_event_interval: timedelta = timedelta(seconds=5)
    """How often a subscription without new records gets an event."""
    shard_iterator_lifetime: timedelta = timedelta(minutes=5)
    """How long a shard iterator can be used."""
    next_token_lifetime: timedelta = timedelta(seconds=300)
    """How long a NextToken can be used."""

    enforce_limits: bool = True
    """Whether the rates below hold, unless they are None. Sizes and counts are always checked."""
    shard_write_records_per_second: float | None = 1000
    """Records that a shard takes per second."""
    shard_write_bytes_per_second: float | None = MIB
    """Bytes (data and partition keys) that a shard takes per second."""
    shard_read_calls_per_second: float | None = 5
    """GetRecords calls that a shard answers per second, over all its readers."""
    shard_read_bytes_per_second: float | None = 2 * MIB
    """Bytes that GetRecords gives per second and shard, over all its readers."""
    subscription_bytes_per_second: float | None = 2 * MIB
    """Bytes that a subscription pushes per second."""
    operation_limits: Mapping[str, float | None] = field(default_factory=dict)
    """Calls per second by operation, in place of AWS's rates (see the README); None: as many as come."""
    daily_limits: Mapping[str, float | None] = field(default_factory=dict)
    """Successes per stream and 24 hours by operation, in place of AWS's; None: as many as come."""

    firehose_records_per_second: float | None = 500_000
    """Records that a Firehose delivery stream takes per second (direct put, us-east-1)."""
    firehose_calls_per_second: float | None = 2000
    """Calls that a Firehose delivery stream takes per second (direct put, us-east-1)."""
    firehose_bytes_per_second: float | None = 5 * MIB
    """Bytes that a Firehose delivery stream takes per second (direct put, us-east-1)."""

    consumers_per_stream: int | None = 20
    """Stream consumers that one stream can have."""
    consumers_creating_at_once: int | None = 5
    """Stream consumers of one stream that can be CREATING at the same time."""
    streams_creating_at_once: int | None = 5
    """Streams of the account that can be CREATING at the same time."""
    shards_per_account: int | None = 20_000
    """Open shards of all provisioned streams together. AWS's default in its largest regions, us-east-1 among them."""
    on_demand_streams: int | None = 50
    """On-demand streams that the account can have."""
    max_record_bytes: int = MIB
    """Size of a record, data and partition key, of streams that do not set their own maximum."""
    max_request_bytes: int = 10 * MIB
    """Size of the records of one PutRecords, data and partition keys."""
    retention: timedelta = timedelta(hours=24)
    """How long new streams keep their records; 24 hours to 365 days in AWS."""

    verify_signatures: bool = False
    """Whether requests have to be signed (Signature Version 4) with one of `access_keys`."""
    access_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secret access keys by access key id."""

    manual_clock: bool = False
    """Whether time stands still until it is moved over HTTP (`POST /_emulator/clock`)."""
    seed: int | None = None
    """Seed of every random choice; None draws one, which `/_emulator/faults` shows. `behaviour` can have its own."""

    def __post_init__(self) -> None:
        for name in ("port", "tls_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise EmulatorConfigError(option=name, reason="must be a port between 0 and 65535")
        if not re.fullmatch(r"\d{12}", self.account_id):
            raise EmulatorConfigError(option="account_id", reason="must have twelve digits")
        if self.verify_signatures and not self.access_keys:
            raise EmulatorConfigError(option="access_keys", reason="must not be empty when signatures are verified")
        if not self.region:
            raise EmulatorConfigError(option="region", reason="must not be empty")
        for name, value in vars(self).items():
            if isinstance(value, timedelta) and value < timedelta(0):
                raise EmulatorConfigError(option=name, reason="must not be negative")
            if value is None:
                continue
            if name.endswith("_per_second") and not 0 < value < math.inf:
                raise EmulatorConfigError(option=name, reason="must be positive and finite, or None for no limit")
            if name.startswith("max_") and value < 1:
                raise EmulatorConfigError(option=name, reason="must be at least 1")
            if name in _COUNTS and value < 1:
                raise EmulatorConfigError(option=name, reason="must be at least 1, or None for no limit")
        for name, known in _RATES:
            for operation, rate in getattr(self, name).items():
                if operation not in known:
                    reason = f"has no limit for {operation}; there are {', '.join(known)}"
                    raise EmulatorConfigError(option=name, reason=reason)
                if rate is not None and not 0 < rate < math.inf:
                    reason = f"must be positive and finite, or None, for {operation}"
                    raise EmulatorConfigError(option=name, reason=reason)
        for name in ("subscription_lifetime", "idle_event_interval"):
            if getattr(self, name) <= timedelta(0):
                raise EmulatorConfigError(option=name, reason="must be positive")
        for name, value in vars(self).items():
            needed = _ACTS_WITH.get(name, "enforce_limits" if name.endswith("_per_second") else None)
            # Fields have their defaults on the class; a rate of None agrees with limits that are off.
            is_given = bool(value) and value != getattr(type(self), name, None)
            if needed is not None and is_given and not getattr(self, needed):
                reason = f"does nothing without {needed}: set that too, or leave this out"
                raise EmulatorConfigError(option=name, reason=reason)
