"""What a writer holds, and the room that is left."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from penstock.async_sink._entries import RequestEntryWrapper

R = TypeVar("R")


class Holdings(Generic[R]):
    """Entries in the buffer, in flight, and on their way to the terminal record handler, by number and by bytes."""

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._terminal: dict[int, RequestEntryWrapper[R]] = {}
        self.entries = 0
        """How many there are."""
        self.size_in_bytes = 0
        """Their bytes."""

    def has_room(self, size_in_bytes: int) -> bool:
        """Whether an entry of that size may be added."""
        return self.entries < self._most_entries and self.size_in_bytes + size_in_bytes <= self._most_bytes

    @property
    def is_full_by_number(self) -> bool:
        """Whether no entry may be added, however small."""
        return self.entries >= self._most_entries

    @property
    def room(self) -> int:
        """Entries that may be added."""
        return self._most_entries - self.entries

    @property
    def room_bytes(self) -> int:
        """Bytes that may be added."""
        return self._most_bytes - self.size_in_bytes

    def forget(self, entries: int, size_in_bytes: int) -> None:
        """So many are settled."""
        self.entries -= entries
        self.size_in_bytes -= size_in_bytes

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
