"""How long a reader that went away is waited for: decided without I/O."""

from penstock.efo_consumer.errors import ReaderUnavailableError

PATIENCE_SECONDS = 60.0
"""A container that is started anew takes less."""
RETRY_SECONDS = 0.5
_PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
"""What a service that goes or comes answers; refusals, such as of a token, do not pass by themselves."""


class Patience:
    """The time for which failures in a row are borne.

    Args:
        seconds: since the first of them; 0 bears none.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._failing_since: float | None = None

    @property
    def is_tried(self) -> bool:
        """Whether the last attempt failed."""
        return self._failing_since is not None

    def worked(self) -> None:
        """Note that something came."""
        self._failing_since = None

    def bears(self, error: ReaderUnavailableError, now: float) -> bool:
        """Note a failure, and tell whether to ask again after RETRY_SECONDS."""
        if not error.reason.startswith(_PASSING):
            return False
        if self._failing_since is None:
            self._failing_since = now
        return now + RETRY_SECONDS <= self._failing_since + self.seconds
