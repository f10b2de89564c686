"""The books of one HTTP/2 stream's flow-control window: what to credit, and when. No I/O."""

from __future__ import annotations


class ReceiveWindow:
    """Keeps the bytes that wait for the consumer within the window.

    An event is credited when the consumer takes it. The one exception is a frame longer than what is left of the
    window: it could never complete, so its beginning is credited while no whole event waits before it. What is held
    is thus bounded by the window, plus one frame.

    Not safe to share between threads: the caller locks.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._owed = 0
        self._waiting = 0
        self._advanced = 0

    @property
    def owed_bytes(self) -> int:
        """Bytes received and not credited."""
        return self._owed

    def received(self, chunk_bytes: int, completed: list[int], pending_bytes: int) -> tuple[int, list[int]]:
        """Enter a chunk.

        Args:
            chunk_bytes: its length.
            completed: the wire bytes of each event that it completed.
            pending_bytes: bytes that no event accounts for yet.

        Returns:
            The bytes to credit now, and for each completed event the bytes to credit when it is taken.
        """
        self._owed += chunk_bytes
        costs = []
        for wire_bytes in completed:
            cost = wire_bytes - self._advanced
            self._advanced = 0
            self._waiting += cost
            costs.append(cost)
        return self._advance(pending_bytes), costs

    def taken(self, cost: int, pending_bytes: int) -> int:
        """Enter that the consumer took an event; the bytes to credit now."""
        self._waiting -= cost
        self._owed -= cost
        return cost + self._advance(pending_bytes)

    def _advance(self, pending_bytes: int) -> int:
        if self._waiting or self._owed * 2 <= self._size_bytes:
            return 0
        credit = pending_bytes - self._advanced
        self._advanced = pending_bytes
        self._owed -= credit
        return credit
