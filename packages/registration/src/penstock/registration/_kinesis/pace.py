"""How fast Kinesis may be asked about consumers, decided without I/O."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

_CALLS_PER_SECOND: Final = MappingProxyType(
    {
        "register_stream_consumer": (5, False),
        "deregister_stream_consumer": (5, True),
        "list_stream_consumers": (5, True),
        "describe_stream_consumer": (20, True),
        "describe_stream_summary": (20, False),
    }
)
"""Calls a second, and whether the limit is a stream's (else the account's), by the API reference."""
_MARGIN: Final = 1.1
"""Calls that were sent at the right distance may arrive closer together."""
_BURST_SHARE: Final = 0.2
"""Of a second's calls, how many may go at once: one of five, four of twenty."""


class CallPace:
    """Keeps the calls of a process below Kinesis's limits, at even distances.

    Others may call, too: being throttled nevertheless is a matter of back-off.
    """

    def __init__(self) -> None:
        # Per operation and stream: when the next call would be due, were all of them evenly spaced.
        self._due: dict[tuple[str, str], float] = {}
        self._asked_at = float("-inf")

    def reserve(self, operation: str, stream: str, now: float) -> float:
        """Take the next free place. Returns the seconds to wait before the call; 0 when there is room now."""
        if operation not in _CALLS_PER_SECOND:
            return 0.0
        limit, of_stream = _CALLS_PER_SECOND[operation]
        self._forget(now)
        distance = _MARGIN / limit
        key = (operation, stream if of_stream else "")
        due = max(now, self._due.get(key, now))
        self._due[key] = due + distance
        at_once = max(1, int(limit * _BURST_SHARE))
        return max(0.0, due - (at_once - 1) * distance - now)

    def _forget(self, now: float) -> None:
        """What is due already limits nothing; nor does what was due by a clock that was set back since."""
        if now < self._asked_at:
            self._due.clear()
        self._asked_at = now
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]
