"""What a registry may conclude from what it saw."""

from dataclasses import replace
from typing import Any

from registry_homes import Home

from penstock.registration import (
    ConsumerRecord,
    Holding,
    LeaseSettings,
    LeaseStore,
    LocalConsumerRegistry,
    StreamConsumerRegistrar,
)
from penstock.registration._lease.watch import Sight, Standing, Watch
from penstock.registration.testing import FakeKinesis, InMemoryLeaseStore, ManualClock

HOLDING = Holding(job_id="job", fencing_token=1, acquired_at=0.0, renewed_at=0.0, time_to_live_seconds=30.0)
RECORD = ConsumerRecord(stream_arn="arn:any", consumer_name="any", created_at=0.0, version=5, holding=HOLDING)


def look(watch: Watch, at: float, record: ConsumerRecord = RECORD, *, answered_at: float | None = None) -> float:
    now = at if answered_at is None else answered_at
    gap = watch.heard(at, now)
    watch.saw(record, at, now)
    return gap


def looks(watch: Watch, begin: int, end: int, record: ConsumerRecord = RECORD) -> Sight:
    for at in range(begin, end + 1, 5):
        look(watch, float(at), record)
    return watch.sight(record)


def test_a_lease_is_over_when_it_was_seen_unchanged_for_its_life_and_the_grace_period() -> None:
    """The time counts from the first look."""
    watch = Watch(10.0)
    assert looks(watch, 100, 135).standing is Standing.UNPROVED
    assert watch.sight(RECORD).remaining_seconds == 5.0
    assert looks(watch, 140, 140).standing is Standing.OVER


def test_a_lease_that_moves_lives() -> None:
    """Whichever registry changed it, and whatever its times are: its full time to live starts again."""
    watch = Watch(10.0)
    looks(watch, 100, 135)
    sight = looks(watch, 140, 140, replace(RECORD, version=6))
    assert (sight.standing, sight.remaining_seconds) == (Standing.LIVE, 40.0)


def test_a_registry_that_was_away_begins_again() -> None:
    """After a pause, a suspended machine, or a store that did not answer, heartbeats may be missing."""
    watch = Watch(10.0)
    looks(watch, 100, 130)
    assert look(watch, 145.0) == 15.0
    assert watch.sight(RECORD).remaining_seconds == 40.0
    assert looks(watch, 150, 180).standing is Standing.UNPROVED
    assert looks(watch, 185, 185).standing is Standing.OVER


def test_a_late_answer_shows_the_state_at_the_time_of_the_question() -> None:
    """Neither does the first one prove anything about the time of its way, nor the last."""
    watch = Watch(0.0)
    look(watch, 100.0, answered_at=105.0)
    looks(watch, 110, 130)
    look(watch, 134.0, answered_at=139.0)
    assert watch.sight(RECORD).standing is Standing.UNPROVED
    look(watch, 139.0)
    assert watch.sight(RECORD).standing is Standing.OVER


class MadeAgain:
    """A table of leases that was deleted and made again behind the backs of those who use it."""

    def __init__(self) -> None:
        self.store: LeaseStore = InMemoryLeaseStore()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


async def test_a_dead_lease_ends_in_a_store_that_was_made_again() -> None:
    """Its versions start again, below the versions that the registry saw."""
    kinesis, clock, store = FakeKinesis(), ManualClock(), MadeAgain()

    def open_registry() -> Home:
        registrar = StreamConsumerRegistrar(kinesis, sleep=clock.sleep, clock=clock)
        settings = LeaseSettings()
        registry = LocalConsumerRegistry(registrar, store, settings=settings, clock=clock, sleep=clock.sleep)
        return Home(registry, registry, kinesis, clock, store)

    watching, other = open_registry(), open_registry()
    for _ in range(9):
        before = await watching.acquire("before")
    store.store = InMemoryLeaseStore()
    kinesis.delete_outside("flights", "delays")
    dead = await other.acquire("dead")
    life = before.time_to_live_seconds + LeaseSettings().grace_period.total_seconds()
    assert await watching.watch(life - 1) == []
    assert await watching.watch(10) == [(dead.stream_arn, "delays")]


def test_a_sign_of_life_from_before_an_absence_is_old() -> None:
    """It does not cause a refusal."""
    watch = Watch(0.0)
    look(watch, 100.0)
    newer = replace(RECORD, version=6)
    look(watch, 105.0, newer)
    assert watch.sight(newer).standing is Standing.LIVE
    look(watch, 1000.0, newer)
    assert watch.sight(newer).standing is Standing.UNPROVED


def test_a_consumer_that_was_given_back_has_its_grace_period_from_the_first_look() -> None:
    """By this registry's clock; without one it is due at once."""
    idle = replace(RECORD, holding=None, idle_since=-1e9)
    watch, hasty = Watch(10.0), Watch(0.0)
    for each in (watch, hasty):
        look(each, 100.0, idle, answered_at=101.0)
        assert each.is_over(idle)
    assert (watch.is_due(idle), hasty.is_due(idle)) == (False, True)
    look(watch, 111.0, idle)
    assert watch.is_due(idle)
