"""What a refused position means, and how often in a row it may be refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from penstock.efo_consumer import ShardPosition
from penstock.efo_consumer._continuity import guard
from penstock.efo_consumer._continuity.guard import Loss, Resume
from penstock.efo_consumer._reader.inquiry import REFUSALS, ShardInquiry
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis

GONE = RecordPublisherFatalError("no", stream="s", shard_id="late", code="ResourceNotFoundException")
REFUSED = RecordPublisherFatalError("no", stream="s", shard_id="late", code="InvalidArgumentException")
DENIED = RecordPublisherFatalError("no", stream="s", shard_id="late", code="AccessDeniedException")


@pytest.fixture
def kinesis(monkeypatch: pytest.MonkeyPatch) -> FakeKinesis:
    monkeypatch.setattr(guard, "_RETRY_SECONDS", 0.0)
    found = FakeKinesis()
    found.create_stream("s")
    return found


def inquiry(kinesis: FakeKinesis) -> ShardInquiry:
    return ShardInquiry(kinesis, "s", "late", created_millis=None, patience=lambda: timedelta(seconds=30))


def recent(kinesis: FakeKinesis) -> ShardPosition:
    return ShardPosition.at_timestamp(kinesis.service_millis() - 1_000)


async def test_a_shard_that_is_not_listed_is_asked_for_a_few_times(kinesis: FakeKinesis) -> None:
    """It may show up late. Without a record that proves that it was there, it is an error in the end, not a loss."""
    asked, position = inquiry(kinesis), recent(kinesis)
    for _ in range(REFUSALS):
        assert await asked.refused(GONE, position, position) == Resume(position)
    with pytest.raises(RecordPublisherFatalError) as caught:
        await asked.refused(GONE, position, position)
    assert caught.value is GONE


async def test_refusals_are_counted_from_the_last_answer(kinesis: FakeKinesis) -> None:
    """Each answer proves its position."""
    asked, position = inquiry(kinesis), recent(kinesis)
    for _ in range(3):
        for _ in range(REFUSALS):
            await asked.refused(GONE, position, position)
        asked.refusals = 0


async def test_a_shard_that_was_read_and_stays_away_is_lost_at_the_last_try(kinesis: FakeKinesis) -> None:
    """It had a record, so it was listed once."""
    asked, now = inquiry(kinesis), kinesis.service_millis()
    position = replace(ShardPosition.after("500"), arrived_millis=now - 1_000)
    for _ in range(REFUSALS - 1):
        assert isinstance(await asked.refused(GONE, position, position), Resume)
    found = await asked.refused(GONE, position, position)
    assert isinstance(found, Loss)
    assert found.is_lost


async def test_a_position_that_cannot_be_refused_is_tried_once(kinesis: FakeKinesis) -> None:
    """After it was chosen in place of one that was refused."""
    asked, after = inquiry(kinesis), recent(kinesis)
    asked.refusals = 1
    with pytest.raises(RecordPublisherFatalError) as caught:
        await asked.refused(REFUSED, ShardPosition.trim_horizon(), after)
    assert caught.value is REFUSED


async def test_an_error_of_another_kind_is_raised_at_once(kinesis: FakeKinesis) -> None:
    """Permissions say nothing about the position."""
    with pytest.raises(RecordPublisherFatalError) as caught:
        await inquiry(kinesis).refused(DENIED, recent(kinesis), recent(kinesis))
    assert caught.value is DENIED
