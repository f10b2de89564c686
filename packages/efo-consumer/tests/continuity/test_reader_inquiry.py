"""Reading resumes after a refused position, up to a number of refusals in a row."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from penstock.efo_consumer import ShardPosition
from penstock.efo_consumer._continuity import guard
from penstock.efo_consumer._continuity.guard import Loss
from penstock.efo_consumer._reader.inquiry import REFUSALS, ShardInquiry
from penstock.efo_consumer.errors import RecordPublisherFatalError
from penstock.efo_consumer.testing import FakeKinesis

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

GONE = RecordPublisherFatalError("no", stream="s", shard_id="late", code="ResourceNotFoundException")
REFUSED = RecordPublisherFatalError("no", stream="s", shard_id="late", code="InvalidArgumentException")
DENIED = RecordPublisherFatalError("no", stream="s", shard_id="late", code="AccessDeniedException")


@pytest.fixture
def kinesis(monkeypatch: pytest.MonkeyPatch) -> FakeKinesis:
    monkeypatch.setattr(guard, "_RETRY_SECONDS", 0.0)
    found = FakeKinesis()
    found.create_stream("s")
    return found


class Reading:
    """Reads a shard by attempts that end with errors, in their order; a number is something that it brings."""

    def __init__(self, kinesis: FakeKinesis, after: ShardPosition, *outcomes: Exception | int) -> None:
        self._outcomes = list(outcomes)
        self._after = after
        self.began: list[ShardPosition] = []
        self.losses: list[Loss] = []
        self.inquiry = ShardInquiry(
            kinesis,
            "s",
            "late",
            created_millis=None,
            patience=lambda: timedelta(seconds=30),
            tell=lambda loss, _: self.losses.append(loss),
        )

    async def _attempt(self, begin: ShardPosition) -> AsyncGenerator[int, None]:
        self.began.append(begin)
        while self._outcomes:
            match self._outcomes.pop(0):
                case int(number):
                    yield number
                case error:
                    raise error

    async def read(self) -> list[int]:
        return [one async for one in self.inquiry.read(self._attempt, self._after, lambda: self._after)]


def recent(kinesis: FakeKinesis) -> ShardPosition:
    return ShardPosition.at_timestamp(kinesis.service_millis() - 1_000)


async def test_shard_that_is_not_listed_is_asked_for_a_few_times(kinesis: FakeKinesis) -> None:
    """It may be listed late. Without a record that proves that it existed, it is an error in the end, not a loss."""
    position = recent(kinesis)
    reading = Reading(kinesis, position, *[GONE] * (REFUSALS + 1))
    with pytest.raises(RecordPublisherFatalError) as caught:
        await reading.read()
    assert caught.value is GONE
    assert reading.began == [position] * (REFUSALS + 1)
    assert not reading.losses


async def test_refusals_are_counted_from_the_last_answer(kinesis: FakeKinesis) -> None:
    """Each answer proves its position."""
    refusals = [GONE] * REFUSALS
    reading = Reading(kinesis, recent(kinesis), *refusals, 1, *refusals, 2, *refusals)
    assert await reading.read() == [1, 2]


async def test_shard_that_was_read_and_stays_away_is_lost_at_the_last_try(kinesis: FakeKinesis) -> None:
    """It had a record, so it was listed once. The loss is reported once, and ends the reading."""
    position = replace(ShardPosition.after("500"), arrived_millis=kinesis.service_millis() - 1_000)
    reading = Reading(kinesis, position, *[GONE] * REFUSALS, 1)
    assert await reading.read() == []
    assert [loss.is_lost for loss in reading.losses] == [True]
    assert reading.inquiry.gone is reading.losses[0]


async def test_loss_is_reported_once_and_reading_continues_with_the_oldest_record(kinesis: FakeKinesis) -> None:
    """Refusals before the next record are part of the same gap."""
    kinesis.create_stream("s", 2)
    position = replace(ShardPosition.after("500"), arrived_millis=0, record="500")
    kinesis.pass_day()
    shard_id = next(shard for _, shard in kinesis.shards)
    kinesis.put("s", shard_id)
    kinesis.shards["s", "late"] = kinesis.shards["s", shard_id]
    reading = Reading(kinesis, position, REFUSED, 1)
    assert await reading.read() == [1]
    assert reading.began == [position, ShardPosition.trim_horizon()]
    assert len(reading.losses) == 1
    assert reading.inquiry.gone is None


async def test_position_that_cannot_be_refused_is_tried_once(kinesis: FakeKinesis) -> None:
    """It was chosen in place of one that was refused."""
    position = replace(ShardPosition.after("500"), arrived_millis=kinesis.service_millis() - 1_000)
    reading = Reading(kinesis, position, REFUSED, REFUSED)
    with pytest.raises(RecordPublisherFatalError) as caught:
        await reading.read()
    assert caught.value is REFUSED
    assert [one.type.value for one in reading.began] == ["AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP"]


async def test_error_that_is_not_about_the_position_is_raised_at_once(kinesis: FakeKinesis) -> None:
    """Missing permissions say nothing about the position."""
    reading = Reading(kinesis, recent(kinesis), DENIED)
    with pytest.raises(RecordPublisherFatalError) as caught:
        await reading.read()
    assert caught.value is DENIED
    assert len(reading.began) == 1
