"""What a destination brings so that its writers' states can be kept as bytes."""

from typing import Protocol, TypeVar

R = TypeVar("R")


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
