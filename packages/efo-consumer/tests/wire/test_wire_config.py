"""The options of record publishers."""

from datetime import timedelta
from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import ReaderConfig, RecordPublisherConfig, RecordPublisherType, SubscribeTransportType
from penstock.efo_consumer._publish.factory import FallbackTransport, open_transport
from penstock.efo_consumer._wire.subscription import SubscribeRequest, Subscription
from penstock.efo_consumer.errors import EfoConsumerConfigError, Http2NotNegotiatedError, SubscriptionConnectionError


@pytest.mark.parametrize("prefix", ["flink.", "", "FLINK."])
def test_every_key_is_read(prefix: str) -> None:
    """FLIP-128's and Flink's keys are read with and without `flink.`, in any letter case."""
    config = RecordPublisherConfig.from_mapping(
        {
            f"{prefix}stream.recordpublisher": "efo",
            f"{prefix}shard.subscribetoshard.maxretries": "7",
            f"{prefix}shard.subscribetoshard.backoff.base": "10",
            f"{prefix}shard.subscribetoshard.backoff.max": "20",
            f"{prefix}shard.subscribetoshard.backoff.expconst": "2.5",
            f"{prefix}shard.getrecords.maxretries": "1",
            f"{prefix}shard.getrecords.maxrecordcount": "500",
            f"{prefix}shard.getrecords.intervalmillis": "1000",
            f"{prefix}shard.getiterator.backoff.max": "5000",
            f"{prefix}shard.adaptivereads": "False",
            "subscribeTransport": "http1",
            "retryPatience": "90",
            "deaggregate": "false",
            "unrelated": "x",
        }
    )
    assert config.record_publisher is RecordPublisherType.EFO
    assert config.subscribe_transport is SubscribeTransportType.HTTP1
    assert config.subscribe_to_shard.max_attempts == 8
    assert config.subscribe_to_shard.base == timedelta(milliseconds=10)
    assert config.subscribe_to_shard.maximum == timedelta(milliseconds=20)
    assert config.subscribe_to_shard.exponent == 2.5
    assert config.retry_patience == timedelta(seconds=90)
    assert config.get_records.max_attempts == 2
    assert config.get_shard_iterator.max_attempts is None
    assert config.get_records_max_records == 500
    assert config.get_records_interval == timedelta(seconds=1)
    assert config.get_shard_iterator.maximum == timedelta(seconds=5)
    assert not config.get_records_adaptive
    assert not config.deaggregate


@pytest.mark.parametrize(
    ("reader", "publisher", "both"),
    [(True, True, True), (True, "all", "all"), ("all", True, "all"), (False, "all", False), ("all", False, False)],
)
def test_both_configs_decide_about_aggregates(reader: Any, publisher: Any, both: Any) -> None:
    """False in either of them wins, then `all`."""
    text = str(publisher).upper()
    config = ReaderConfig(deaggregate=reader, publisher=RecordPublisherConfig.from_mapping({"deaggregate": text}))
    assert config.deaggregation == both


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("flink.stream.recordpublisher", "carrier pigeon"),
        ("subscribeTransport", "http3"),
        ("deaggregate", "perhaps"),
        ("shard.subscribetoshard.maxretries", "many"),
        ("shard.getrecords.intervalmillis", ""),
        ("retryPatience", "long"),
    ],
)
def test_a_value_that_cannot_be_read_names_its_key(key: str, value: str) -> None:
    """The error names the option as the user wrote it."""
    with pytest.raises(EfoConsumerConfigError) as caught:
        RecordPublisherConfig.from_mapping({key: value})
    assert caught.value.option == key


def session(url: str) -> AwsSession:
    return AwsSession(emulator_options(url))


@pytest.mark.parametrize(
    ("url", "kind", "name"),
    [
        ("http://127.0.0.1:1", SubscribeTransportType.AUTO, "http1"),
        ("https://127.0.0.1:1", SubscribeTransportType.AUTO, "http2"),
        ("https://127.0.0.1:1", SubscribeTransportType.HTTP1, "http1"),
        ("https://127.0.0.1:1", SubscribeTransportType.HTTP2, "http2"),
    ],
)
async def test_the_transport_follows_endpoint_and_option(url: str, kind: SubscribeTransportType, name: str) -> None:
    """Auto is HTTP/2 over https and HTTP/1.1 over plain http."""
    transport = open_transport(session(url), RecordPublisherConfig(subscribe_transport=kind))
    assert transport.name == name
    await transport.close()


def test_http2_over_plain_http_is_a_contradiction() -> None:
    """HTTP/2 is spoken over TLS only: the error says what to change."""
    config = RecordPublisherConfig(subscribe_transport=SubscribeTransportType.HTTP2)
    with pytest.raises(EfoConsumerConfigError, match="https") as caught:
        open_transport(session("http://127.0.0.1:1"), config)
    assert caught.value.option == "subscribeTransport"


class RefusingTransport:
    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self.error = error
        self.calls = 0

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        self.calls += 1
        raise self.error

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("negotiates", [True, False])
async def test_only_a_missing_h2_makes_it_fall_back(negotiates: bool) -> None:
    """A connection that fails is not a reason to fall back; an endpoint without h2 is, from then on."""
    failure = SubscriptionConnectionError("reset")
    first = RefusingTransport("http2", failure if negotiates else Http2NotNegotiatedError(endpoint="there:443"))
    second = RefusingTransport("http1", failure)
    transport = FallbackTransport(first, lambda: second)
    for _ in range(2):
        with pytest.raises(SubscriptionConnectionError):
            await transport.subscribe(None)  # type: ignore[arg-type]  # not looked at
    assert (first.calls, second.calls) == ((2, 0) if negotiates else (1, 2))
    assert transport.name == ("http2" if negotiates else "http1")
