"""Entries of columns, kept as rows until single entries are needed, and the batches of requests."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Generic, Protocol, Self, TypeAlias, TypeVar, cast, overload

import msgspec
from opentelemetry.context import Context

from penstock.async_sink._core.entries import EntryListener, RequestEntryWrapper

R = TypeVar("R")


class Rows(Protocol[R]):
    """The source of entries, and the size of each entry."""

    @property
    def ends(self) -> Sequence[int]:
        """Cumulative bytes at the start of each row and at the end of the last row. Only differences have a meaning."""

    @property
    def are_entries(self) -> bool:
        """Whether the entries already exist, so that `entries` creates none."""

    def entries(self, start: int, end: int) -> list[R]:
        """The entries of some rows."""

    def cut(self, start: int, end: int) -> "Rows[R]":
        """Some rows, which keep no other rows in memory."""


class EntryRows(Generic[R]):
    """Rows that are entries."""

    are_entries = True

    def __init__(self, entries: Sequence[R], ends: Sequence[int]) -> None:
        self._entries = entries
        self.ends = ends

    @classmethod
    def of(cls, entries: Sequence[R], sizes: Iterable[int]) -> Self:
        """Entries with their sizes."""
        return cls(entries, list(accumulate(sizes, initial=0)))

    def entries(self, start: int, end: int) -> list[R]:
        """A list of its own."""
        return list(self._entries[start:end])

    def cut(self, start: int, end: int) -> Self:
        """Some of the entries."""
        return type(self)(self._entries[start:end], self.ends[start : end + 1])


class EntryRun(Generic[R]):
    """Consecutive entries of one write call, without data about single entries.

    A run is sent once; if any of its entries fails, the run is split into single entries. So a waiting run was never
    sent, and has no data about failures.
    """

    __slots__ = ("attempts", "context", "count", "index", "listener", "number", "rows", "start", "written_at")

    not_before = 0.0
    """Like an entry that never failed."""

    def __init__(
        self,
        rows: Rows[R],
        *,
        number: int,
        context: Context | None = None,
        listener: EntryListener | None = None,
        index: int = 0,
        written_at: float = 0.0,
        start: int = 0,
        count: int | None = None,
    ) -> None:
        """All rows, or `count` of them from `start` on; number and index belong to the first entry."""
        self.rows = rows
        """The rows, of which `count` from `start` on are its own."""
        self.start = start
        self.count = len(rows.ends) - 1 - start if count is None else count
        self.number = number
        self.context = context
        self.listener = listener
        self.index = index
        self.written_at = written_at
        self.attempts = 0

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all entries."""
        ends, start = self.rows.ends, self.start
        return ends[start + self.count] - ends[start]

    @property
    def are_entries(self) -> bool:
        """Whether the entries exist already."""
        return self.rows.are_entries

    def fitting(self, count: int, room: int) -> int:
        """Number of entries from the head, limited by count and bytes."""
        ends, start = self.rows.ends, self.start
        return bisect_right(ends, ends[start] + room, start, start + min(count, self.count) + 1) - 1 - start

    def size_of(self, count: int) -> int:
        """Bytes of the first `count` entries."""
        ends, start = self.rows.ends, self.start
        return ends[start + count] - ends[start]

    def split(self, count: int) -> "EntryRun[R]":
        """Remove the first `count` entries and return them as a run."""
        head = EntryRun(
            self.rows,
            number=self.number,
            context=self.context,
            listener=self.listener,
            index=self.index,
            written_at=self.written_at,
            start=self.start,
            count=count,
        )
        self.start += count
        self.count -= count
        self.number += count
        self.index += count
        return head

    def entries(self) -> list[R]:
        """The entries. Each call creates them again, unless the rows are entries."""
        return self.rows.entries(self.start, self.start + self.count)

    def wrappers(self, entries: Sequence[R] | None = None) -> list[RequestEntryWrapper[R]]:
        """The entries one by one; `entries` if they already exist."""
        ends, first = self.rows.ends, self.start
        number, index = self.number, self.index
        context, listener, attempts, written_at = self.context, self.listener, self.attempts, self.written_at
        return [
            RequestEntryWrapper(
                entry,
                ends[first + i + 1] - ends[first + i],
                number + i,
                context,
                listener,
                index + i,
                attempts,
                0.0,
                written_at,
            )
            for i, entry in enumerate(self.entries() if entries is None else entries)
        ]


Part: TypeAlias = RequestEntryWrapper[R] | EntryRun[R]
"""An entry, or a run of them: both have a count, a size, and the number and the index of their first entry."""


def fall_apart(parts: Iterable[Part[R]], entries: Sequence[R] | None = None) -> list[RequestEntryWrapper[R]]:
    """The entries of all parts, one by one; `entries` if they already exist."""
    wrappers: list[RequestEntryWrapper[R]] = []
    for part in parts:
        if isinstance(part, EntryRun):
            done = len(wrappers)
            wrappers += part.wrappers(None if entries is None else entries[done : done + part.count])
        else:
            wrappers.append(part)
    return wrappers


def rows_until(ends: Sequence[int], start: int, rows: int, *, room: int, enough: int) -> int:
    """End of a slice from row `start`: at most `rows` rows with at most `room` bytes, and no row after `enough` bytes.
    Returns `start` if no row fits."""
    base, last = ends[start], start + rows
    if enough > 0 and start < last:
        last = bisect_left(ends, base + enough, start + 1, last)
    return bisect_right(ends, base + room, start, last + 1) - 1


_attempts = attrgetter("attempts")


class Batch(msgspec.Struct, Generic[R], eq=False):
    """The entries of one request."""

    parts: Sequence[Part[R]]
    """Entries and runs of entries, in order."""
    size: int
    """Number of entries."""
    size_in_bytes: int
    """Their bytes."""
    submitted_at: float
    """Monotonic seconds."""
    reason: str = ""
    """Why it was sent, as in `SinkMetrics.flush_reasons`."""
    has_runs: bool = False
    """Whether a part may contain more than one entry."""
    kept: list[R] | None = None
    """Entries that were created from rows and read."""

    @property
    def wrappers(self) -> Sequence[RequestEntryWrapper[R]]:
        """The data about each entry; runs are split."""
        if self.has_runs:
            # A destination refers to entries by the objects that it received.
            self.parts = fall_apart(self.parts, self.kept)
            self.kept, self.has_runs = None, False
        return cast("Sequence[RequestEntryWrapper[R]]", self.parts)

    @property
    def entries(self) -> Sequence[R]:
        """The entries in order; entries of columns are created when they are read."""
        if not self.has_runs:
            return [part.entry for part in cast("Sequence[RequestEntryWrapper[R]]", self.parts)]
        if any(isinstance(part, EntryRun) and not part.are_entries for part in self.parts):
            return BatchEntries(self)
        return self.make_entries()

    def make_entries(self) -> list[R]:
        """The entries in order. Each call creates the entries of columns again."""
        entries: list[R] = []
        for part in self.parts:
            if isinstance(part, EntryRun):
                entries += part.entries()
            else:
                entries.append(part.entry)
        return entries

    def keep_entries(self) -> list[R]:
        """The entries, as the same objects each time."""
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
    """The entries of a batch. `len` creates none."""

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
        """The parts of the batch."""
        return self._batch.parts

    def make(self) -> list[R]:
        """A list of the entries, which the batch does not keep."""
        return self._batch.make_entries()


def made(entries: Sequence[R]) -> list[R]:
    """A list of a request's entries. Entries of columns are created for this call and not kept."""
    if isinstance(entries, BatchEntries):
        return entries.make()
    return entries if isinstance(entries, list) else list(entries)
