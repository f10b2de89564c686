"""What an answer means for each entry of its request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._core.backoff import full_jitter_seconds
from penstock.async_sink._core.batches import Batch
from penstock.async_sink._core.entries import EntryFailure, FailedAttempt, RequestEntryWrapper, total_size_in_bytes
from penstock.async_sink._core.runs import Part
from penstock.async_sink._rate.lanes import LaneObservation

R = TypeVar("R")

# A record that fails for days must not grow for days.
_LONGEST_HISTORY = 20


class TerminalReason(Enum):
    """Why an entry is not sent again."""

    REFUSED = "refused"
    """The destination refused it for good."""
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
    """What an answer said of each entry and its lane."""
    throttled = {failure.index for failure in failures if failure.throttled}
    return [
        LaneObservation(wrapper.entry, wrapper.size_in_bytes, lane, index in throttled)
        for index, (wrapper, lane) in enumerate(zip(batch.wrappers, lanes, strict=True))
    ]


EXPIRED = EntryFailure(0, "TimeToLiveExpired", "its time to live is over", throttled=False, final=True)


class Settler(Generic[R]):
    """Sorts the entries of an answered request: acknowledged, sent again, or given up. Takes `now`; does no I/O."""

    def __init__(self, config: AsyncSinkConfig, random: Callable[[], float]) -> None:
        self._max_attempts = 1 if config.fail_on_error else config.max_attempts
        self._time_to_live = None if config.time_to_live is None else config.time_to_live.total_seconds()
        self._base = config.retry_backoff_base.total_seconds()
        self._maximum = config.retry_backoff_maximum.total_seconds()
        self._random = random

    def is_expired(self, part: Part[R], now: float) -> bool:
        """Whether the time to live of an entry, or of a run of them, is over."""
        return self._time_to_live is not None and now - part.written_at >= self._time_to_live

    def sort_out(
        self, batch: Batch[R], failures: Sequence[EntryFailure], now: float, *, give_up: bool
    ) -> Settlement[R]:
        """With `give_up` every failed entry is kept as it is: the writer has failed, its snapshot is to hold them."""
        if not failures:
            return Settlement(batch.parts, batch.size, batch.size_in_bytes)
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
                # It is not known to have done anything wrong.
                wrapper.forgiven += 1
                settlement.spoilt.append(wrapper)
            else:
                settlement.retried.append(wrapper)
        settlement.accepted, settlement.accepted_bytes = len(acknowledged), total_size_in_bytes(acknowledged)
        if settlement.retried:
            # One wait for all of the request: they leave together again, and the batch is not cut between them.
            attempts = max(wrapper.attempts for wrapper in settlement.retried)
            settlement.delay = full_jitter_seconds(attempts, self._base, self._maximum, self._random)
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
        if not failure.spoilt and self._max_attempts is not None and spent >= self._max_attempts:
            return TerminalReason.ATTEMPTS
        return None
