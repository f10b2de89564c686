"""What a dead letter handler needs of a writer."""

from typing import Any, Protocol, Self


class DeadLetterWriter(Protocol):
    """A writer of terminal records: every `AsyncSinkWriter` whose converter takes them is one."""

    async def __aenter__(self) -> Self:
        """Open."""

    async def write(self, element: Any) -> None:
        """Write one record."""

    async def flush(self, end_of_input: bool = False) -> None:
        """Wait until everything is acknowledged."""

    async def close(self) -> None:
        """End."""
