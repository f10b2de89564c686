"""What a writer holds, and the room that is left."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from penstock.async_sink._core.entries import RequestEntryWrapper

R = TypeVar("R")


class Holdings(Generic[R]):
    """What waits, by number and by bytes, and what is in flight.

    What waits is in the buffer or on its way to the terminal record handler; the writer's room is what is left of it.
    What is in flight is bounded by the requests in flight. An entry that comes back waits again even if there is no
    room, and writes wait until there is: so no more is held than fits into the buffer and the requests together.
    """

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._terminal: dict[int, RequestEntryWrapper[R]] = {}
        self.waiting = 0
        """Entries that wait."""
        self.waiting_bytes = 0
        """Their bytes."""
        self.in_flight = 0
        """Entries that wait for an answer."""

    @property
    def entries(self) -> int:
        """All of them, waiting or in flight."""
        return self.waiting + self.in_flight

    def has_room(self, size_in_bytes: int) -> bool:
        """Whether an entry of that size may be added."""
        return self.waiting < self._most_entries and self.waiting_bytes + size_in_bytes <= self._most_bytes

    @property
    def is_full_by_number(self) -> bool:
        """Whether no entry may be added, however small."""
        return self.waiting >= self._most_entries

    @property
    def room(self) -> int:
        """Entries that may be added."""
        return self._most_entries - self.waiting

    @property
    def room_bytes(self) -> int:
        """Bytes that may be added."""
        return self._most_bytes - self.waiting_bytes

    def depart(self, entries: int, size_in_bytes: int) -> None:
        """So many are sent."""
        self.waiting -= entries
        self.waiting_bytes -= size_in_bytes
        self.in_flight += entries

    def come_back(self, entries: int, size_in_bytes: int) -> None:
        """The request of so many is answered: each of them waits until it is settled."""
        self.waiting += entries
        self.waiting_bytes += size_in_bytes
        self.in_flight -= entries

    def forget(self, entries: int, size_in_bytes: int) -> None:
        """So many of those that wait are settled."""
        self.waiting -= entries
        self.waiting_bytes -= size_in_bytes

    @property
    def terminal(self) -> Iterable[RequestEntryWrapper[R]]:
        """Entries on their way to the terminal record handler."""
        return self._terminal.values()

    def hold_terminal(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        """These are given up; until the handler has them they are held."""
        for wrapper in wrappers:
            self._terminal[wrapper.number] = wrapper

    def release_terminal(self, wrappers: Sequence[RequestEntryWrapper[R]]) -> None:
        """The handler has them, or they go back to the buffer."""
        for wrapper in wrappers:
            self._terminal.pop(wrapper.number, None)
