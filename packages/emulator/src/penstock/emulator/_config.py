"""The options of the emulator."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from penstock.emulator._behaviour import Behaviour
from penstock.emulator._state.limits import DAILY_LIMITS, OPERATION_LIMITS
from penstock.emulator.errors import EmulatorConfigError

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
    """Everything that can be set about an emulator; the defaults are those of Kinesis, or say why they differ.

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
    region: str = "us-east-1"
    """Region that appears in ARNs."""
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
