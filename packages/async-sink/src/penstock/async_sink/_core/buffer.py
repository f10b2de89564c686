"""Entries that wait to be sent."""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import merge
from operator import attrgetter
from typing import Generic, TypeVar

from penstock.async_sink._core.entries import RequestEntryWrapper, total_size_in_bytes
from penstock.async_sink._core.runs import EntryRun, Part, fall_apart

R = TypeVar("R")


class RequestBuffer(Generic[R]):
    """First in, first out; entries that come back take their old place at the head. Keeps the total of bytes.

    Entries of one call may stand in it as a run. Who looks at entries one by one makes runs fall apart.
    """

    def __init__(self) -> None:
        self._parts: deque[Part[R]] = deque()
        self._runs = 0
        # Entries of runs beyond the one that each place of `_parts` counts for.
        self._beyond = 0
        self.total_size_in_bytes = 0
        """Bytes of all entries in the buffer."""

    def __len__(self) -> int:
        return len(self._parts) + self._beyond

    def __iter__(self) -> Iterator[RequestEntryWrapper[R]]:
        """Entry by entry; those of runs are made for it, and forgotten."""
        for part in self._parts:
            if isinstance(part, EntryRun):
                yield from part.wrappers()
            else:
                yield part

    @property
    def parts(self) -> Sequence[Part[R]]:
        """Entries and runs of entries, in their order; to look at only."""
        return self._parts

    @property
    def has_runs(self) -> bool:
        """Whether a part may stand for more than one entry."""
        return self._runs > 0

    @property
    def first(self) -> Part[R]:
        """What stands first: an entry, or a run of them.

        Raises:
            IndexError: the buffer is empty.
        """
        return self._parts[0]

    @property
    def head(self) -> RequestEntryWrapper[R]:
        """The entry that leaves next; a run that it belongs to falls apart.

        Raises:
            IndexError: the buffer is empty.
        """
        first = self._parts[0]
        if not isinstance(first, EntryRun):
            return first
        self._parts.popleft()
        self._runs -= 1
        self._beyond -= first.count - 1
        wrappers = first.wrappers()
        self._parts.extendleft(reversed(wrappers))
        return wrappers[0]

    def add(self, wrapper: RequestEntryWrapper[R]) -> int:
        """Add an entry at the end. Returns how many there are now."""
        parts = self._parts
        parts.append(wrapper)
        self.total_size_in_bytes += wrapper.size_in_bytes
        return len(parts) + self._beyond

    def add_run(self, run: EntryRun[R]) -> None:
        """Add entries at the end."""
        self._parts.append(run)
        self._runs += 1
        self._beyond += run.count - 1
        self.total_size_in_bytes += run.size_in_bytes

    def put_back(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        """Put entries, given in the order of their numbers, before every entry with a higher number.

        Requests can fail in another order than they were sent in: by the numbers, entries that come back stand in the
        order of writing among themselves too. Only entries that came back earlier can stand before them, so just those
        are looked at.
        """
        if not wrappers:
            return
        parts, last = self._parts, wrappers[-1].number
        ahead: list[RequestEntryWrapper[R]] = []
        while parts and parts[0].number < last:
            ahead.append(self.head)
            parts.popleft()
        returned = merge(ahead, wrappers, key=attrgetter("number")) if ahead else wrappers
        parts.extendleft(reversed(list(returned)))
        self.total_size_in_bytes += total_size_in_bytes(wrappers)

    def take(self, count: int) -> list[RequestEntryWrapper[R]]:
        """Remove that many entries from the head."""
        taken = fall_apart(self.take_parts(count, 0))
        self.total_size_in_bytes -= total_size_in_bytes(taken)
        return taken

    def take_parts(self, count: int, size_in_bytes: int) -> list[Part[R]]:
        """Remove that many entries from the head, runs as they are; `size_in_bytes` is their total."""
        self.total_size_in_bytes -= size_in_bytes
        parts, pop = self._parts, self._parts.popleft
        if not self._runs:
            return [pop() for _ in range(count)]
        taken: list[Part[R]] = []
        while count:
            part = parts[0]
            if isinstance(part, EntryRun):
                if part.count > count:
                    self._beyond -= count
                    taken.append(part.split(count))
                    break
                self._runs -= 1
                self._beyond -= part.count - 1
            taken.append(pop())
            count -= part.count
        return taken
