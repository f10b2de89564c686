"""What has to be true at the end of `hatch run prove ownership`, decided from what was seen, without I/O."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PROOF_OF_LIFE = 1.2
"""How long a holder has to have run in one go, in times to live, for its heartbeats to have come: three in each."""

Key = tuple[str, str]
"""Shard and sequence number."""


class Timeline:
    """When each process ran, and when it was frozen or gone; in monotonic seconds of the machine."""

    def __init__(self) -> None:
        self._marks: dict[str, list[tuple[float, bool]]] = defaultdict(list)

    def mark(self, name: str, is_running: bool, at: float) -> None:
        """From now on it runs, or does not."""
        self._marks[name].append((at, is_running))

    def longest(self, names: Iterable[str], start: float, end: float) -> float:
        """The longest time in one go, between two moments, for which all of them ran."""
        stops = sorted(span for name in names for span in self._stops(name, start, end))
        longest, at = 0.0, start
        for begin, over in stops:
            longest = max(longest, begin - at)
            at = max(at, over)
        return max(longest, end - at)

    def _stops(self, name: str, start: float, end: float) -> Iterator[tuple[float, float]]:
        since, is_running = float("-inf"), False
        for at, runs in [*self._marks[name], (float("inf"), False)]:
            if not is_running and since < end and at > start:
                yield max(since, start), min(at, end)
            since, is_running = at, runs


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A time in which a job had a consumer.

    Attributes:
        consumer: its name.
        holder: what runs the job.
        needs: the processes that have to run for its lease to be renewed, the holder's own among them.
        since: when it was seen to have the consumer.
        until: when it had to release it, or was killed or superseded; infinite if neither.
        time_to_live: of the lease, in seconds.
        grace: seconds after it before the consumer may be ended.
        is_seen_early: whether `since` is when it acquired its lease, and not a later moment.
        is_lost: whether `until` is when the registry said that it had lost the consumer.
    """

    consumer: str
    holder: str
    needs: tuple[str, ...]
    since: float
    until: float
    time_to_live: float
    grace: float
    is_seen_early: bool = False
    is_lost: bool = False

    def proves_life(self, timeline: Timeline, at: float) -> bool:
        """Whether its lease cannot have run out, with its grace period, at a moment."""
        if not self.since <= at < self.until:
            return False
        start = max(self.since, at - self.time_to_live - self.grace)
        if start == self.since and self.is_seen_early:
            return True
        return timeline.longest(self.needs, start, at) >= PROOF_OF_LIFE * self.time_to_live


@dataclass(kw_only=True)
class Evidence:
    """What was seen.

    Attributes:
        stream: the records that the stream has.
        ids: how often it has each id.
        rows: what each query gave.
        again: micro-batches that were run again.
        changed: the ones whose rows differed.
        acknowledged: ids whose writes were acknowledged.
        timeline: of all processes.
        holdings: who had which consumer.
        ended: name of each consumer that was deregistered, and when.
        left: names of the consumers that are there at the end.
        events: what clients saw, each in order.
        claim_seconds: how long a claim lives without being renewed.
        handovers: of drivers, that came to their end.
        faults: what went wrong on the way, by the name of the check.
    """

    stream: Counter[Key] = field(default_factory=Counter)
    ids: Counter[str] = field(default_factory=Counter)
    rows: Mapping[str, Counter[Key]] = field(default_factory=dict)
    again: int = 0
    changed: Sequence[str] = ()
    acknowledged: Sequence[str] = ()
    timeline: Timeline = field(default_factory=Timeline)
    holdings: Sequence[Holding] = ()
    ended: Sequence[tuple[str, float]] = ()
    left: Sequence[str] = ()
    events: Sequence[Mapping[str, Any]] = ()
    claim_seconds: float = 15.0
    handovers: int = 0
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """A line of the table.

    Attributes:
        check: what has to be true.
        seen: what was counted.
        faults: why it is not true.
    """

    check: str
    seen: str
    faults: tuple[str, ...]


RECORDS = "every record once"
SAME_ROWS = "a batch that runs again has its rows"
ACKNOWLEDGED = "acknowledged writes are in the stream"
LIVE = "no consumer ended while live"
RIVALS = "no rival let in beside a live holder"
LOST = "no lease lost but to another holder"
CLAIMS = "each claimed result is committed once"
CLAIMERS = "no claim is taken from a live driver"
HANDOVERS = "the successor continues, its predecessor ends"
QUERIES = "nothing ends that was not told to"
LEFT = "no consumer left"


def judge(evidence: Evidence) -> list[Verdict]:
    """Compare what was seen with what has to be true."""
    return [
        *_records(evidence),
        Verdict(SAME_ROWS, f"{evidence.again} ran again", tuple(evidence.changed)),
        _acknowledged(evidence),
        _live(evidence),
        _rivals(evidence),
        _lost(evidence),
        _claims(evidence),
        _claimers(evidence),
        Verdict(HANDOVERS, f"{evidence.handovers} handovers", tuple(evidence.faults.get(HANDOVERS, ()))),
        Verdict(QUERIES, "", tuple(evidence.faults.get(QUERIES, ()))),
        Verdict(LEFT, f"{len(evidence.left)} left", tuple(evidence.left)),
    ]


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as people read them, each fault below its line."""
    width = max(len(one.check) for one in verdicts)
    lines = []
    for one in verdicts:
        lines.append(f"{one.check:{width}}  {'holds' if not one.faults else 'FAILS':5}  {one.seen}".rstrip())
        lines += [f"    {fault}" for fault in one.faults[:5]]
        if len(one.faults) > 5:
            lines.append(f"    and {len(one.faults) - 5} more")
    return "\n".join(lines)


def _records(evidence: Evidence) -> Iterator[Verdict]:
    for query, rows in evidence.rows.items():
        missing, more = evidence.stream - rows, rows - evidence.stream
        faults = [
            *(f"missing: {shard} {number}" for shard, number in missing),
            *(f"more than once, or never put: {shard} {number}" for shard, number in more),
        ]
        seen = f"{evidence.stream.total()} in the stream, {rows.total()} read"
        yield Verdict(f"{query}: {RECORDS}", seen, tuple(faults))


def _acknowledged(evidence: Evidence) -> Verdict:
    missing = [one for one in evidence.acknowledged if one not in evidence.ids]
    doubled = sum(evidence.ids[one] > 1 for one in evidence.acknowledged)
    seen = f"{len(evidence.acknowledged)} acknowledged, {doubled} of them written more than once"
    return Verdict(ACKNOWLEDGED, seen, tuple(missing))


def _live(evidence: Evidence) -> Verdict:
    faults = [
        f"{consumer} at {at:.1f}, held by {holding.holder}"
        for consumer, at in evidence.ended
        for holding in evidence.holdings
        if holding.consumer == consumer and holding.proves_life(evidence.timeline, at)
    ]
    return Verdict(LIVE, f"{len(evidence.ended)} ended in all", tuple(faults))


def _rivals(evidence: Evidence) -> Verdict:
    asked = [one for one in evidence.events if one["what"] in ("refused", "let in")]
    faults = [
        f"{one['consumer']} at {one['at']:.1f}, held by {holding.holder}"
        for one in asked
        for holding in evidence.holdings
        if one["what"] == "let in"
        and holding.consumer == one["consumer"]
        and _is_beside(holding, one, evidence.timeline)
    ]
    let_in = sum(one["what"] == "let in" for one in asked)
    return Verdict(RIVALS, f"{len(asked)} asked, {let_in} let in after the holder", tuple(faults))


def _is_beside(holding: Holding, let_in: Mapping[str, Any], timeline: Timeline) -> bool:
    asked_at, answered_at = float(let_in["asked_at"]), float(let_in["at"])
    end = min(answered_at, holding.until) if holding.is_lost else answered_at
    # The moment between question and answer is unknown: the holder has to be live from one to the other.
    ends = (asked_at, math.nextafter(end, 0.0))
    is_its_time = let_in["consumer"] == holding.consumer and asked_at < end <= holding.until
    return is_its_time and all(holding.proves_life(timeline, at) for at in ends)


def _lost(evidence: Evidence) -> Verdict:
    acquired_at: dict[str, float] = {}
    # A rival whose question failed may have been let in all the same.
    asked = [one for one in evidence.events if one["what"] in ("let in", "unclear")]
    faults, lost = [], 0
    for one in sorted(evidence.events, key=lambda event: float(event["at"])):
        if one["what"] == "acquired":
            acquired_at[one["consumer"]] = one["at"]
        elif one["what"] == "lost":
            lost += 1
            since = acquired_at.get(one["consumer"], 0.0)
            if not any(
                other["consumer"] == one["consumer"] and other["asked_at"] < one["at"] and other["at"] > since
                for other in asked
            ):
                faults.append(f"{one['consumer']} at {one['at']:.1f}: {one['reason']}")
    return Verdict(LOST, f"{lost} lost", tuple(faults))


def _claims(evidence: Evidence) -> Verdict:
    places: dict[str, set[str]] = defaultdict(set)
    for one in evidence.events:
        if one["what"] in ("committed", "reused"):
            places[one["fingerprint"]].add(one["location"])
    faults = [f"{name}: {', '.join(sorted(found))}" for name, found in places.items() if len(found) > 1]
    return Verdict(CLAIMS, f"{len(places)} results", tuple(faults))


def _claimers(evidence: Evidence) -> Verdict:
    faults, lost = [], 0
    claimed_at: dict[str, float] = {}
    for one in evidence.events:
        if one["what"] == "computing":
            claimed_at[one["client"]] = one["at"]
        elif one["what"] == "claim lost":
            lost += 1
            start = max(claimed_at[one["client"]], one["at"] - evidence.claim_seconds)
            if evidence.timeline.longest((one["client"], "scheduler"), start, one["at"]) >= one["at"] - start:
                faults.append(f"{one['fingerprint']} from {one['client']} at {one['at']:.1f}")
    return Verdict(CLAIMERS, f"{lost} claims lost", tuple(faults))
