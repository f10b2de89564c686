"""Entries that wait to be sent."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import attrgetter
from typing import Generic, TypeVar

from penstock.async_sink._entries import RequestEntryWrapper, total_size_in_bytes

R = TypeVar("R")


class RequestBuffer(Generic[R]):
    """First in, first out; entries that come back take their old place at the head. Keeps the total of bytes."""

    def __init__(self) -> None:
        self._entries: deque[RequestEntryWrapper[R]] = deque()
        self.total_size_in_bytes = 0
        """Bytes of all entries in the buffer."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[RequestEntryWrapper[R]]:
        return iter(self._entries)

    @property
    def head(self) -> RequestEntryWrapper[R]:
        """The entry that leaves next.

        Raises:
            IndexError: the buffer is empty.
        """
        return self._entries[0]

    def add(self, wrapper: RequestEntryWrapper[R]) -> int:
        """Add an entry at the end. Returns how many there are now."""
        entries = self._entries
        entries.append(wrapper)
        self.total_size_in_bytes += wrapper.size_in_bytes
        return len(entries)

    def add_all(self, wrappers: Iterable[RequestEntryWrapper[R]], size_in_bytes: int) -> None:
        """Add entries at the end; `size_in_bytes` is their total."""
        self._entries.extend(wrappers)
        self.total_size_in_bytes += size_in_bytes

    def put_back(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        """Put entries, given in the order of their numbers, before every entry with a higher number.

        Requests can fail in another order than they were sent in: by the numbers, entries that come back stand in the
        order of writing among themselves too. Only entries that came back earlier can stand before them, so just those
        are looked at.
        """
        if not wrappers:
            return
        entries, last = self._entries, wrappers[-1].number
        ahead: list[RequestEntryWrapper[R]] = []
        while entries and entries[0].number < last:
            ahead.append(entries.popleft())
        returned = merge(ahead, wrappers, key=attrgetter("number")) if ahead else wrappers
        entries.extendleft(reversed(list(returned)))
        self.total_size_in_bytes += total_size_in_bytes(wrappers)

    def take(self, count: int, size_in_bytes: int | None = None) -> list[RequestEntryWrapper[R]]:
        """Remove that many entries from the head; `size_in_bytes` is their total, where it is known."""
        pop = self._entries.popleft
        taken = [pop() for _ in range(count)]
        self.total_size_in_bytes -= total_size_in_bytes(taken) if size_in_bytes is None else size_in_bytes
        return taken
