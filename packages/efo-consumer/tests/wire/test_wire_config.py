"""The options of record publishers."""

from typing import Any

import pytest

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import ReaderConfig, RecordPublisherConfig, SubscribeTransportType
from penstock.efo_consumer._publish.factory import FallbackTransport, open_transport
from penstock.efo_consumer._wire.subscription import SubscribeRequest, Subscription
from penstock.efo_consumer.errors import EfoConsumerConfigError, Http2NotNegotiatedError, SubscriptionConnectionError


@pytest.mark.parametrize("deaggregate", ["false", "All", None])
def test_what_becomes_of_aggregates_is_one_of_three(deaggregate: Any) -> None:
    """True, False, or `all`: the error names the option."""
    with pytest.raises(EfoConsumerConfigError) as caught:
        ReaderConfig(deaggregate=deaggregate)
    assert caught.value.option == "deaggregate"


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
