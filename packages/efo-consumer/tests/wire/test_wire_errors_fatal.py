"""Errors that do not pass, from the emulator, for each way to read: raised with what to do."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from wire_world import data, read, world

from penstock.aws import BackoffPolicy
from penstock.efo_consumer import RecordPublisher, SubscribeTransportType
from penstock.efo_consumer._publish.diagnosis import KinesisDiagnosis
from penstock.efo_consumer._publish.metrics import publisher_metrics
from penstock.efo_consumer.errors import RecordPublisherFatalError, SubscriptionTakenOverError

HTTP2, HTTP1 = SubscribeTransportType.HTTP2, SubscribeTransportType.HTTP1
FATAL = [
    "AccessDeniedException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSAccessDeniedException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "InvalidArgumentException",
    "ValidationException",
    "ExpiredTokenException",
    "UnrecognizedClientException",
]
QUICK = BackoffPolicy(base=timedelta(milliseconds=10), maximum=timedelta(milliseconds=20), max_attempts=None)


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize(
    ("way", "operation"),
    [
        (HTTP2, "SubscribeToShard"),
        (HTTP1, "SubscribeToShard"),
        (None, "GetShardIterator"),
        (None, "GetRecords"),
    ],
)
async def test_what_cannot_pass_is_told_at_once(way: SubscribeTransportType | None, operation: str, code: str) -> None:
    """A fatal code is raised at its first answer, and says what was answered."""
    async with world() as opened:
        opened.server.faults.add("error", operation=operation, code=code, message="said so")
        with pytest.raises(RecordPublisherFatalError, match="said so") as caught:
            await read(opened.publisher(way))
        assert (caught.value.stream, caught.value.shard_id, caught.value.code) == (
            "orders",
            "shardId-000000000000",
            code,
        )
        assert opened.hits == 1


async def test_a_thousand_shards_ask_once_for_the_state_of_their_consumer() -> None:
    """Questions of the same moment share a call: DescribeStreamConsumer allows 20 a second."""
    async with world() as opened:
        diagnosis = KinesisDiagnosis(opened.client, clock=lambda: 0.0)
        opened.server.faults.add("delay", operation="DescribeStreamConsumer", seconds=0.01)
        states = await asyncio.gather(*(diagnosis.consumer_status(opened.consumer_arn) for _ in range(1000)))
        assert set(states) == {"ACTIVE"}
        assert opened.hits == 1


async def outcomes(publisher: RecordPublisher, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How the publisher's subscriptions ended, until the first record."""
    ended: list[str] = []
    monkeypatch.setattr(publisher_metrics(), "subscription_ended", lambda *, outcome, **_: ended.append(outcome))
    await read(publisher, rows=1)
    return ended


async def test_a_consumer_that_is_created_is_told_from_one_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """One code of the service is waited out in both cases, and counted apart."""
    async with world(
        consumer_creation_delay=timedelta(seconds=0.5), resubscribe_interval=timedelta(seconds=1)
    ) as opened:
        await opened.put(1, 10)
        found = await outcomes(opened.publisher(HTTP1, subscribe_to_shard=QUICK), monkeypatch)
        assert set(found[:-1]) == {"consumer_not_active"}
        found = await outcomes(opened.publisher(HTTP1, subscribe_to_shard=QUICK), monkeypatch)
        assert "held_by_another" in found
        assert set(found[:-1]) <= {"held_by_another", "consumer_not_active"}


async def test_a_take_over_names_both_readers(caplog: pytest.LogCaptureFixture) -> None:
    """Two jobs share a consumer: one fails with the names of both, and the other continues."""
    async with world() as opened:
        await opened.put(1, 10)
        caplog.set_level(logging.WARNING, logger="penstock.efo_consumer")
        publishers = [
            opened.publisher(HTTP1, reader_name=name, subscribe_to_shard=QUICK) for name in ("job-a", "job-b")
        ]
        tasks = [asyncio.create_task(read(publisher, rows=2)) for publisher in publishers]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        error = done.pop().exception()
        assert isinstance(error, SubscriptionTakenOverError)
        assert {error.reader, error.other_reader} == {"job-a", "job-b"}
        assert error.times == 3
        assert opened.consumer_arn in str(error)
        assert any("job-a" in line and "job-b" in line for line in caplog.messages)
        await opened.put(1, 10)
        assert len(data(await pending.pop())) == 2
