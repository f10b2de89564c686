"""Bounds and times of a shard reader."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import timedelta

from penstock.aws import BackoffPolicy
from penstock.efo_consumer._publish.config import (
    Deaggregation,
    RecordPublisherConfig,
    SubscribeTransportType,
)
from penstock.efo_consumer.errors import EfoConsumerConfigError

_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """How the shards of one session are followed; what is None is as the reader is set.

    Only what one session can have for itself: buffers, say, are shared by all sessions of a reader.

    Raises:
        EfoConsumerConfigError: a value is out of range; the error names it.
    """

    subscribe_to_shard: BackoffPolicy | None = None
    """See `RecordPublisherConfig`, for this and those below."""
    get_records: BackoffPolicy | None = None
    get_shard_iterator: BackoffPolicy | None = None
    get_records_max_records: int | None = None
    get_records_interval: timedelta | None = None
    subscribe_transport: SubscribeTransportType | None = None
    connect_timeout: timedelta | None = None
    discovery_interval: timedelta | None = None
    """See `ReaderConfig`."""
    idle_offset_interval: timedelta | None = None
    """See `ReaderConfig`."""

    def __post_init__(self) -> None:
        self.reader(ReaderConfig())

    def reader(self, config: ReaderConfig) -> ReaderConfig:
        """A reader's config, as this session has it."""
        given = {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}
        own = {name: given.pop(name) for name in ("discovery_interval", "idle_offset_interval") if name in given}
        return replace(config, **own, publisher=replace(config.publisher, **given))


@dataclass(frozen=True, kw_only=True)
class ReaderConfig:
    """Bounds and times of a shard reader.

    Raises:
        EfoConsumerConfigError: a value is out of range; the error names it.
    """

    buffer_bytes_per_shard: int = 8 * _MIB
    """Bytes that one shard's buffer may hold before its socket is left unread; one event may exceed it. Default: 8 MiB,
    four seconds' worth."""
    buffer_bytes: int = 128 * _MIB
    """Bytes that all buffers of the reader may hold, and what aggregates become as they are given. Each shard may
    exceed it by an event of enhanced fan-out, or by 64 KiB or one polled record. Default: 128 MiB."""
    idle_offset_interval: timedelta = timedelta(minutes=5)
    """How often positions that moved without a record are reported. Default: 5 minutes, well within any retention."""
    promise_grace: timedelta = timedelta(seconds=30)
    """How long promised records wait in memory for their reader when room is short. Default: 30 s."""
    range_deadline: timedelta = timedelta(seconds=60)
    """How long reading a range again may stand still, beside the interval between two reads. Default: 60 s, the longest
    that a request may take."""
    discovery_interval: timedelta = timedelta(seconds=10)
    """Wait before ListShards is asked again about a shard's parents or children. Default: 10 s (FLIP-128)."""
    session_timeout: timedelta = timedelta(0)
    """After which a session without calls is ended; zero for never. Default: never, as its host ends with it."""
    fail_on_data_loss: bool = True
    """Whether a range that the stream no longer holds is an error; otherwise it is left out, counted and logged."""
    deaggregate: Deaggregation = True
    """Whether aggregates of the Kinesis Producer Library are taken apart. True drops a user record whose key belongs to
    the other shard of a split, because a producer with an old list of shards sends it there again; every other one is
    delivered. `all` drops none: for producers that pack user records without regard to shards. Default: true."""

    publisher: RecordPublisherConfig = field(default_factory=RecordPublisherConfig)
    """How shards are followed; which of the two publishers it is, the session says."""

    @property
    def stall_seconds(self) -> float:
        """How long reading a range again may bring nothing new: answers come one interval after the other."""
        return (self.range_deadline + self.publisher.get_records_interval).total_seconds()

    def __post_init__(self) -> None:
        if self.deaggregate not in (True, False, "all"):
            reason = f"must be True, False or 'all', not {self.deaggregate!r}"
            raise EfoConsumerConfigError(option="deaggregate", reason=reason)
        if self.buffer_bytes_per_shard <= 0:
            raise EfoConsumerConfigError(option="buffer_bytes_per_shard", reason="must be positive")
        if self.buffer_bytes < self.buffer_bytes_per_shard:
            raise EfoConsumerConfigError(option="buffer_bytes", reason="must be at least buffer_bytes_per_shard")
        for option in ("idle_offset_interval", "promise_grace", "session_timeout"):
            if getattr(self, option) < timedelta(0):
                raise EfoConsumerConfigError(option=option, reason="must not be negative")
        for option in ("range_deadline", "discovery_interval"):
            if getattr(self, option) <= timedelta(0):
                raise EfoConsumerConfigError(option=option, reason="must be positive")
