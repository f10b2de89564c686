"""How long a browser may take over what it says and hears."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a connection may take its time for, in seconds; all are for the whole, not for each byte."""

    handshake: float = 10.0
    """Of TLS."""
    head: float = 20.0
    """From the connection, or from the last answer, to the end of a request's head."""
    form: float = 20.0
    """For the body of a request."""
    stuck: float = 20.0
    """In which an answer that waits for the browser has to come down to a fraction of the buffer (some 48 kB)."""


class Patience:
    """When a connection has kept the console waiting for too long.

    Args:
        limits: how long it may.
        now: monotonic seconds, when it was opened.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._answering = False
        self._stuck = False
        self._deadline: float | None = now + limits.head

    def asked(self) -> None:
        """A request's head is there: what follows is the console's own time."""
        self._answering = True
        if not self._stuck:
            self._deadline = None

    def answered(self, now: float) -> None:
        """The answer is made; it may still be on its way."""
        self._answering = False
        if not self._stuck:
            self._deadline = now + self._limits.head

    def stuck(self, now: float) -> None:
        """The browser reads more slowly than the console writes."""
        self._stuck = True
        self._deadline = now + self._limits.stuck

    def freed(self, now: float) -> None:
        """It has read most of what there was."""
        self._stuck = False
        self._deadline = None if self._answering else now + self._limits.head

    def is_over(self, now: float) -> bool:
        """Whether to end the connection."""
        return self._deadline is not None and now >= self._deadline
