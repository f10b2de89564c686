"""Entries of columns, kept as rows until they are needed one by one, and the batches that leave in one request."""

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
    """What entries are made of, and how large each of them is."""

    @property
    def ends(self) -> Sequence[int]:
        """Bytes up to each row's start, and up to the last one's end: one more than there are rows. Only differences
        mean something."""

    @property
    def are_entries(self) -> bool:
        """Whether the entries exist already: then `entries` makes nothing."""

    def entries(self, start: int, end: int) -> list[R]:
        """The entries of some rows."""

    def cut(self, start: int, end: int) -> "Rows[R]":
        """Some rows, which keep little more than themselves in memory."""


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
    """Entries that were written by one call, one after the other, of which nothing is known one by one.

    A run that is sent has one submission; if any of its entries comes back, it falls apart. So a run that waits was
    never sent, and needs no place for what can happen to an entry.
    """

    __slots__ = ("attempts", "context", "count", "index", "listener", "number", "rows", "start", "written_at")

    not_before = 0.0
    """As of an entry that never failed."""

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
        """All rows, or `count` of them from `start` on; number and index are those of its first entry."""
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
        """How many from its head are at most so many, with at most so many bytes."""
        ends, start = self.rows.ends, self.start
        return bisect_right(ends, ends[start] + room, start, start + min(count, self.count) + 1) - 1 - start

    def size_of(self, count: int) -> int:
        """Bytes of that many from its head."""
        ends, start = self.rows.ends, self.start
        return ends[start + count] - ends[start]

    def split(self, count: int) -> "EntryRun[R]":
        """Take that many from its head, as a run of their own."""
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
        """The entries, made anew each time unless they exist already."""
        return self.rows.entries(self.start, self.start + self.count)

    def wrappers(self, entries: Sequence[R] | None = None) -> list[RequestEntryWrapper[R]]:
        """The entries one by one; `entries` if they were made before."""
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
    """The entries of all parts, one by one; `entries` if they were made before."""
    wrappers: list[RequestEntryWrapper[R]] = []
    for part in parts:
        if isinstance(part, EntryRun):
            done = len(wrappers)
            wrappers += part.wrappers(None if entries is None else entries[done : done + part.count])
        else:
            wrappers.append(part)
    return wrappers


def rows_until(ends: Sequence[int], start: int, rows: int, *, room: int, enough: int) -> int:
    """Where a slice from row `start` ends: at most so many rows with at most `room` bytes, no row past `enough` bytes;
    a room that takes no row gives `start`."""
    base, last = ends[start], start + rows
    if enough > 0 and start < last:
        last = bisect_left(ends, base + enough, start + 1, last)
    return bisect_right(ends, base + room, start, last + 1) - 1


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
