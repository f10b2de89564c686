"""What Kinesis tells after a refusal: how often it is asked, and how old its answers may be."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from penstock.aws import AwsConnectionError, AwsServiceError, JsonClient
from penstock.efo_consumer import StreamIdentity
from penstock.efo_consumer._publish.diagnosis import KinesisDiagnosis, with_advice

ORDERS = StreamIdentity("orders")
ARN = "arn:aws:kinesis:eu-west-1:000000000000:stream/orders/consumer/billing:1"
GONE = AwsServiceError(code="ResourceNotFoundException", message="gone", status=400, operation="Describe")


class ScriptedClient:
    """Answers by operation, and counts the calls."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any] | Exception] = {
            "DescribeStreamSummary": {"StreamDescriptionSummary": {}},
            "DescribeStreamConsumer": {"ConsumerDescription": {"ConsumerStatus": "ACTIVE"}},
        }
        self.calls: list[tuple[str, dict[str, str]]] = []

    async def call(self, operation: str, request: dict[str, str]) -> dict[str, Any]:
        self.calls.append((operation, request))
        await asyncio.sleep(0)
        answer = self.answers[operation]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def diagnosis(client: ScriptedClient, clock: Clock | None = None) -> KinesisDiagnosis:
    return KinesisDiagnosis(cast(JsonClient, client), clock=clock or Clock())


async def test_a_call_that_fails_tells_nothing() -> None:
    """What is missing stays unknown, which is not an error; the stream is asked for by its ARN where that is known."""
    client = ScriptedClient()
    client.answers["DescribeStreamSummary"] = AwsConnectionError(
        operation="DescribeStreamSummary", endpoint="there", reason="reset"
    )
    arn = "arn:aws:kinesis:eu-west-1:000000000000:stream/orders"
    assert await diagnosis(client).missing(StreamIdentity("orders", arn), None) is None
    assert client.calls == [("DescribeStreamSummary", {"StreamARN": arn})]


async def test_an_answer_from_before_a_refusal_is_not_used() -> None:
    """A consumer, or stream, that was there a moment ago may be what is missing: taking a shard for it loses data."""
    client = ScriptedClient()
    clock = Clock()
    one = diagnosis(client, clock)
    assert await one.consumer_status(ARN) == "ACTIVE"
    assert await one.missing(ORDERS, ARN) == "shard"
    clock.now += 0.01
    client.answers["DescribeStreamConsumer"] = GONE
    assert await one.missing(ORDERS, ARN) == "consumer"
    clock.now += 0.01
    client.answers["DescribeStreamSummary"] = GONE
    assert await one.missing(ORDERS, ARN) == "stream"


@pytest.mark.parametrize(
    ("operation", "code", "advice"),
    [
        ("GetRecords", "KMSDisabledException", ": the key that encrypts the stream is disabled: enable it"),
        ("GetRecords", "AccessDeniedException", ": the credentials need kinesis:GetRecords"),
        ("SubscribeToShard", "AccessDeniedException", "need kinesis:SubscribeToShard on the consumer's ARN"),
        ("GetRecords", "ExpiredTokenException", ": the credentials have expired"),
        ("GetShardIterator", "InvalidArgumentException", "the position may be older than the stream's retention"),
    ],
)
def test_a_refusal_comes_with_what_to_do(operation: str, code: str, advice: str) -> None:
    """Both ways to read give the same advice for the same code, and name the permission that their call needs."""
    error = AwsServiceError(code=code, message="said so", status=400, operation=operation)
    assert advice in with_advice(error)
    assert with_advice(error, of=" (consumer billing)").startswith(f"{error} (consumer billing)")
