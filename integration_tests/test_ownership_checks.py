"""The checks of `hatch run prove ownership` tell each way in which ownership can break."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from tools.prove import ownership_checks as checks
from tools.prove.ownership_checks import Evidence, Holding, Timeline, judge, table

TTL, GRACE = 10.0, 20.0


def always(*names: str) -> Timeline:
    """Processes that ran all the time."""
    timeline = Timeline()
    for name in names:
        timeline.mark(name, True, 0.0)
    return timeline


def holding(since: float = 0.0, until: float = math.inf) -> Holding:
    """The job's hold on the consumer `c`, through a registry."""
    return Holding(
        consumer="c",
        holder="job",
        needs=("job", "registry"),
        since=since,
        until=until,
        time_to_live=TTL,
        grace=GRACE,
    )


def whole() -> Evidence:
    """A world in which all is well."""
    key = ("shard", "1")
    return Evidence(
        stream=Counter([key]),
        ids=Counter(["a"]),
        rows={"efo": Counter([key])},
        acknowledged=["a"],
        timeline=always("job", "registry"),
        holdings=[holding()],
    )


def failing(evidence: Evidence) -> list[str]:
    """The checks that do not hold."""
    return [one.check for one in judge(evidence) if one.faults]


def test_all_checks_hold_where_all_is_well() -> None:
    """A double is not a fault of a gateway that promises at least once, nor the end of a consumer that nobody has."""
    evidence = replace(whole(), ids=Counter(["a", "a"]), ended=[("other", 50.0)])
    assert failing(evidence) == []
    assert "1 of them written more than once" in table(judge(evidence))


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (f"efo: {checks.RECORDS}", {"rows": {"efo": Counter()}}),
        (f"efo: {checks.RECORDS}", {"rows": {"efo": Counter([("shard", "1"), ("shard", "1")])}}),
        (checks.SAME_ROWS, {"changed": ["efo 1"]}),
        (checks.ACKNOWLEDGED, {"acknowledged": ["a", "b"]}),
        (checks.LIVE, {"ended": [("c", 50.0)]}),
        (checks.RIVALS, {"events": [{"at": 50.1, "what": "let in", "consumer": "c", "asked_at": 50.0}]}),
        (checks.LOST, {"events": [{"at": 50.0, "what": "lost", "consumer": "c", "reason": ""}]}),
        (
            checks.CLAIMS,
            {"events": [{"at": 1.0, "what": "committed", "fingerprint": "f", "location": at} for at in ("x", "y")]},
        ),
        (
            checks.CLAIMERS,
            {
                "timeline": always("claimer", "scheduler"),
                "events": [
                    {"at": 1.0, "what": "computing", "fingerprint": "f", "client": "claimer"},
                    {"at": 9.0, "what": "claim lost", "fingerprint": "f", "client": "claimer"},
                ],
            },
        ),
        (checks.HANDOVERS, {"faults": {checks.HANDOVERS: ["it died"]}}),
        (checks.QUERIES, {"faults": {checks.QUERIES: ["it died"]}}),
        (checks.LEFT, {"left": ["c"]}),
    ],
)
def test_each_break_is_told_by_its_check(check: str, broken: dict[str, object]) -> None:
    """And by no other."""
    evidence = whole()
    for name, value in broken.items():
        setattr(evidence, name, value)
    assert failing(evidence) == [check]


def test_a_consumer_may_be_ended_when_its_holder_was_frozen_for_its_time_to_live_and_grace() -> None:
    """Whether the job or its registry was frozen; not when it ran long enough to renew in between."""
    for name in ("job", "registry"):
        timeline = always("job", "registry")
        timeline.mark(name, False, 100.0)
        timeline.mark(name, True, 135.0)
        evidence = replace(whole(), timeline=timeline)
        assert failing(replace(evidence, ended=[("c", 131.0)])) == []
        assert failing(replace(evidence, ended=[("c", 111.0)])) == [checks.LIVE]
        assert failing(replace(evidence, ended=[("c", 160.0)])) == [checks.LIVE]


def test_a_consumer_may_be_ended_by_a_holder_that_was_told_to_let_it_go() -> None:
    """From then on it is not live."""
    evidence = replace(whole(), holdings=[holding(until=50.0)])
    assert failing(replace(evidence, ended=[("c", 50.1)])) == []
    assert failing(replace(evidence, ended=[("c", 49.9)])) == [checks.LIVE]


def test_a_rival_may_be_let_in_after_a_freeze_and_the_loss_is_explained_by_it() -> None:
    """When the time to live and the grace period are over; not before."""
    timeline = always("job", "registry")
    timeline.mark("job", False, 100.0)
    timeline.mark("job", True, 140.0)
    lost = {"at": 141.0, "what": "lost", "consumer": "c", "reason": ""}
    held = replace(holding(until=141.0), is_lost=True)
    for at, told in ((135.0, []), (115.0, [checks.RIVALS])):
        let_in = {"at": at + 0.1, "what": "let in", "consumer": "c", "asked_at": at}
        assert failing(replace(whole(), timeline=timeline, holdings=[held], events=[let_in, lost])) == told


def test_a_rival_that_is_let_in_beside_a_live_holder_is_told_though_the_holder_hears_of_it_before_the_rival() -> None:
    """The answer to the rival may come after the holder's heartbeat was refused."""
    let_in = {"at": 52.0, "what": "let in", "consumer": "c", "asked_at": 50.0}
    lost = {"at": 51.0, "what": "lost", "consumer": "c", "reason": ""}
    held = replace(holding(until=51.0), is_lost=True)
    assert failing(replace(whole(), holdings=[held], events=[let_in, lost])) == [checks.RIVALS]


def test_the_longest_time_in_which_all_ran_is_found_between_their_pauses() -> None:
    """Pauses of several processes may overlap."""
    timeline = always("a", "b")
    timeline.mark("a", False, 10.0)
    timeline.mark("a", True, 20.0)
    timeline.mark("b", False, 15.0)
    timeline.mark("b", True, 30.0)
    assert timeline.longest(["a", "b"], 0.0, 40.0) == 10.0
    assert timeline.longest(["a", "b"], 12.0, 29.0) == 0.0
    assert timeline.longest(["a"], 12.0, 29.0) == 9.0
    assert timeline.longest(["a", "unknown"], 0.0, 40.0) == 0.0
