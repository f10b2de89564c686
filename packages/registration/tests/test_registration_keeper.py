"""Heartbeats in the background."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from registry_homes import Unasked

from penstock.registration import AcquireRequest, ConflictPolicy, Heartbeat, Lease, LeaseKeeper
from penstock.registration._keeper import KeptLease
from penstock.registration.errors import (
    ConsumerDeregisteredError,
    ConsumerHeldError,
    LeaseLostError,
    RegistrationError,
    RegistryUnavailableError,
)
from penstock.registration.testing import ManualClock

LEASE = Lease(
    stream_name="flights",
    consumer_name="delays",
    job_id="job",
    consumer_arn="arn",
    fencing_token=3,
    time_to_live_seconds=30.0,
    registration_is_ours=True,
)


class ScriptedRegistry(Unasked):
    """Answers heartbeats from a list, then no more."""

    def __init__(self, clock: ManualClock, *answers: Heartbeat | Exception) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.asked_at: list[float] = []

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        self.asked_at.append(self.clock() - 1000)
        answer = self.answers.pop(0) if self.answers else RegistryUnavailableError(where="it", reason="away")
        if isinstance(answer, Exception):
            raise answer
        return answer


HELD = Heartbeat(held=True, time_to_live_seconds=30.0)
LOST = Heartbeat(held=False, time_to_live_seconds=0.0)
DENIED = RegistrationError.of("REGISTRATION_DENIED", operation="RegisterStreamConsumer", reason="AccessDenied")
AWAY = RegistryUnavailableError(where="it", reason="away")


def fail(what: object) -> None:
    pytest.fail(str(what))


async def run_until_lost(
    *answers: Heartbeat | Exception, patience_seconds: float = 600.0
) -> tuple[ScriptedRegistry, LeaseLostError, float]:
    clock = ManualClock(1000.0)
    registry = ScriptedRegistry(clock, *answers)
    lost: asyncio.Future[LeaseLostError] = asyncio.get_running_loop().create_future()
    async with LeaseKeeper(registry, patience_seconds=patience_seconds, clock=clock, sleep=clock.sleep) as keeper:
        keeper.keep(LEASE, lost.set_result)
        error = await asyncio.wait_for(lost, 10)
    return registry, error, clock() - 1000


async def test_heartbeats_come_three_times_in_a_life() -> None:
    """Every ten seconds of thirty, until the registry says no."""
    registry, error, _ = await run_until_lost(HELD, HELD, HELD, LOST)
    assert registry.asked_at == [10, 20, 30, 40]
    assert (error.stream_name, error.consumer_name, error.fencing_token) == ("flights", "delays", 3)
    assert "another job" in error.reason


async def test_a_registry_that_is_away_for_a_while_costs_nothing() -> None:
    """Heartbeats without an answer are sent again soon, and the first answer sets everything right."""
    registry, _, _ = await run_until_lost(AWAY, AWAY, HELD, LOST)
    assert registry.asked_at == [10, 12.5, 15, 25]


async def test_a_registry_that_is_away_for_longer_than_a_lease_lives_is_asked_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only it knows whether another job has the consumer: if no job has, the job continues as before."""
    _, error, ended_after = await run_until_lost(*[AWAY] * 40, HELD, LOST)
    assert ended_after > 100
    assert "another job" in error.reason
    doubts = [record.getMessage() for record in caplog.records if "only the registry knows" in record.getMessage()]
    assert len(doubts) == 1
    assert "the lease on delays of flights is held still" in caplog.text


async def test_a_job_that_stood_still_for_longer_than_its_lease_lives_asks_before_it_gives_up() -> None:
    """A frozen process keeps its lease if no other job took it."""
    clock = ManualClock(1000.0)
    registry = ScriptedRegistry(clock, HELD, LOST)
    lost: asyncio.Future[LeaseLostError] = asyncio.get_running_loop().create_future()

    async def sleep(seconds: float) -> None:
        # The first ten seconds of sleep take an hour.
        await clock.sleep(3600 if clock() == 1000 else seconds)

    async with LeaseKeeper(registry, clock=clock, sleep=sleep) as keeper:
        keeper.keep(LEASE, lost.set_result)
        error = await asyncio.wait_for(lost, 10)
    assert registry.asked_at == [3600, 3610]
    assert "another job" in error.reason


async def test_a_registry_that_stays_away_ends_the_lease_after_the_patience() -> None:
    """And not before the lease itself would have ended."""
    for patience, expected in ((100.0, 120), (0.0, 40)):
        registry, error, ended_after = await run_until_lost(HELD, patience_seconds=patience)
        assert ended_after == expected
        assert registry.asked_at[-1] == expected
        assert "no heartbeat was answered for" in error.reason


async def test_an_unanswered_heartbeat_ends_in_time_for_another() -> None:
    """A third of the lease's life: whatever hangs, the next try goes another way."""
    kept = KeptLease.given(30.0, sent_at=100.0)
    assert kept.patience_seconds(110.0) == 10.0
    assert kept.missed(120.0).next_heartbeat_at == 122.5
    assert kept.patience_seconds(122.5) == 7.5


async def test_time_counts_from_before_the_acquire_was_sent() -> None:
    """The registry counts from later: it does not give away what the holder still believes in."""
    clock = ManualClock(1000.0)
    registry = ScriptedRegistry(clock)
    lost: asyncio.Future[LeaseLostError] = asyncio.get_running_loop().create_future()
    async with LeaseKeeper(registry, patience_seconds=0.0, clock=clock, sleep=clock.sleep) as keeper:
        keeper.keep(LEASE, lost.set_result, acquired_at=clock() - 8)
        await asyncio.wait_for(lost, 10)
    assert clock() - 1000 == 22


REQUEST = AcquireRequest(stream_name="flights", consumer_name="delays", job_id="job")


class TakingBack(ScriptedRegistry):
    """Its heartbeats are lost as the script says; acquires are answered from a second list."""

    def __init__(
        self, clock: ManualClock, heartbeats: Sequence[Heartbeat | Exception], acquires: Sequence[Lease | Exception]
    ) -> None:
        super().__init__(clock, *heartbeats)
        self.acquires = list(acquires)
        self.requests: list[AcquireRequest] = []

    async def acquire(self, request: AcquireRequest) -> Lease:
        self.requests.append(request)
        answer = self.acquires.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def take_back(
    heartbeats: Sequence[Heartbeat | Exception], acquires: Sequence[Lease | Exception]
) -> tuple[TakingBack, list[Lease], LeaseLostError]:
    """The registry, the leases that the holder got, and the error at the end."""
    clock = ManualClock(1000.0)
    regained: list[Lease] = []
    registry = TakingBack(clock, heartbeats, acquires)
    lost: asyncio.Future[LeaseLostError] = asyncio.get_running_loop().create_future()
    async with LeaseKeeper(registry, patience_seconds=60.0, clock=clock, sleep=clock.sleep) as keeper:
        keeper.keep(LEASE, lost.set_result, request=REQUEST, on_regained=regained.append)
        error = await asyncio.wait_for(lost, 10)
    return registry, regained, error


async def test_a_lease_that_ran_out_is_taken_back_and_kept() -> None:
    """By the same claim, after the earlier token; heartbeats are sent for the new lease."""
    again = replace(LEASE, fencing_token=4, consumer_arn="another")
    held = ConsumerHeldError(
        stream_name="flights", consumer_name="delays", holder_job_id="rival", held_seconds=7, remaining_seconds=20
    )
    registry, regained, error = await take_back([HELD, LOST, HELD, LOST], [again, held])
    assert regained == [again]
    assert [request.after_fencing_token for request in registry.requests] == [3, 4]
    assert {request.conflict_policy for request in registry.requests} == {ConflictPolicy.REFUSE}
    assert {request.claim for request in registry.requests} == {REQUEST.claim}
    assert registry.asked_at == [10, 20, 30, 40]
    assert error.fencing_token == 4
    assert "job 'rival' has held the consumer for 7 s" in str(error)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            LeaseLostError(stream_name="s", consumer_name="c", fencing_token=3, reason="an operator ended it"),
            "operator",
        ),
        (DENIED, "cannot be taken back: [REGISTRATION_DENIED]"),
    ],
)
async def test_what_cannot_be_taken_back_is_lost_with_the_reason(answer: Exception, reason: str) -> None:
    """At once: asking again is of no use."""
    registry, regained, error = await take_back([LOST], [answer])
    assert (regained, len(registry.requests)) == ([], 1)
    assert reason in error.reason


async def test_a_consumer_is_registered_again_three_times_an_hour() -> None:
    """Heartbeats are sent for the new lease. The fourth time is an error; an hour later it works again."""
    clock, never = ManualClock(1000.0), asyncio.Event()
    leases = [replace(LEASE, fencing_token=4 + number, consumer_arn=f"arn {number}") for number in range(5)]
    registry = TakingBack(clock, [], [leases[0], replace(leases[1], consumer_arn="arn 0"), *leases[2:]])

    async with LeaseKeeper(registry, clock=clock, sleep=lambda _: never.wait()) as keeper:
        keeper.keep(LEASE, fail, request=REQUEST, on_regained=fail)
        assert await keeper.register_again(LEASE) == leases[0]
        # It is there, whatever Kinesis had said: that does not count.
        assert (await keeper.register_again(LEASE)).consumer_arn == "arn 0"
        assert await keeper.register_again(leases[0]) == leases[2]
        clock.advance(1800)
        assert await keeper.register_again(leases[2]) == leases[3]
        with pytest.raises(ConsumerDeregisteredError, match="deregistered 4 times within 1800 s") as caught:
            await keeper.register_again(leases[3])
        assert (caught.value.consumer_name, caught.value.times) == ("delays", 4)
        clock.advance(1800)
        assert await keeper.register_again(LEASE) == leases[4]
        assert keeper.drop(LEASE) == leases[4]
    assert [request.after_fencing_token for request in registry.requests] == [3, 4, 5, 6, 7]
