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


def test_all_checks_pass_on_correct_evidence() -> None:
    """A gateway may write duplicates, and a consumer without a holder may be deregistered."""
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
def test_each_violation_fails_its_check(check: str, broken: dict[str, object]) -> None:
    """And by no other."""
    evidence = whole()
    for name, value in broken.items():
        setattr(evidence, name, value)
    assert failing(evidence) == [check]
