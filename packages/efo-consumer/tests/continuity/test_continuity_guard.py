"""What rests on a stream's retention period, which may change: what is asked of Kinesis, when, and what it proves."""

from __future__ import annotations

import asyncio

import pytest
from reader_homes import until

from penstock.aws import AwsServiceError
from penstock.efo_consumer import DataLossError, Shard, ShardPosition
from penstock.efo_consumer._continuity.guard import Loss, ShardGuard
from penstock.efo_consumer._continuity.rule import OldestRecord, StreamFacts
from penstock.efo_consumer._model.positions import after_record
from penstock.efo_consumer.errors import RecordPublisherFatalError

MINUTE = 60_000
HOUR = 60 * MINUTE
NOON = 1_767_268_800_000


class Source:
    """A shard of which the test says what it holds; it counts what it is asked."""

    def __init__(self) -> None:
        self.now = NOON
        self.retention_hours = 48
        self.oldest: OldestRecord | None = OldestRecord(1, NOON - 47 * HOUR)
        self.failures: list[Exception] = []
        self.is_slow = asyncio.Event()
        self.is_slow.set()
        self.looks = 0
        self.fresh = 0

    def service_millis(self) -> int:
        return self.now

    async def stream_facts(self, stream_name: str, *, is_fresh: bool = False) -> StreamFacts:
        facts = StreamFacts(self.retention_hours * HOUR, None)
        self.fresh += is_fresh
        await self.is_slow.wait()
        return facts

    async def oldest_record(self, stream_name: str, shard_id: str) -> OldestRecord | None:
        self.looks += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.oldest

    async def list_shards(self, stream_name: str) -> list[Shard]:
        return []

    def trim_to(self, number: int, hours: float) -> None:
        self.oldest = OldestRecord(number, int(self.now - hours * HOUR))


class Told:
    """Takes losses: raises them, or counts them."""

    def __init__(self, *, fail: bool = True) -> None:
        self.losses: list[tuple[str, ShardPosition]] = []
        self._fail = fail

    def __call__(self, loss: Loss, after: ShardPosition) -> None:
        self.losses.append((loss.reason, after))
        if self._fail:
            raise DataLossError(stream="s", shard_id="0", after=str(after), upto="", reason=loss.reason)


def at(number: int, hours: float, source: Source) -> ShardPosition:
    """After a record that arrived some hours ago."""
    return after_record(str(number), int(source.now - hours * HOUR))


async def watched(source: Source) -> ShardGuard:
    """A guard of a shard that is 30 h behind, and was looked at."""
    guard = ShardGuard(source, "s", "0")
    assert await guard.check(at(10, 30, source)) is None
    assert (source.looks, guard.is_proved) == (1, True)
    source.fresh = 0
    return guard


async def test_a_shard_that_comes_to_be_a_day_behind_while_it_is_read_is_not_looked_at() -> None:
    """Nothing had expired a moment ago: the period of the stream is all that is asked for."""
    source = Source()
    guard = ShardGuard(source, "s", "0")
    assert await guard.check(at(10, 23.99, source)) is None
    assert guard.is_proved
    source.now += MINUTE // 2
    assert await guard.check(at(11, 24, source)) is None
    assert (source.looks, source.fresh, guard.is_proved) == (0, 0, False)
    await guard.prove(Told())
    assert (source.looks, source.fresh, guard.is_proved) == (0, 1, True)
    await guard.prove(Told())
    assert source.fresh == 1


async def test_a_shard_that_stood_still_is_looked_at_again() -> None:
    """The period may have been shorter meanwhile: it says now what it said before."""
    source = Source()
    guard = await watched(source)
    source.now += MINUTE
    source.trim_to(12, 29)
    loss = await guard.check(at(11, 30, source))
    assert loss is not None
    assert "for a shorter time meanwhile" in loss.reason


async def test_a_period_that_is_lowered_and_raised_before_anybody_asks_for_proof_proves_nothing() -> None:
    """Buffers may be full for an hour: what was judged before is compared with the oldest record."""
    source = Source()
    guard = await watched(source)
    assert await guard.check(at(11, 30, source)) is None
    source.now += HOUR
    source.trim_to(12, 29)
    told = Told()
    with pytest.raises(DataLossError):
        await guard.prove(told)


async def test_of_several_judgements_the_first_position_is_named_and_the_oldest_counts() -> None:
    """Records after the first may be missing, though it was the second that was too old."""
    source = Source()
    guard = await watched(source)
    first = at(11, 30, source)
    for position in (first, at(12, 31, source), at(13, 29, source)):
        assert await guard.check(position) is None
    source.retention_hours = 31
    source.trim_to(14, 28)
    told = Told(fail=False)
    await guard.prove(told)
    ((reason, after),) = told.losses
    assert after == first
    assert "31.0 h have passed" in reason
    assert guard.is_proved


async def test_a_loss_that_was_not_passed_over_is_found_again() -> None:
    """By whoever opens the session again, whose buffers have the hole."""
    source = Source()
    guard = await watched(source)
    assert await guard.check(at(11, 30, source)) is None
    source.retention_hours = 24
    source.trim_to(12, 23)
    for _ in range(2):
        with pytest.raises(DataLossError):
            await guard.prove(Told())
        assert not guard.is_proved
    passed = Told(fail=False)
    await guard.prove(passed)
    assert len(passed.losses) == 1
    assert guard.is_proved


async def test_a_proof_that_fails_is_asked_for_again_with_what_came_meanwhile() -> None:
    """A look that fails proves nothing."""
    source = Source()
    guard = await watched(source)
    assert await guard.check(at(11, 30, source)) is None
    source.retention_hours = 24
    source.failures = [AwsServiceError(code="InternalFailure", message="", status=500, operation="GetRecords")]
    with pytest.raises(AwsServiceError):
        await guard.prove(Told())
    assert not guard.is_proved
    await guard.prove(Told())
    assert (source.looks, guard.is_proved) == (3, True)


async def test_whoever_asks_while_another_proves_waits_for_the_outcome() -> None:
    """Two tasks read the buffer of one shard: neither hands it on before it is proved."""
    source = Source()
    guard = await watched(source)
    assert await guard.check(at(11, 30, source)) is None
    source.is_slow.clear()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        proofs = [tasks.create_task(guard.prove(Told())) for _ in range(2)]
        await until(lambda: source.fresh > 0)
        assert not guard.is_proved
        assert not any(proof.done() for proof in proofs)
        source.is_slow.set()
    assert source.fresh == 1
    assert guard.is_proved


async def test_what_is_judged_while_a_proof_is_under_way_waits_for_the_next_one() -> None:
    """The answer may be from before."""
    source = Source()
    guard = await watched(source)
    assert await guard.check(at(11, 30, source)) is None
    source.is_slow.clear()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        tasks.create_task(guard.prove(Told()))
        await until(lambda: source.fresh > 0)
        late = tasks.create_task(guard.check(at(12, 29, source)))
        await asyncio.sleep(0)
        source.is_slow.set()
    assert late.result() is None
    assert not guard.is_proved


async def test_a_shard_that_expires_before_the_proof_is_a_loss() -> None:
    """Nothing shows any more whether it had expired before it was read; other failures are raised unchanged."""
    source = Source()
    guard = await watched(source)
    assert await guard.check(at(11, 30, source)) is None
    source.retention_hours = 24
    missing, refused = (
        RecordPublisherFatalError("no", stream="s", shard_id="0", code=code, resource="shard")
        for code in ("ResourceNotFoundException", "AccessDeniedException")
    )
    source.failures = [refused, missing]
    with pytest.raises(RecordPublisherFatalError):
        await guard.prove(Told())
    with pytest.raises(DataLossError, match="the shard is gone"):
        await guard.prove(Told())


async def test_an_idle_shard_of_which_nothing_is_left_to_compare_is_told_and_passed() -> None:
    """Its last record has expired by the period of the stream: a warning, and the period is asked for once more."""
    source = Source()
    source.trim_to(12, 29)
    guard = ShardGuard(source, "s", "0")
    after = ShardPosition.at_timestamp(source.now - 30 * HOUR)
    assert await guard.check(after) is None
    assert not guard.is_proved
    source.retention_hours = 24
    with pytest.raises(DataLossError, match="keeps records for 24 h"):
        await guard.prove(Told())
