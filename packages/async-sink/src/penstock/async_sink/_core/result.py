"""How a request's answer comes back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.async_sink._core.batches import Batch
from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._rate.lanes import LaneLimiter

R = TypeVar("R")


@dataclass(frozen=True)
class Outcome:
    """An answer: the entries that were not accepted, and an error that ends the writer, if any."""

    failures: Sequence[EntryFailure] = ()
    error: BaseException | None = None
    lanes: Sequence[str | None] = ()


def all_failed(count: int, *, code: str = "", message: str = "", throttled: bool = False) -> list[EntryFailure]:
    """One failure per entry of a request that was refused whole."""
    return [EntryFailure(index, code, message, throttled) for index in range(count)]


class ResultHandler(Generic[R]):
    """Takes the answer to one request. The first call wins; later ones, and ones after the time-out, do nothing.

    Call it on the writer's event loop.
    """

    def __init__(
        self, batch: Batch[R], settle: Callable[[Outcome], None], *, limiter: LaneLimiter | None = None
    ) -> None:
        self._batch = batch
        self._settle = settle
        self._limiter = limiter
        self._answered = False

    @property
    def answered(self) -> bool:
        """Whether an answer, or the time-out, has come."""
        return self._answered

    @property
    def wants_lanes(self) -> bool:
        """Whether the rate limiting strategy would learn from the lanes (shards) of a request without a failure too."""
        return self._limiter is not None and self._limiter.active

    @property
    def first_record_number(self) -> int:
        """Number of the request's first record, in the order of writing."""
        return self._batch.first_number

    def complete(self) -> None:
        """Every entry was accepted."""
        self._answer(Outcome())

    def retry_for_entries(self, entries: Sequence[R], *, throttled: bool = True) -> None:
        """These entries were not accepted, the others were. An empty sequence completes the request.

        `throttled` says whether the destination refused them because it is full.

        Raises:
            ValueError: an entry is not of this request.
        """
        if not self._answered:
            indices = self._indices(entries)
            self._answer(Outcome([EntryFailure(index, throttled=throttled) for index in indices]))

    def retry_failures(self, failures: Sequence[EntryFailure], *, lanes: Sequence[str | None] = ()) -> None:
        """Like `retry_for_entries`, by place in the request, with the destination's words.

        `lanes` names the part of the destination (the shard) that took or refused each entry, one for each entry of
        the request, None where the answer does not say; a strategy with lanes learns from it.

        Raises:
            ValueError: a place is not in this request, or is given twice; or there are not as many lanes as entries.
        """
        if lanes and len(lanes) != self._batch.size:
            raise ValueError(f"{len(lanes)} lanes for a request of {self._batch.size} entries")
        places = {failure.index for failure in failures}
        if len(places) < len(failures) or (places and not 0 <= min(places) <= max(places) < self._batch.size):
            raise ValueError(f"{sorted(places)} are not distinct places in a request of {self._batch.size} entries")
        self._answer(Outcome(failures, lanes=lanes))

    def reject_request(self, *, code: str, message: str = "") -> None:
        """The destination refused the request whole because of some entry that it does not name.

        The request is cut in two and both are sent, until the entry that spoils it stands alone: that one is given
        up, the others are not charged for it. Only for refusals that an entry causes: one that has another cause
        gives up every entry, one by one.
        """
        count = self._batch.size
        self._answer(Outcome([EntryFailure(i, code, message, throttled=False, spoilt=True) for i in range(count)]))

    def complete_exceptionally(self, error: BaseException) -> None:
        """End the writer: its caller gets the error. The entries stay in the snapshot."""
        # An error of a service has its own code and words; the entries' history is to have them.
        code, message = getattr(error, "code", None), getattr(error, "message", None)
        failures = all_failed(
            self._batch.size,
            code=code if isinstance(code, str) else type(error).__name__,
            message=message if isinstance(message, str) else str(error),
        )
        self._answer(Outcome(failures, error))

    def _answer(self, outcome: Outcome) -> None:
        if not self._answered:
            self._answered = True
            self._settle(outcome)

    def _indices(self, entries: Sequence[R]) -> list[int]:
        places: dict[int, list[int]] = {}
        for index, wrapper in enumerate(self._batch.wrappers):
            places.setdefault(id(wrapper.entry), []).append(index)
        found = []
        for entry in entries:
            # One object may stand in a request several times: each mention takes the next of its places.
            indices = places.get(id(entry)) or self._equal(entry, places)
            if not indices:
                raise ValueError(f"{entry!r} is not an entry of this request, or was given too often")
            found.append(indices.pop(0))
        return sorted(found)

    def _equal(self, entry: R, places: dict[int, list[int]]) -> list[int] | None:
        for wrapper in self._batch.wrappers:
            if wrapper.entry == entry and places[id(wrapper.entry)]:
                return places[id(wrapper.entry)]
        return None
