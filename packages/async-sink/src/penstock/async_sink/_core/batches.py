"""What leaves in one request."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Generic, TypeVar, cast, overload

import msgspec

from penstock.async_sink._core.entries import RequestEntryWrapper
from penstock.async_sink._core.runs import EntryRun, Part, fall_apart

R = TypeVar("R")

_attempts = attrgetter("attempts")


class Batch(msgspec.Struct, Generic[R], eq=False):
    """Entries that leave in one request."""

    parts: Sequence[Part[R]]
    """Entries and runs of entries, in order."""
    size: int
    """Number of entries."""
    size_in_bytes: int
    """Their bytes."""
    submitted_at: float
    """Monotonic seconds."""
    reason: str = ""
    """Why it left, as `SinkMetrics.flush_reasons` names it."""
    has_runs: bool = False
    """Whether a part may stand for more than one entry."""
    kept: list[R] | None = None
    """Entries that were made of rows, and looked at."""

    @property
    def wrappers(self) -> Sequence[RequestEntryWrapper[R]]:
        """What is known of each entry; runs fall apart."""
        if self.has_runs:
            # A destination names entries by the objects that it was given, if it was given some.
            self.parts = fall_apart(self.parts, self.kept)
            self.kept, self.has_runs = None, False
        return cast("Sequence[RequestEntryWrapper[R]]", self.parts)

    @property
    def entries(self) -> Sequence[R]:
        """What is sent, in order; entries of columns are made when they are looked at."""
        if not self.has_runs:
            return [part.entry for part in cast("Sequence[RequestEntryWrapper[R]]", self.parts)]
        if any(isinstance(part, EntryRun) and not part.are_entries for part in self.parts):
            return BatchEntries(self)
        return self.make_entries()

    def make_entries(self) -> list[R]:
        """What is sent, in order. Entries of columns are made anew by each call."""
        entries: list[R] = []
        for part in self.parts:
            if isinstance(part, EntryRun):
                entries += part.entries()
            else:
                entries.append(part.entry)
        return entries

    def keep_entries(self) -> list[R]:
        """What is sent, the same objects each time."""
        if self.kept is None:
            self.kept = self.make_entries()
        return self.kept

    @property
    def first_number(self) -> int:
        """Number of its first entry in the order of writing."""
        return self.parts[0].number

    @property
    def attempt(self) -> int:
        """The highest number of submissions among the entries, this one included."""
        highest: int = max(map(_attempts, self.parts))
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
