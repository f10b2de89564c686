"""Errors that do not pass, brought about by the emulator, for each way to read: told with what to do."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from wire_errors_kinesis import (
    FATAL,
    HTTP1,
    HTTP2,
    POLLING,
    SHARD,
    Kinesis,
    kinesis,
    read,
)

from penstock.efo_consumer import RecordPublisher, SubscribeTransportType
from penstock.efo_consumer._publish.diagnosis import KinesisDiagnosis
from penstock.efo_consumer._publish.metrics import publisher_metrics
from penstock.efo_consumer.errors import (
    RecordPublisherError,
    RecordPublisherFatalError,
    SubscriptionTakenOverError,
)


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize(
    ("way", "operation"),
    [
        (HTTP2, "SubscribeToShard"),
        (HTTP1, "SubscribeToShard"),
        (POLLING, "GetShardIterator"),
        (POLLING, "GetRecords"),
    ],
)
async def test_what_cannot_pass_is_told_at_once(way: SubscribeTransportType | None, operation: str, code: str) -> None:
    """A fatal code is raised at its first answer, and says what was answered."""
    async with kinesis() as opened:
        await opened.put(5)
        opened.server.faults.add("error", operation=operation, code=code, message="said so")
        with pytest.raises(RecordPublisherFatalError, match="said so") as caught:
            await read(opened.publisher(way), 5)
        assert (caught.value.stream, caught.value.shard_id, caught.value.code) == ("orders", SHARD, code)
        assert opened.hits == 1


async def test_a_thousand_shards_ask_once_for_the_state_of_their_consumer() -> None:
    """Questions of the same moment share a call: DescribeStreamConsumer allows 20 a second."""
    async with kinesis() as opened:
        diagnosis = KinesisDiagnosis(opened.client, clock=lambda: 0.0)
        opened.server.faults.add("delay", operation="DescribeStreamConsumer", seconds=0.01)
        states = await asyncio.gather(*(diagnosis.consumer_status(opened.consumer_arn) for _ in range(1000)))
        assert set(states) == {"ACTIVE"}
        assert opened.hits == 1


async def outcomes(opened: Kinesis, publisher: RecordPublisher, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How the publisher's subscriptions ended, until the first record."""
    ended: list[str] = []
    monkeypatch.setattr(publisher_metrics(), "subscription_ended", lambda *, outcome, **_: ended.append(outcome))
    await read(publisher, 1)
    return ended


async def test_a_consumer_that_is_created_is_told_from_one_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """One code of the service is waited out in both cases, and counted apart."""
    async with kinesis(
        consumer_creation_delay=timedelta(seconds=0.5), resubscribe_interval=timedelta(seconds=1)
    ) as opened:
        await opened.put(1)
        found = await outcomes(opened, opened.publisher(HTTP1), monkeypatch)
        assert set(found[:-1]) == {"consumer_not_active"}
        found = await outcomes(opened, opened.publisher(HTTP1), monkeypatch)
        assert "held_by_another" in found
        assert set(found[:-1]) <= {"held_by_another", "consumer_not_active"}


async def test_a_take_over_names_both_readers(caplog: pytest.LogCaptureFixture) -> None:
    """Of two jobs that share a consumer one is told, by their names, who holds the subscription; the other reads on."""
    async with kinesis() as opened:
        await opened.put(1)
        caplog.set_level(logging.WARNING, logger="penstock.efo_consumer")
        publishers = [opened.publisher(HTTP1, reader_name=name) for name in ("job-a", "job-b")]
        tasks = [asyncio.create_task(read(publisher, 2)) for publisher in publishers]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        error = done.pop().exception()
        assert isinstance(error, SubscriptionTakenOverError)
        assert {error.reader, error.other_reader} == {"job-a", "job-b"}
        assert error.times == 3
        assert opened.consumer_arn in str(error)
        assert any("job-a" in line and "job-b" in line for line in caplog.messages)
        await opened.put(1)
        assert len(await pending.pop()) == 2


async def test_an_active_consumer_that_stays_in_use_is_held_by_another() -> None:
    """A reader that never gets its turn is told that somebody holds the consumer, not that attempts failed."""
    async with kinesis() as opened:
        opened.server.faults.add("error", operation="SubscribeToShard", code="ResourceInUseException")
        publisher = opened.publisher(HTTP1, resource_in_use_patience=timedelta(seconds=0.1), reader_name="job-a")
        with pytest.raises(SubscriptionTakenOverError) as caught:
            await read(publisher, 1)
        assert (caught.value.reader, caught.value.other_reader) == ("job-a", None)
        assert isinstance(caught.value, RecordPublisherError)
