"""Where the next batch is cut."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Generic, TypeVar, cast, overload

from penstock.async_sink._core.buffer import RequestBuffer
from penstock.async_sink._core.entries import RequestEntryWrapper
from penstock.async_sink._core.runs import EntryRun, Part, fall_apart

R = TypeVar("R")

_attempts = attrgetter("attempts")


@dataclass(frozen=True)
class BatchExtent:
    """How much of the buffer's head the next batch takes."""

    batch_size: int
    size_in_bytes: int


class Batch(Generic[R]):
    """Entries that leave in one request."""

    __slots__ = ("_entries", "_has_runs", "_parts", "reason", "size", "size_in_bytes", "submitted_at")

    def __init__(
        self,
        parts: Sequence[Part[R]],
        size: int,
        size_in_bytes: int,
        submitted_at: float,
        reason: str = "",
        *,
        has_runs: bool = False,
    ) -> None:
        self._parts = parts
        self._has_runs = has_runs
        self._entries: list[R] | None = None
        self.size = size
        """Number of entries."""
        self.size_in_bytes = size_in_bytes
        """Their bytes."""
        self.submitted_at = submitted_at
        """Monotonic seconds."""
        self.reason = reason
        """Why it left, as `SinkMetrics.flush_reasons` names it."""

    @property
    def parts(self) -> Sequence[Part[R]]:
        """Entries and runs of entries, in order."""
        return self._parts

    @property
    def wrappers(self) -> Sequence[RequestEntryWrapper[R]]:
        """What is known of each entry; runs fall apart."""
        if self._has_runs:
            # A destination names entries by the objects that it was given, if it was given some.
            self._parts = fall_apart(self._parts, self._entries)
            self._entries, self._has_runs = None, False
        return cast("Sequence[RequestEntryWrapper[R]]", self._parts)

    @property
    def entries(self) -> Sequence[R]:
        """What is sent, in order; entries of columns are made when they are looked at."""
        if self._has_runs and any(isinstance(part, EntryRun) and not part.are_entries for part in self._parts):
            return BatchEntries(self)
        return self.make_entries()

    def make_entries(self) -> list[R]:
        """What is sent, in order. Entries of columns are made anew by each call."""
        if not self._has_runs:
            return [wrapper.entry for wrapper in self.wrappers]
        entries: list[R] = []
        for part in self._parts:
            if isinstance(part, EntryRun):
                entries += part.entries()
            else:
                entries.append(part.entry)
        return entries

    def keep_entries(self) -> list[R]:
        """What is sent, the same objects each time."""
        if self._entries is None:
            self._entries = self.make_entries()
        return self._entries

    @property
    def first_number(self) -> int:
        """Number of its first entry in the order of writing."""
        return self._parts[0].number

    @property
    def attempt(self) -> int:
        """The highest number of submissions among the entries, this one included."""
        highest: int = max(map(_attempts, self._parts))
        return highest


class BatchEntries(Sequence[R]):
    """The entries of a batch; who asks only for their number makes none."""

    def __init__(self, batch: Batch[R]) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.size

    def __iter__(self) -> Iterator[R]:
        return iter(self._batch.keep_entries())

    @overload
    def __getitem__(self, place: int) -> R: ...
    @overload
    def __getitem__(self, place: slice) -> list[R]: ...
    def __getitem__(self, place: int | slice) -> R | list[R]:
        return self._batch.keep_entries()[place]

    @property
    def parts(self) -> Sequence[Part[R]]:
        """What the batch is made of."""
        return self._batch.parts

    def make(self) -> list[R]:
        """A list for one look, of which nothing is kept."""
        return self._batch.make_entries()


def made(entries: Sequence[R]) -> list[R]:
    """A list of a request's entries for one look; those of columns are made for it and not kept."""
    if isinstance(entries, BatchEntries):
        return entries.make()
    return entries if isinstance(entries, list) else list(entries)


class BatchCreator:
    """Takes from the head up to a number of entries, and stops before the bytes would pass their limit.

    An exact fit is allowed. Measuring comes before taking, so that a rate limiting strategy is asked about the batch
    that would really leave, not about the one that was hoped for.
    """

    def __init__(self, max_batch_size: int, max_batch_size_in_bytes: int) -> None:
        self._max_batch_size = max_batch_size
        self._max_batch_size_in_bytes = max_batch_size_in_bytes

    def measure(self, buffer: RequestBuffer[R], strategy_max_batch_size: int, now: float) -> BatchExtent:
        """Extent of the next batch; an entry that still backs off ends it."""
        limit = max(1, min(self._max_batch_size, strategy_max_batch_size))
        room = self._max_batch_size_in_bytes
        count = size = 0
        for part in islice(buffer.parts, limit):
            following = size + part.size_in_bytes
            if following > room or part.not_before > now or count + part.count > limit:
                if isinstance(part, EntryRun):
                    fitting = part.fitting(limit - count, room - size)
                    count += fitting
                    size += part.size_of(fitting)
                break
            count += part.count
            size = following
        return BatchExtent(count, size)

    def create(self, buffer: RequestBuffer[R], extent: BatchExtent, now: float) -> Batch[R]:
        """Take a measured batch out of the buffer; each entry counts one more submission."""
        has_runs = buffer.has_runs
        parts = buffer.take_parts(extent.batch_size, extent.size_in_bytes)
        for part in parts:
            part.attempts += 1
        return Batch(parts, extent.batch_size, extent.size_in_bytes, now, has_runs=has_runs)
