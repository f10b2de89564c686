"""Which record keeps a flush waiting, since when and why, and when the log says so. Takes `now`; does no I/O."""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from penstock.async_sink._core.dispatcher import Dispatcher
from penstock.async_sink._core.entries import RequestEntryWrapper
from penstock.async_sink._core.runs import Part
from penstock.async_sink._metrics import HeldRecord

R = TypeVar("R")

LOOK_SECONDS: Final = 2.5
"""Between two looks."""
FIRST_SECONDS: Final = 5.0
"""A record that has waited for so long since the first look is logged: at most 7.5 s after the wait began."""
_LONGEST_SILENCE: Final = 600.0


def _first(part: Part[R]) -> int:
    return part.number


def _unsettled(dispatcher: Dispatcher[R]) -> Iterator[tuple[Part[R], str]]:
    """The first record of each place in which records wait, and what they wait for there; empty for a full batch."""
    for batch in dispatcher.in_flight.values():
        yield min(batch.parts, key=_first), "answer"
    for wrapper in dispatcher.terminal:
        yield wrapper, "terminal_handler"
    for part, reason in dispatcher.buffer.heads():
        is_due = part.attempts > 0 or dispatcher.is_flushing
        yield part, reason or dispatcher.blocked_by or ("batch" if is_due else "")


class HeldRecords(Generic[R]):
    """Looks at the oldest record that is not settled.

    It is held if it is the same one at each look, or for as long as a flush waits, which waits for it last. A record
    that waits for a batch to fill up is not held, unless a flush waits.
    """

    def __init__(self, dispatcher: Dispatcher[R]) -> None:
        self._dispatcher = dispatcher
        self.record: HeldRecord | None = None
        """As of the latest look."""
        self._number: int | None = None
        self._since = 0.0
        self._flushing_since: float | None = None
        self._log_after = FIRST_SECONDS

    def clear(self) -> None:
        """Everything is settled."""
        self.record = self._number = self._flushing_since = None

    def look(self, now: float) -> bool:
        """Look again. Returns whether the record is to be logged: after 5 s, then each time its wait has doubled, and
        at least every 10 minutes."""
        oldest = min(_unsettled(self._dispatcher), key=lambda found: found[0].number, default=None)
        if oldest is None or not oldest[1]:
            self.clear()
            return False
        part, reason = oldest
        if part.number != self._number:
            self._number, self._since = part.number, now
        if not self._dispatcher.is_flushing:
            self._flushing_since = None
        elif self._flushing_since is None:
            self._flushing_since = now
        # A flush waits for the last of its records: however many were settled meanwhile, it still waits.
        seconds = now - (self._since if self._flushing_since is None else min(self._since, self._flushing_since))
        if seconds < FIRST_SECONDS:
            self.record, self._log_after = None, FIRST_SECONDS
            return False
        wrapper = part if isinstance(part, RequestEntryWrapper) else None
        self.record = HeldRecord(
            record_number=part.number,
            seconds=seconds,
            reason=reason,
            attempts=part.attempts,
            error_code=wrapper.history[-1].error_code if wrapper is not None and wrapper.history else "",
            lane=wrapper.lane or "" if wrapper is not None else "",
            records=self._dispatcher.unsettled,
        )
        if seconds < self._log_after:
            return False
        self._log_after = seconds + min(seconds, _LONGEST_SILENCE)
        return True
