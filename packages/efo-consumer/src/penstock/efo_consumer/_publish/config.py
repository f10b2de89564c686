"""How records are published, with the defaults of FLIP-128 and of Flink's polling consumer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Literal

from penstock.aws import BackoffPolicy
from penstock.efo_consumer._publish.publisher import RecordPublisherType
from penstock.efo_consumer.errors import EfoConsumerConfigError

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
    """How long errors that may pass are retried, from the first one since the last success; zero for no limit. Where a
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
    get_records_interval: timedelta = timedelta(milliseconds=200)
    """Time between two GetRecords on one shard. Default: Flink's 200 ms, which is all of the shard's 5 reads/s: set it
    longer where others poll the stream too."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, timedelta) and value < timedelta(0):
                raise EfoConsumerConfigError(option=item.name, reason="must not be negative")
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
