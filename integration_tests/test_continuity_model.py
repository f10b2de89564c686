"""Random histories of a stream, its readers and its callers: every record comes exactly once, or a loss is named.

`hatch run prove continuity --minutes 60` tries new ones for an hour, and `--self-check` has them find each break of the
rule. Here each break meets a short history that shows it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from integration_tests.continuity_model import HOUR, ContinuityMachine, ViolationError, machine, try_machine
from penstock.efo_consumer import RecordPublisherType
from tools.prove.continuity_breaks import BREAKS


@pytest.mark.parametrize("profile", ["kind", "hostile"])
def test_every_record_is_delivered_once_or_a_loss_is_named(profile: str) -> None:
    """Through expiry, idle days, reshards, recreated streams and killed readers, by every way of reading."""
    tried = machine(profile)
    error = try_machine(tried, seed=1, examples=3, steps=15)
    told = "\n".join(tried.failures[0]) if tried.failures else ""
    assert error is None, f"{told}\n{type(error).__name__}: {error}"
    assert tried.counts["rows"]


def expires_unread(history: ContinuityMachine) -> None:
    """A record arrives and expires while no reader reads."""
    history.catch_up()
    history.die()
    history.put_over_time([0], 25 * HOUR)
    history.catch_up()


def begins_expired(history: ContinuityMachine) -> None:
    """A range that began at TRIM_HORIZON is read again when its first records are gone."""
    # With all of its records at once, in one batch.
    history.die()
    history.wait(13 * HOUR)
    history.put(0, 1)
    history.catch_up()
    history.wait(13 * HOUR)
    history.die()
    history.rerun(0, alone=False)


def ends_expired(history: ContinuityMachine) -> None:
    """Ranges are read again when all of their records are gone."""
    history.catch_up()
    history.put(0, 2)
    history.catch_up()
    history.wait(25 * HOUR)
    for index in range(4):
        history.rerun(index, alone=True)


def is_made_again(history: ContinuityMachine) -> None:
    """The stream is another one when the next reader comes."""
    history.catch_up()
    history.die()
    history.recreate(1, 0)
    history.put(0, 9)
    history.catch_up()


def child_expires_unread(history: ContinuityMachine) -> None:
    """A shard ends, and the records of its children expire before anybody reads them."""
    history.catch_up()
    history.reshard(0, merges=False)
    history.step(0, 0.6, 0.0, runs=True)
    history.die()
    history.put_over_time([0, 1], 25 * HOUR)
    history.catch_up()


def is_gone_with_its_shard(history: ContinuityMachine) -> None:
    """A range that began at TRIM_HORIZON is read again when its shard is gone."""
    history.catch_up()
    history.reshard(0, merges=False)
    history.follow_idle(7)
    history.rerun(0, alone=False)


def is_throttled_behind_another(history: ContinuityMachine) -> None:
    """A shard has an older record than its sibling, and is throttled when the reader comes back."""
    history.catch_up()
    history.reshard(0, merges=False)
    history.catch_up()
    history.die()
    history.put(0, 1)
    history.wait(HOUR)
    history.put(1, 1)
    history.throttle(0, 3)
    history.catch_up()


def has_aggregates_after_splits(history: ContinuityMachine) -> None:
    """A shard is split, and a child of it as well; aggregates with keys of any shard come to each of the shards."""
    history.catch_up()
    for _ in range(2):
        history.reshard(0, merges=False)
    for index in (0, 2, 4):
        history.put_aggregate(index, 6, faulty=True, runs=False)
    history.catch_up()
    history.die()
    history.rerun(0, alone=True)


SHOWN_BY: dict[str, tuple[str, Callable[[ContinuityMachine], None]]] = {
    "no time is compared": ("kind", expires_unread),
    "the oldest record is not compared": ("hostile", expires_unread),
    "a range's first record is not logged": ("kind", begins_expired),
    "a range's last record is not missed": ("hostile", ends_expired),
    "creation times are not compared": ("hostile", is_made_again),
    "children know nothing of their parents": ("kind", child_expires_unread),
    "what is lost is not told": ("hostile", expires_unread),
    "shards do not wait for slower ones": ("kind", is_throttled_behind_another),
    "user records of a sibling are delivered": ("kind", has_aggregates_after_splits),
    "user records outside of their shard are dropped": ("kind", has_aggregates_after_splits),
    "a faulty user record is dropped": ("kind", has_aggregates_after_splits),
}


def run(profile: str, history: Callable[[ContinuityMachine], None]) -> None:
    model = machine(profile)()
    try:
        model.begin(1, 1, [(True, "TRIM_HORIZON")] * 3, "local", RecordPublisherType.POLLING, tiny=False, retention=24)
        history(model)
    finally:
        model.teardown()


@pytest.mark.parametrize(("profile", "history"), [*dict.fromkeys(SHOWN_BY.values()), ("kind", is_gone_with_its_shard)])
def test_random_histories_keep_the_rule(profile: str, history: Callable[[ContinuityMachine], None]) -> None:
    """What breaks show below is not a fault of the model."""
    run(profile, history)


# A changed retention is tried by test_reader_retention; the proof's self-check looks for histories that show it here.
@pytest.mark.parametrize("name", list(SHOWN_BY))
def test_model_finds_a_rule_that_is_broken_at_one_point(name: str) -> None:
    """Each single comparison that the rule rests on is missed when it is gone."""
    profile, history = SHOWN_BY[name]
    with BREAKS[name](), pytest.raises(ViolationError):
        run(profile, history)
