"""What a writer leaves behind for its successor."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.async_sink._core.entries import RequestEntryWrapper

R = TypeVar("R")


@dataclass(frozen=True)
class BufferedRequestState(Generic[R]):
    """Entries that were written and not acknowledged, with their sizes, in the order of writing."""

    entries: tuple[tuple[R, int], ...] = ()
    """(entry, bytes) pairs."""

    @property
    def state_size(self) -> int:
        """Bytes of all entries."""
        return sum(size for _, size in self.entries)

    @classmethod
    def of(cls, wrappers: Iterable[RequestEntryWrapper[R]]) -> "BufferedRequestState[R]":
        """The state that holds these entries."""
        return cls(tuple((wrapper.entry, wrapper.size_in_bytes) for wrapper in wrappers))
