"""What a shard is doing and how far it is behind: the table of transitions, the lag, and the warnings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer import ShardCondition, ShardSign, ShardState
from penstock.efo_consumer._publish.condition import (
    STALLED_SECONDS,
    TRANSITIONS,
    ConditionTracker,
    ShardAlarms,
    WatchedShard,
)

HOUR = 3_600_000
NOON = 1_767_268_800_000
"""The service's time when the tests begin: 2026-01-01T12:00:00Z."""

LEADS_TO = {
    ShardSign.BEHIND: ShardState.READING,
    ShardSign.AT_TIP: ShardState.CAUGHT_UP,
    ShardSign.THROTTLED: ShardState.THROTTLED,
    ShardSign.REFUSED: ShardState.REFUSED,
    ShardSign.SUBSCRIPTION_ENDED: ShardState.RESUBSCRIBING,
    ShardSign.NO_ROOM: ShardState.STARVED,
    ShardSign.AHEAD: ShardState.HELD_BACK,
    ShardSign.STUCK: ShardState.STUCK,
    ShardSign.END: ShardState.ENDED,
}


class Shard:
    """A tracker and its clocks."""

    def __init__(self, known_millis: int | None = None) -> None:
        self.now = 1000.0
        self.tracker = ConditionTracker(self.now, self.service_millis, known_millis)

    @property
    def service_millis(self) -> int:
        return NOON + int((self.now - 1000.0) * 1000)

    @property
    def behind(self) -> int | None:
        return self.tracker.millis_behind(self.now, self.service_millis)

    def note(self, sign: ShardSign, cause: str = "") -> None:
        self.tracker.note(sign, cause, self.service_millis)

    def answered(
        self, behind: int | None, *, came_on: bool = True, is_guess: bool = False, is_closed: bool = False
    ) -> None:
        self.tracker.answered(
            behind, self.now, self.service_millis, came_on=came_on, is_guess=is_guess, is_closed=is_closed
        )

    def watched(self, retention_millis: int | None = None) -> WatchedShard:
        tracker = self.tracker
        return WatchedShard(
            "orders",
            "shard-0",
            tracker.condition_at(self.now),
            tracker.stalled_seconds(self.now),
            self.behind,
            retention_millis,
        )


@pytest.mark.parametrize("state", ShardState)
@pytest.mark.parametrize("sign", ShardSign)
def test_every_sign_leads_somewhere_from_every_state(sign: ShardSign, state: ShardState) -> None:
    """The newest sign decides; room ends only what full buffers caused, and nothing follows the end."""
    if state is ShardState.ENDED:
        expected = ShardState.ENDED
    elif sign is ShardSign.ROOM:
        expected = ShardState.READING if state in (ShardState.STARVED, ShardState.HELD_BACK) else state
    else:
        expected = LEADS_TO[sign]
    assert TRANSITIONS[sign][state] is expected
    shard = Shard()
    shard.tracker.condition = ShardCondition(state, 1, "before")
    shard.now += 7
    shard.note(sign, "why")
    found = shard.tracker.condition
    assert found.state is expected
    assert found.since_millis == (1 if expected is state else NOON + 7000)
    assert found.cause == ("before" if sign is ShardSign.ROOM and expected is state else "why")


def test_a_condition_says_since_when_and_why() -> None:
    """A state that lasts keeps its beginning, whatever its newest cause."""
    shard = Shard()
    shard.note(ShardSign.THROTTLED, "one")
    shard.now += 5
    shard.note(ShardSign.THROTTLED, "Rate exceeded")
    assert str(shard.tracker.condition) == "throttled since 2026-01-01T12:00:00Z: Rate exceeded"
    shard.answered(0)
    assert str(shard.tracker.condition) == "caught up"


@pytest.mark.parametrize("sign", [one for one in ShardSign if one not in (ShardSign.AT_TIP, ShardSign.END)])
def test_the_lag_grows_from_the_last_proof_whatever_happens(sign: ShardSign) -> None:
    """By the time since the answer that was at the tip; nothing that is not an answer sets it back."""
    shard = Shard()
    shard.answered(0)
    assert shard.behind == 0
    shard.now += 3
    shard.note(sign)
    # Room alone says nothing about a shard that did not starve: its next answer is not overdue yet.
    assert shard.behind == (0 if sign is ShardSign.ROOM else 3000)
    shard.now += 60
    assert shard.behind == 63_000
    shard.answered(0)
    assert shard.behind == 0


def test_a_tip_may_be_a_guess() -> None:
    """Until an answer is not at the tip. The state lasts while only that changes."""
    shard = Shard()
    shard.answered(0, is_guess=True)
    assert (shard.tracker.condition.state, shard.tracker.condition.is_guess) == (ShardState.CAUGHT_UP, True)
    shard.now += 5
    shard.answered(0)
    assert shard.tracker.condition == ShardCondition(ShardState.CAUGHT_UP, NOON)
    shard.answered(7, is_guess=True)
    assert not shard.tracker.condition.is_guess


def test_what_was_behind_grows_older_until_an_answer_says_otherwise() -> None:
    """An answer without a lag proves nothing, and does not change what was known."""
    shard = Shard()
    shard.answered(None)
    assert shard.behind is None
    shard.answered(5000)
    shard.now += 10
    assert shard.behind == 15_000
    shard.answered(None)
    assert [shard.behind, shard.tracker.condition.state] == [15_000, ShardState.READING]
    shard.answered(0)
    shard.now += 1
    shard.answered(None)
    assert shard.behind == 1000
    shard.note(ShardSign.END)
    assert shard.behind == 0


def test_before_the_first_answer_the_position_is_all_that_is_known() -> None:
    """A shard that fails from the beginning is behind since its position was known to be complete."""
    shard = Shard(known_millis=NOON - HOUR)
    assert shard.behind is None
    shard.note(ShardSign.REFUSED, "no")
    shard.now += 1
    assert shard.behind == HOUR + 1000
    unknown = Shard()
    unknown.note(ShardSign.REFUSED, "no")
    assert unknown.behind is None


# An answer brings AT_TIP.
SIGNS = st.sampled_from([one for one in ShardSign if one not in (ShardSign.END, ShardSign.AT_TIP)])
STEPS = st.lists(st.tuples(st.floats(0, 100), st.one_of(SIGNS, st.none(), st.integers(0, 10_000))), max_size=30)


@given(STEPS)
def test_the_lag_never_reads_less_than_what_was_proved(steps: list[tuple[float, ShardSign | int | None]]) -> None:
    """Whatever comes in whatever order: it is 0 only while an answer at the tip is fresh and nothing happened since."""
    shard = Shard()
    told: tuple[int, float] | None = None
    quiet = False
    for seconds, step in steps:
        shard.now += seconds
        if isinstance(step, ShardSign):
            shard.note(step)
            quiet = quiet and step is ShardSign.ROOM
        else:
            shard.answered(step)
            told = told if step is None else (step, shard.now)
            quiet = step == 0
        if told is None:
            assert shard.behind is None
        elif not quiet:
            assert shard.behind == told[0] + int((shard.now - told[1]) * 1000)


def test_a_shard_that_makes_no_progress_is_told_once_and_once_more_when_it_comes_on() -> None:
    """After 30 s without progress while it is not caught up; answers that lead nowhere are none."""
    shard, alarms = Shard(), ShardAlarms()
    shard.answered(500)
    shard.now += STALLED_SECONDS - 1
    shard.note(ShardSign.THROTTLED, "Rate exceeded")
    assert alarms.look([shard.watched()]) == []
    shard.now += 1
    (message,) = alarms.look([shard.watched()])
    assert message == (
        "orders/shard-0: no progress for 30 s (at most 30 s behind): "
        "throttled since 2026-01-01T12:00:29Z: Rate exceeded"
    )
    shard.now += 60
    shard.answered(500, came_on=False)
    assert alarms.look([shard.watched()]) == []
    shard.answered(400)
    assert alarms.look([shard.watched()]) == ["orders/shard-0: comes on again, after 90 s; reading"]
    assert alarms.look([shard.watched()]) == []
    shard.now += 40
    assert len(alarms.look([shard.watched()])) == 1


def test_a_shard_that_is_caught_up_or_ended_is_not_stalled() -> None:
    """For as long as answers say so."""
    shard, alarms = Shard(), ShardAlarms()
    for _ in range(20):
        shard.now += 5
        shard.answered(0, came_on=False)
        assert alarms.look([shard.watched()]) == []
    shard.now += STALLED_SECONDS
    assert "no progress for 30 s (at most 30 s behind): refused since" in alarms.look([shard.watched()])[0]
    ended = Shard()
    ended.note(ShardSign.END)
    ended.now += 1000
    assert alarms.look([ended.watched()]) == ["orders/shard-0: comes on again, after 30 s; ended"]


def test_shards_in_the_same_trouble_share_a_line() -> None:
    """An outage of a stream with a thousand shards is one warning."""
    condition = ShardCondition(ShardState.REFUSED, NOON, "no answer")
    shards = [WatchedShard("orders", f"shard-{one}", condition, 31.0, one * 1000) for one in range(1000)]
    alarms = ShardAlarms()
    (message,) = alarms.look(shards)
    assert message == (
        "orders: 1000 shards (shard-0, shard-1, shard-2, …): no progress for 31 s (at most 999 s behind): "
        "refused since 2026-01-01T12:00:00Z: no answer"
    )
    well = ShardCondition(ShardState.CAUGHT_UP)
    (message,) = alarms.look(WatchedShard("orders", one.shard_id, well, 0.0, 0) for one in shards)
    assert message == ("orders: 1000 shards (shard-0, shard-1, shard-2, …): come on again, after 31 s; caught up")


def test_a_lag_near_the_retention_is_told_once_and_once_more_when_it_is_over() -> None:
    """From 80 % of the time for which the stream keeps records; where that is not known nothing is said."""
    alarms = ShardAlarms()

    def look(hours: float, retention_millis: int | None = 24 * HOUR) -> list[str]:
        shard = Shard()
        shard.answered(int(hours * HOUR))
        return alarms.look([shard.watched(retention_millis)])

    assert look(19) == []
    assert look(30, None) == []
    (message,) = look(20)
    assert message.startswith("orders/shard-0: 20.0 h behind, and the stream keeps records for 24 h: what is not read")
    assert look(21) == look(30, None) == []
    (message,) = look(2)
    assert message == "orders/shard-0: 2.0 h behind, no longer near the 24 h of the stream's retention"
    assert look(2) == []
    assert len(look(20)) == 1


@pytest.mark.parametrize("behind", [0, 5000])
def test_a_shard_whose_answers_stay_away_is_not_well(behind: int) -> None:
    """A silent connection fails no call: the time since the last answer shows it."""
    shard = Shard()
    shard.answered(behind)
    well = shard.tracker.condition_at(shard.now)
    shard.now += 29
    assert shard.tracker.condition_at(shard.now) == well
    shard.now += 2
    silent = shard.tracker.condition_at(shard.now)
    assert (silent.state, silent.since_millis) == (ShardState.REFUSED, NOON)
    assert str(silent) == "refused since 2026-01-01T12:00:00Z: no answer has come since then"
    (message,) = ShardAlarms().look([shard.watched()])
    assert "no answer has come since then" in message
    shard.answered(0)
    assert shard.tracker.condition_at(shard.now).state is ShardState.CAUGHT_UP


@pytest.mark.parametrize("behind", [0, 5000])
def test_a_shard_that_is_to_be_read_rarely_is_well_between_two_reads(behind: int) -> None:
    """An answer is overdue once the interval between two reads has passed besides."""
    shard, alarms = Shard(), ShardAlarms()
    shard.tracker.interval_seconds = 120.0
    for _ in range(3):
        shard.answered(behind)
        for _ in range(4):
            shard.now += 30
            assert shard.tracker.condition_at(shard.now) == shard.tracker.condition
            assert alarms.look([shard.watched()]) == []
            assert behind or shard.behind == 0
    shard.now += 31
    assert shard.tracker.condition_at(shard.now).state is ShardState.REFUSED
    (message,) = alarms.look([shard.watched()])
    assert "no progress for 151 s" in message
    assert "no answer has come since then" in message
