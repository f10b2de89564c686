"""The answer to a request, and its meaning for each entry."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.entries import EntryFailure, FailedAttempt, RequestEntryWrapper, total_size_in_bytes
from penstock.async_sink._core.runs import Batch, Part
from penstock.async_sink._rate.strategy import LaneLimiter, LaneObservation
from penstock.aws import BackoffPolicy

R = TypeVar("R")


@dataclass(frozen=True)
class Outcome:
    """An answer: the entries that were not accepted, and the error that ends the writer or None."""

    failures: Sequence[EntryFailure] = ()
    error: BaseException | None = None
    lanes: Sequence[str | None] = ()


def all_failed(
    count: int, *, code: str = "", message: str = "", throttled: bool = False, counts: bool = True
) -> list[EntryFailure]:
    """One failure per entry of a request that failed as a whole."""
    return [EntryFailure(index, code, message, throttled, counts=counts) for index in range(count)]


class ResultHandler(Generic[R]):
    """Takes the answer to one request. Only the first call counts, and only before the time-out.

    Call it on the writer's event loop.
    """

    def __init__(
        self,
        batch: Batch[R],
        settle: "Callable[[ResultHandler[R], Outcome], None]",
        limiter: LaneLimiter | None = None,
    ) -> None:
        self._batch = batch
        self._settle = settle
        self._limiter = limiter
        self.answered = False
        """Whether the request was answered or has timed out."""

    @property
    def wants_lanes(self) -> bool:
        """Whether the rate limiting strategy also uses the lanes (shards) of a request without failures."""
        return self._limiter is not None and self._limiter.active

    @property
    def first_record_number(self) -> int:
        """Number of the request's first record, in the order of writing."""
        return self._batch.first_number

    @property
    def has_listeners(self) -> bool:
        """Whether each entry has a listener, which is called if the entry is abandoned."""
        return all(part.listener is not None for part in self._batch.parts)

    def complete(self) -> None:
        """Every entry was accepted."""
        self._answer(Outcome())

    def retry_for_entries(self, entries: Sequence[R], *, throttled: bool = True) -> None:
        """These entries were not accepted; all others were. An empty sequence completes the request.

        `throttled` says whether the destination refused them because it is full.

        Raises:
            ValueError: an entry is not of this request.
        """
        if not self.answered:
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

        The request is cut in two and both halves are sent, until the entry that causes the refusal is alone. That entry
        is abandoned; the others are not charged for the attempts. Use this only for refusals that an entry causes:
        otherwise every entry is abandoned, one by one.
        """
        count = self._batch.size
        self._answer(Outcome([EntryFailure(i, code, message, throttled=False, spoilt=True) for i in range(count)]))

    def complete_exceptionally(self, error: BaseException, *, places: Sequence[int] | None = None) -> None:
        """End the writer: its caller gets the error. The entries stay in the snapshot.

        `places` are the entries of the request that were not accepted; the others are acknowledged. By default no entry
        was accepted.
        """
        # An error of a service has its own code and words; the entries' history is to have them.
        code, message = getattr(error, "code", None), getattr(error, "message", None)
        failures = all_failed(
            self._batch.size,
            code=code if isinstance(code, str) else type(error).__name__,
            message=message if isinstance(message, str) else str(error),
        )
        self._answer(Outcome(failures if places is None else [failures[place] for place in places], error))

    def _answer(self, outcome: Outcome) -> None:
        if not self.answered:
            self.answered = True
            self._settle(self, outcome)

    def _indices(self, entries: Sequence[R]) -> list[int]:
        places: dict[int, list[int]] = {}
        for index, wrapper in enumerate(self._batch.wrappers):
            places.setdefault(id(wrapper.entry), []).append(index)
        found = []
        for entry in entries:
            # A request may contain one object several times: each mention takes the next of its places.
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


# A record that fails for days must not grow for days.
_LONGEST_HISTORY = 20


class TerminalReason(Enum):
    """Why an entry is not sent again."""

    REFUSED = "refused"
    """The destination refused it permanently."""
    ATTEMPTS = "attempts"
    """It was submitted as often as it may be."""
    EXPIRED = "expired"
    """Its time to live is over."""
    POISON = "poison"
    """It alone made the destination refuse a whole request."""


@dataclass(frozen=True)
class Termination(Generic[R]):
    """An entry that is not sent again, and why."""

    wrapper: RequestEntryWrapper[R]
    failure: EntryFailure
    reason: TerminalReason


@dataclass
class Settlement(Generic[R]):
    """What an answer meant for each entry of its request."""

    acknowledged: Sequence[Part[R]] = ()
    """Entries, and runs of them."""
    accepted: int = 0
    """How many entries those are."""
    accepted_bytes: int = 0
    """Their bytes."""
    retried: list[RequestEntryWrapper[R]] = field(default_factory=list)
    spoilt: list[RequestEntryWrapper[R]] = field(default_factory=list)
    """Entries of a request that was refused whole; they are sent again in two halves."""
    terminated: list[Termination[R]] = field(default_factory=list)
    throttled: int = 0
    delay: float = 0.0
    """Seconds for which the retried ones back off."""


def lane_observations(
    batch: Batch[R], failures: Sequence[EntryFailure], lanes: Sequence[str | None]
) -> list[LaneObservation]:
    """The lane of each entry and whether it was throttled, from an answer."""
    throttled = {failure.index for failure in failures if failure.throttled}
    return [
        LaneObservation(wrapper.entry, wrapper.size_in_bytes, lane, index in throttled, wrapper.lane)
        for index, (wrapper, lane) in enumerate(zip(batch.wrappers, lanes, strict=True))
    ]


EXPIRED = EntryFailure(0, "TimeToLiveExpired", "its time to live is over", throttled=False, final=True)


class Settler(Generic[R]):
    """Sorts the entries of an answered request: acknowledged, sent again or abandoned. Takes `now`; does no I/O."""

    def __init__(self, config: AsyncSinkConfig, random: Callable[[], float]) -> None:
        self._max_attempts = 1 if config.fail_on_error else config.max_attempts
        self._time_to_live = None if config.time_to_live is None else config.time_to_live.total_seconds()
        self._backoff = BackoffPolicy(
            base=config.retry_backoff_base, maximum=config.retry_backoff_maximum, exponent=2.0
        )
        self._random = random

    def is_expired(self, part: Part[R], now: float) -> bool:
        """Whether the time to live of an entry, or of a run of them, is over."""
        return self._time_to_live is not None and now - part.written_at >= self._time_to_live

    def sort_out(
        self, batch: Batch[R], failures: Sequence[EntryFailure], now: float, *, give_up: bool
    ) -> Settlement[R]:
        """With `give_up`, failed entries are kept unchanged for the snapshot of a writer that has failed."""
        acknowledged: list[RequestEntryWrapper[R]] = []
        settlement = Settlement[R](acknowledged)
        by_index = {failure.index: failure for failure in failures}
        for index, wrapper in enumerate(batch.wrappers):
            failure = by_index.get(index)
            if failure is None:
                acknowledged.append(wrapper)
                continue
            settlement.throttled += failure.throttled
            self._remember(wrapper, failure, now)
            if give_up:
                settlement.retried.append(wrapper)
                continue
            reason = self._terminal_reason(wrapper, failure, batch, now)
            if reason is not None:
                settlement.terminated.append(Termination(wrapper, failure, reason))
            elif failure.spoilt:
                # It may be valid.
                wrapper.forgiven += 1
                settlement.spoilt.append(wrapper)
            else:
                wrapper.forgiven += not failure.counts
                settlement.retried.append(wrapper)
        settlement.accepted, settlement.accepted_bytes = len(acknowledged), total_size_in_bytes(acknowledged)
        if settlement.retried:
            # One wait for the whole request: its entries are sent together again.
            attempts = max(wrapper.attempts for wrapper in settlement.retried)
            settlement.delay = self._backoff.delay_seconds(attempts - 1, self._random)
        return settlement

    @staticmethod
    def _remember(wrapper: RequestEntryWrapper[R], failure: EntryFailure, now: float) -> None:
        attempt = FailedAttempt(now - wrapper.written_at, failure.error_code, failure.error_message)
        if wrapper.history is None:
            wrapper.history = [attempt]
        else:
            wrapper.history.append(attempt)
            del wrapper.history[:-_LONGEST_HISTORY]

    def _terminal_reason(
        self, wrapper: RequestEntryWrapper[R], failure: EntryFailure, batch: Batch[R], now: float
    ) -> TerminalReason | None:
        if failure.spoilt and batch.size == 1:
            return TerminalReason.POISON
        if failure.final:
            return TerminalReason.REFUSED
        if self.is_expired(wrapper, now):
            return TerminalReason.EXPIRED
        spent = wrapper.attempts - wrapper.forgiven
        is_charged = failure.counts and not failure.spoilt
        if is_charged and self._max_attempts is not None and spent >= self._max_attempts:
            return TerminalReason.ATTEMPTS
        return None
