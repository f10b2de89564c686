"""What a shard is doing, since when and why, and how far it is behind: one state machine. No I/O.

Whoever reads a shard notes signs, and the table says which state they lead to. The lag is what is known: it grows from
the last proof that the shard was caught up, or from the last answer that told it, whatever happens meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final


class ShardState(StrEnum):
    """What a shard is doing."""

    READING = "reading"
    """It is read, and is behind its tip, or the service has not said where that is."""
    CAUGHT_UP = "caught up"
    """Everything that it holds was read."""
    THROTTLED = "throttled"
    """The service refuses calls because there are too many."""
    REFUSED = "refused"
    """Calls fail: the service refuses them or does not answer, or there are no credentials."""
    RESUBSCRIBING = "resubscribing"
    """Its subscription ended, and the next one has brought nothing yet."""
    STARVED = "starved"
    """It is not read: the buffers are full, because the caller does not take what they hold."""
    HELD_BACK = "waiting for slower shards"
    """It is not read: its buffered records arrived later than the time up to which the other shards were read."""
    STUCK = "stuck at its end"
    """It gives neither records nor the shards that continue it."""
    ENDED = "ended"
    """It was read to its end."""


class ShardSign(StrEnum):
    """What happened to a shard."""

    BEHIND = "an answer that is behind the tip, or does not say"
    AT_TIP = "an answer at the tip"
    THROTTLED = "a call was throttled"
    REFUSED = "a call failed"
    SUBSCRIPTION_ENDED = "a subscription ended"
    NO_ROOM = "the buffers are full"
    AHEAD = "the buffers hold as much as they may of a shard that is ahead of others"
    ROOM = "the buffers have room again"
    STUCK = "neither records nor children came"
    END = "the shard's end"


def _row(*targets: ShardState) -> Mapping[ShardState, ShardState]:
    return dict(zip(ShardState, targets, strict=True))


_READ, _TIP, _SLOW, _FAIL, _SUB, _FULL, _HELD, _STUCK, _END = ShardState
TRANSITIONS: Final[Mapping[ShardSign, Mapping[ShardState, ShardState]]] = {
    # From:                             read    at tip  throttl refused resubsc starved held    stuck   ended
    ShardSign.BEHIND:             _row(_READ, _READ, _READ, _READ, _READ, _READ, _READ, _READ, _END),
    ShardSign.AT_TIP:             _row(_TIP, _TIP, _TIP, _TIP, _TIP, _TIP, _TIP, _TIP, _END),
    ShardSign.THROTTLED:          _row(_SLOW, _SLOW, _SLOW, _SLOW, _SLOW, _SLOW, _SLOW, _SLOW, _END),
    ShardSign.REFUSED:            _row(_FAIL, _FAIL, _FAIL, _FAIL, _FAIL, _FAIL, _FAIL, _FAIL, _END),
    ShardSign.SUBSCRIPTION_ENDED: _row(_SUB, _SUB, _SUB, _SUB, _SUB, _SUB, _SUB, _SUB, _END),
    ShardSign.NO_ROOM:            _row(_FULL, _FULL, _FULL, _FULL, _FULL, _FULL, _FULL, _FULL, _END),
    ShardSign.AHEAD:              _row(_HELD, _HELD, _HELD, _HELD, _HELD, _HELD, _HELD, _HELD, _END),
    # What happened while there was no room stays: only starvation and the wait themselves are over.
    ShardSign.ROOM:               _row(_READ, _TIP, _SLOW, _FAIL, _SUB, _READ, _READ, _STUCK, _END),
    ShardSign.STUCK:              _row(_STUCK, _STUCK, _STUCK, _STUCK, _STUCK, _STUCK, _STUCK, _STUCK, _END),
    ShardSign.END:                _row(_END, _END, _END, _END, _END, _END, _END, _END, _END),
}  # fmt: skip
"""Where each sign leads from each state."""

NoteSign = Callable[[ShardSign, str], None]
"""Takes a sign and its cause as text: what publishers report about a shard beside its events."""


def unnoted(sign: ShardSign, cause: str) -> None:
    """Ignore a sign of a shard that is not watched."""


@dataclass(frozen=True)
class ShardCondition:
    """What a shard is doing.

    Attributes:
        state: what.
        since_millis: since when, by the service's clock, in milliseconds since the epoch; 0 if unknown.
        cause: why, as text; may be empty.
        is_guess: whether the service does not say where the tip is, so that `caught up` is a guess.
    """

    state: ShardState = ShardState.READING
    since_millis: int = 0
    cause: str = ""
    is_guess: bool = False

    @property
    def is_well(self) -> bool:
        """Whether the shard is read, was read to its end, or waits for others."""
        return self.state in (ShardState.READING, ShardState.CAUGHT_UP, ShardState.HELD_BACK, ShardState.ENDED)

    @property
    def is_troubled(self) -> bool:
        """Whether the shard is not read, for another reason than the regular renewal of its subscription."""
        return not self.is_well and self.state is not ShardState.RESUBSCRIBING

    def __str__(self) -> str:
        words = self.state.value
        if self.since_millis and not self.is_well:
            words += f" since {utc(self.since_millis)}"
        return f"{words}: {self.cause}" if self.cause else words


def utc(millis: float) -> str:
    """A time for people, to the second."""
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


STALLED_SECONDS: Final = 30.0
"""Without progress for which, beyond the interval between two reads, there is a warning."""
FRESH_SECONDS: Final = 10.0
"""How long an answer at the tip proves that there is nothing to read: an idle subscription has one every 5 s."""


_UNREAD: Final = (ShardState.HELD_BACK, ShardState.ENDED)
"""States of a shard that is well and of which no answer is expected."""


class ConditionTracker:
    """The condition and the lag of one shard, by the signs that are noted.

    Args:
        now: monotonic seconds.
        service_millis: the service's time, in milliseconds since the epoch.
        known_millis: up to where everything is known to have been read, by the service's clock; None if unknown.
    """

    def __init__(self, now: float, service_millis: int, known_millis: int | None) -> None:
        self.condition = ShardCondition(since_millis=service_millis)
        self.progress_at = now
        """When the shard last made progress, or was at its tip; monotonic seconds."""
        self.interval_seconds = 0.0
        """How long after an answer the next one is asked for."""
        self._answered = now, service_millis
        self._known_millis = known_millis
        self._told: tuple[int, float] | None = None

    def note(self, sign: ShardSign, cause: str, service_millis: int, *, is_guess: bool = False) -> None:
        """Take a sign; `is_guess` is about one at the tip."""
        before = self.condition
        state = TRANSITIONS[sign][before.state]
        if state is before.state and sign is ShardSign.ROOM:
            return
        since = before.since_millis if state is before.state else service_millis
        if (state, since, cause, is_guess) != (before.state, before.since_millis, before.cause, before.is_guess):
            self.condition = ShardCondition(state, since, cause, is_guess)

    def answered(
        self,
        millis_behind: int | None,
        now: float,
        service_millis: int,
        *,
        came_on: bool,
        note: str = "",
        is_guess: bool = False,
        is_closed: bool = False,
    ) -> None:
        """Take an answer that is not the shard's end.

        Args:
            millis_behind: how far behind its tip the shard is, as the service says; None where it does not, which
                proves nothing.
            now: monotonic seconds.
            service_millis: the service's time.
            came_on: whether it had records, or led further.
            note: what is to be said of the way in which the shard is read.
            is_guess: whether `millis_behind` is 0 only because the last answers were empty.
            is_closed: whether the shard is known to be closed: it has no tip, and an answer that leads nowhere means
                that it is stuck.
        """
        self._answered = now, service_millis
        is_stuck = is_closed and not came_on and millis_behind == 0
        at_tip = millis_behind == 0 and not is_closed
        if at_tip or came_on:
            self.progress_at = now
        if millis_behind is not None and not is_stuck:
            self._told = (millis_behind, now)
        sign = ShardSign.STUCK if is_stuck else ShardSign.AT_TIP if at_tip else ShardSign.BEHIND
        self.note(sign, note, service_millis, is_guess=is_guess and at_tip)

    def condition_at(self, now: float) -> ShardCondition:
        """What the shard is doing now. A shard that was well is REFUSED if its answers stay away."""
        answered_at, answered_millis = self._answered
        if (
            now - answered_at < STALLED_SECONDS + self.interval_seconds
            or not self.condition.is_well
            or self.condition.state in _UNREAD
        ):
            return self.condition
        return ShardCondition(ShardState.REFUSED, answered_millis, "no answer has come since then")

    def millis_behind(self, now: float, service_millis: int) -> int | None:
        """How far behind its tip the shard is known to be, at most; None if nothing is known.

        0 for an answer at the tip, for as long as the next one is not overdue.
        """
        if self.condition.state is ShardState.ENDED:
            return 0
        if self._told is None:
            # An answer will soon show it; in trouble the position is all that is known.
            if self.condition.is_well or self._known_millis is None:
                return None
            return max(0, service_millis - self._known_millis)
        behind, at = self._told
        return 0 if behind == 0 and self._is_fresh(now) else behind + int((now - at) * 1000)

    def stalled_seconds(self, now: float) -> float:
        """For how long the shard made no progress without being known to be caught up; 0 while that is regular."""
        seconds = now - self.progress_at
        is_regular = self.condition.state in _UNREAD or self._is_fresh(now)
        return 0.0 if is_regular or seconds < STALLED_SECONDS + self.interval_seconds else seconds

    def _is_fresh(self, now: float) -> bool:
        is_due = now - self.progress_at > FRESH_SECONDS + self.interval_seconds
        return self.condition.state is ShardState.CAUGHT_UP and not is_due


RETENTION_SHARE: Final = 0.8


@dataclass(frozen=True)
class WatchedShard:
    """What `ShardAlarms` looks at.

    Attributes:
        stream: the stream.
        shard_id: the shard.
        condition: what it is doing.
        stalled_seconds: for how long it has made no progress; 0 while that is regular.
        millis_behind: how far it is behind; None if unknown.
        retention_millis: how long the stream keeps records, or the shortest period if that makes no
            difference; None if unknown.
    """

    stream: str
    shard_id: str
    condition: ShardCondition
    stalled_seconds: float
    millis_behind: int | None
    retention_millis: int | None = None


class ShardAlarms:
    """Decides what is to be logged of shards in trouble: each trouble once, and once more when it is over."""

    def __init__(self) -> None:
        self._stalled: dict[tuple[str, str], float] = {}
        self._late: set[tuple[str, str]] = set()

    def look(self, shards: Iterable[WatchedShard]) -> list[str]:
        """The warnings of this moment: one for all shards with the same trouble. Shards that are not given any more are
        forgotten."""
        # What is to be said, with the shards that it is to be said of, and the number in it that each has.
        groups: dict[tuple[Callable[..., str], str, object], list[tuple[WatchedShard, float]]] = defaultdict(list)
        seen = set()
        for shard in shards:
            key = (shard.stream, shard.shard_id)
            seen.add(key)
            condition = shard.condition
            if shard.stalled_seconds:
                if key not in self._stalled:
                    groups[_stalled, shard.stream, str(condition)].append((shard, shard.stalled_seconds))
                self._stalled[key] = shard.stalled_seconds
            elif (seconds := self._stalled.pop(key, None)) is not None:
                groups[_recovered, shard.stream, condition.state].append((shard, seconds))
            behind, kept = shard.millis_behind, shard.retention_millis
            if behind is None or kept is None:
                continue
            if (is_late := behind > RETENTION_SHARE * kept) == (key in self._late):
                continue
            (self._late.add if is_late else self._late.discard)(key)
            about = (kept, str(condition)) if is_late else kept
            groups[_late if is_late else _in_time, shard.stream, about].append((shard, behind))
        self._stalled = {key: seconds for key, seconds in self._stalled.items() if key in seen}
        self._late &= seen
        return [words(about, group) for (words, _, about), group in groups.items()]


_Group = list[tuple[WatchedShard, float]]


def _names(group: _Group) -> str:
    first, _ = group[0]
    if len(group) == 1:
        return f"{first.stream}/{first.shard_id}"
    shown = ", ".join(one.shard_id for one, _ in group[:3])
    return f"{first.stream}: {len(group)} shards ({shown}{', …' if len(group) > 3 else ''})"


def _stalled(condition: str, group: _Group) -> str:
    lags = [one.millis_behind for one, _ in group if one.millis_behind is not None]
    behind = f"at most {max(lags) / 1000:.0f} s behind" if lags else "how far behind is not known"
    return f"{_names(group)}: no progress for {group[0][1]:.0f} s ({behind}): {condition}"


def _recovered(state: ShardState, group: _Group) -> str:
    verb = "comes" if len(group) == 1 else "come"
    return f"{_names(group)}: {verb} on again, after {_most(group):.0f} s; {state.value}"


def _late(about: tuple[int, str], group: _Group) -> str:
    kept, condition = about
    return (
        f"{_names(group)}: {_most(group) / 3_600_000:.1f} h behind, and the stream keeps records for "
        f"{kept / 3_600_000:g} h: what is not read in time is lost. Lengthen the retention period, or give the reader "
        f"more cores or larger batches ({condition})"
    )


def _in_time(kept: int, group: _Group) -> str:
    behind = f"{_most(group) / 3_600_000:.1f} h behind"
    return f"{_names(group)}: {behind}, no longer near the {kept / 3_600_000:g} h of the stream's retention"


def _most(group: _Group) -> float:
    return max(number for _, number in group)
