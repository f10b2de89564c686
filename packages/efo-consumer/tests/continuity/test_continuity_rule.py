"""The rule of continuity against histories of a shard: what is lost is never called continuous."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer import ShardPosition
from penstock.efo_consumer._continuity.rule import (
    CLOCK_MARGIN_MILLIS,
    OldestRecord,
    Verdict,
    judge,
    judge_oldest,
    restart,
)
from penstock.efo_consumer._model.positions import after_record

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 100 * DAY
AGES = st.floats(0, 80) | st.floats(23.99, 24.01)


def record(age_hours: float) -> int:
    """When a record of that age arrived; sequence numbers are that time, so they grow as arrivals do."""
    return NOW - int(age_hours * HOUR)


@given(
    ages=st.lists(AGES, min_size=1, max_size=8, unique=True).map(lambda ages: sorted(ages, reverse=True)),
    at=st.integers(0, 7),
    seen_idle=st.none() | AGES,
    retention=st.sampled_from([DAY, 2 * DAY]),
    jitter=st.lists(st.integers(-1000, 0), min_size=8, max_size=8),
    trimmed_late=st.integers(0, HOUR),
)
def test_what_is_lost_is_never_continuous(
    ages: list[float], at: int, seen_idle: float | None, retention: int, jitter: list[int], trimmed_late: int
) -> None:
    """Whatever was written when, wherever reading stands, with arrival times that go back by up to a second."""
    arrivals = [record(age) for age in ages]
    at %= len(arrivals)
    position = after_record(str(arrivals[at]), arrivals[at] + jitter[at])
    beyond = arrivals[at + 1 :]
    if seen_idle is not None:
        idle_at = min(max(arrivals[at], record(seen_idle)), beyond[0] - 1 if beyond else NOW)
        position = replace(position, caught_up_millis=idle_at)
    kept = [(time, n) for n, time in enumerate(arrivals) if time > NOW - retention - trimmed_late]
    oldest = OldestRecord(kept[0][0], kept[0][0] + jitter[kept[0][1]]) if kept else None
    is_lost = any(time <= NOW - retention - trimmed_late for time in beyond)
    verdict = judge(position, NOW, retention)
    if verdict is Verdict.LOOK:
        verdict = judge_oldest(position, oldest)
    if is_lost:
        assert verdict is Verdict.LOST
    known = position.known_millis or 0
    if NOW - known < retention - CLOCK_MARGIN_MILLIS or (kept and kept[0][0] <= arrivals[at]):
        assert verdict is Verdict.CONTINUOUS


@pytest.mark.parametrize(
    ("position", "verdict"),
    [
        (ShardPosition.trim_horizon(), Verdict.CONTINUOUS),
        (ShardPosition.after("7"), Verdict.LOOK),
        (ShardPosition.at_timestamp(NOW - DAY), Verdict.LOOK),
        (ShardPosition.at_timestamp(NOW - DAY + CLOCK_MARGIN_MILLIS + 1), Verdict.CONTINUOUS),
        (replace(ShardPosition.trim_horizon(), caught_up_millis=NOW - DAY), Verdict.LOOK),
    ],
)
def test_a_position_is_judged_by_what_is_known_of_it(position: ShardPosition, verdict: Verdict) -> None:
    assert judge(position, NOW) is verdict


def test_reading_begins_again_before_all_that_was_not_delivered() -> None:
    assert restart(after_record("7", NOW)) == ShardPosition.at_timestamp(NOW - 10_000)
    assert restart(ShardPosition.after("7")) == ShardPosition.trim_horizon()
