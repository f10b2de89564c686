"""What a writer leaves behind for its successor."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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


class EntryCodec(Protocol[R]):
    """One entry as bytes and back, and its size.

    `state_to_bytes` and `state_from_bytes` do the rest: which codec and version wrote a state, and whether it is whole.
    """

    @property
    def name(self) -> str:
        """Tells the state of this destination from those of others. Never changes."""

    @property
    def version(self) -> int:
        """Of the bytes that `encode` makes, from 1; higher when they change."""

    def encode(self, entry: R) -> bytes:
        """The entry as bytes."""

    def decode(self, raw: bytes, version: int) -> R:
        """The entry that `encode` made bytes of, in this version or an older one.

        Raises:
            ValueError: the bytes are no entry.
        """

    def get_size_in_bytes(self, entry: R) -> int:
        """As the writer's method of that name counts."""
