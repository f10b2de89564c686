"""How records are published: FLIP-128's keys, those of Flink's polling consumer, and this package's own."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import EnumType, StrEnum
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from penstock.aws import AwsError, BackoffPolicy
from penstock.efo_consumer._publish.publisher import RecordPublisherType
from penstock.efo_consumer.errors import EfoConsumerConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_T = TypeVar("_T")

Deaggregation = bool | Literal["all"]
"""What becomes of aggregates of the Kinesis Producer Library: whether they are taken apart, or `all`."""


class SubscribeTransportType(StrEnum):
    """What carries SubscribeToShard.

    `auto` is HTTP/2 where the endpoint is https and chooses it by ALPN, HTTP/1.1 otherwise.
    """

    AUTO = "auto"
    HTTP2 = "http2"
    HTTP1 = "http1"


def _backoff(base_millis: int, max_millis: int) -> BackoffPolicy:
    return BackoffPolicy(
        base=timedelta(milliseconds=base_millis),
        maximum=timedelta(milliseconds=max_millis),
        exponent=1.5,
        max_attempts=None,
    )


_SUBSCRIBE_BACKOFF = _backoff(1000, 2000)
_GET_BACKOFF = _backoff(300, 1000)
RETRY_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class RecordPublisherConfig:
    """How records are published.

    Raises:
        EfoConsumerConfigError: a value is out of range; the error names the option.
    """

    record_publisher: RecordPublisherType = RecordPublisherType.POLLING
    """Enhanced fan-out or polling. Default: FLIP-128's `polling`."""
    subscribe_transport: SubscribeTransportType = SubscribeTransportType.AUTO
    """What carries SubscribeToShard."""

    retry_patience: timedelta = RETRY_PATIENCE
    """How long errors that may pass are retried, from the first one since the last success; zero for ever. Where a
    back-off below has `max_attempts`, that decides instead about the failures which Flink counts. Default: 10 min."""

    subscribe_to_shard: BackoffPolicy = _SUBSCRIBE_BACKOFF
    """Between attempts to subscribe. Default: FLIP-128's 1,000 to 2,000 ms, exponent 1.5, and `retry_patience` instead
    of a number of attempts. With one, every failure counts but time-outs, until a subscription lived to its end."""
    resubscribe_interval: timedelta = timedelta(seconds=5)
    """Time from one success of SubscribeToShard to the next call. Default: 5 s, as the API reference says."""
    resource_in_use_patience: timedelta = timedelta(seconds=60)
    """How long refusals as in use are retried although the consumer is ACTIVE: then another reader has it.

    Default: 60 s. For 5 s after a predecessor's subscription ours is refused.
    """
    subscription_silence: timedelta = timedelta(seconds=35)
    """Without a byte for this long, a subscription is dead. Default: 35 s, seven times the
    service's interval of idle events."""
    subscription_window_bytes: int = 1024 * 1024
    """What Kinesis may send ahead of the consumer, per subscription: HTTP/2's flow-control window; over HTTP/1.1 the
    events that wait before the socket is left unread."""
    connect_timeout: timedelta = timedelta(seconds=10)
    """For connecting, and for the answer's first byte."""

    deaggregate: Deaggregation = True
    """Whether aggregates of the Kinesis Producer Library are given as the user records that they hold. `all` drops no
    user record, whatever its key; see `ReaderConfig`. Default: yes, as Flink and the KCL do."""

    reader_name: str | None = None
    """What this reader is called where another one takes its subscriptions. Default: host, process and a number."""

    get_shard_iterator: BackoffPolicy = _GET_BACKOFF
    """Between attempts of GetShardIterator. Default: Flink's 300 to 1,000 ms, exponent 1.5, and `retry_patience`
    instead of a number of attempts. With one, every failure in a row counts, throttling too."""
    get_records: BackoffPolicy = _GET_BACKOFF
    """Between attempts of GetRecords. Default: as for GetShardIterator. With a number of attempts, every failure in a
    row counts, throttling too, but an expired iterator."""
    get_records_max_records: int = 10_000
    """Records that one GetRecords asks for. Default: Flink's and the API's most, 10,000."""
    get_records_adaptive: bool = True
    """Whether GetRecords, once the shard was throttled, asks for no more records than its 2 MiB/s allow, by the size of
    those before. Default: yes. Flink's is no: then answers of up to 10 MiB and up to 5 s of refusals take turns."""
    get_records_interval: timedelta = timedelta(milliseconds=200)
    """Time between two GetRecords on one shard. Default: Flink's 200 ms, which is all of the shard's 5 reads/s: set it
    longer where others poll the stream too."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, timedelta) and value < timedelta(0):
                raise EfoConsumerConfigError(option=item.name, reason="must not be negative")
        check_deaggregation(self.deaggregate)
        for name in ("subscription_silence", "connect_timeout"):
            if not getattr(self, name):
                raise EfoConsumerConfigError(option=name, reason="must be positive")
        if not 16 * 1024 <= self.subscription_window_bytes < 2**31:
            raise EfoConsumerConfigError(option="subscription_window_bytes", reason="must be 16 KiB to 2 GiB")
        if not 1 <= self.get_records_max_records <= 10_000:
            raise EfoConsumerConfigError(option="get_records_max_records", reason="must be 1 to 10,000")
        if self.get_records_interval < timedelta(milliseconds=200):
            reason = "must be at least 200 ms: Kinesis allows 5 reads/s per shard"
            raise EfoConsumerConfigError(option="get_records_interval", reason=reason)

    @classmethod
    def from_mapping(cls, options: Mapping[str, str]) -> Self:
        """Read FLIP-128's and Flink's keys, with or without `flink.`; `subscribeTransport`, `retryPatience` in seconds.

        Other keys are ignored. Attempts are limited in number only where `maxretries` is given.

        Raises:
            EfoConsumerConfigError: a value cannot be read or is out of range; the error names the key as given.
        """
        given = {name.lower().removeprefix("flink."): (name, value) for name, value in options.items()}
        read = _Reader(given)
        defaults = cls()
        return cls(
            record_publisher=read.value("stream.recordpublisher", RecordPublisherType, defaults.record_publisher),
            subscribe_transport=read.value("subscribetransport", SubscribeTransportType, defaults.subscribe_transport),
            deaggregate=read.value("deaggregate", _deaggregation, defaults.deaggregate),
            retry_patience=read.value("retrypatience", _seconds, defaults.retry_patience),
            subscribe_to_shard=read.backoff("shard.subscribetoshard", defaults.subscribe_to_shard),
            get_shard_iterator=read.backoff("shard.getiterator", defaults.get_shard_iterator),
            get_records=read.backoff("shard.getrecords", defaults.get_records),
            get_records_max_records=read.value(
                "shard.getrecords.maxrecordcount", int, defaults.get_records_max_records
            ),
            get_records_adaptive=read.value("shard.adaptivereads", _boolean, defaults.get_records_adaptive),
            get_records_interval=read.value("shard.getrecords.intervalmillis", _millis, defaults.get_records_interval),
        )


def check_deaggregation(value: object) -> None:
    """Refuse an invalid value of `deaggregate`.

    Raises:
        EfoConsumerConfigError: it is not True, False or `all`.
    """
    if value not in (True, False, "all"):
        raise EfoConsumerConfigError(option="deaggregate", reason=f"must be True, False or 'all', not {value!r}")


def _deaggregation(value: str) -> Deaggregation:
    if value.lower() == "all":
        return "all"
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true, false or all")
    return value.lower() == "true"


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def _seconds(value: str) -> timedelta:
    return timedelta(seconds=float(value))


def _millis(value: str) -> timedelta:
    return timedelta(milliseconds=int(value))


def _attempts(retries: str) -> int | None:
    return int(retries) + 1


@dataclass(frozen=True)
class _Reader:
    """Values of options by their lower-case names, with errors that show the name as given."""

    given: Mapping[str, tuple[str, str]] = field(repr=False)

    def value(self, key: str, parse: Callable[[str], _T], default: _T) -> _T:
        if key not in self.given:
            return default
        name, text = self.given[key]
        try:
            return parse(text)
        except (ValueError, OverflowError) as error:
            known = f"is not one of {', '.join(parse)}" if isinstance(parse, EnumType) else f"cannot be read: {error}"
            raise EfoConsumerConfigError(option=name, reason=f"{text!r} {known}") from error

    def backoff(self, key: str, default: BackoffPolicy) -> BackoffPolicy:
        attempts = self.value(f"{key}.maxretries", _attempts, default.max_attempts)
        try:
            return BackoffPolicy(
                base=self.value(f"{key}.backoff.base", _millis, default.base),
                maximum=self.value(f"{key}.backoff.max", _millis, default.maximum),
                exponent=self.value(f"{key}.backoff.expconst", float, default.exponent),
                max_attempts=attempts,
            )
        except AwsError as error:
            raise EfoConsumerConfigError(option=key, reason=str(error)) from error
