"""Whether a destination still takes anything. No I/O: callers say what time it is."""

from dataclasses import dataclass

_WARNINGS = 4


@dataclass(frozen=True, slots=True)
class Word:
    """What to do about it."""

    seconds: float
    """Without a sign of life."""
    warn: bool = False
    over: bool = False


class Stall:
    """Counts the seconds in which records are held and nothing happens; warns four times, then it is over."""

    def __init__(self, seconds: float) -> None:
        self._limit = seconds
        self._since: float | None = None
        self._signs = 0
        self._warned = 0

    def look(self, now: float, *, held: int, signs_of_life: int) -> Word:
        """Look again; `signs_of_life` is a number that grows with each of them."""
        if self._since is None or held == 0 or signs_of_life != self._signs:
            self._since, self._signs, self._warned = now, signs_of_life, 0
        waited = now - self._since
        if waited >= self._limit:
            return Word(waited, over=True)
        due = int(waited * (_WARNINGS + 1) / self._limit)
        if due > self._warned:
            self._warned = due
            return Word(waited, warn=True)
        return Word(waited)
