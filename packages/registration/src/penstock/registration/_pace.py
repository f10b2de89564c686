"""How fast Kinesis may be asked about consumers, decided without I/O."""

from __future__ import annotations

from collections import deque
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
_WINDOW_SECONDS: Final = 1.0


class CallPace:
    """Keeps the calls of a process below Kinesis's limits.

    Others may call, too: being throttled nevertheless is a matter of back-off.
    """

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], deque[float]] = {}

    def reserve(self, operation: str, stream: str, now: float) -> float:
        """Take the next free place. Returns the seconds to wait before the call; 0 when there is room now."""
        if operation not in _CALLS_PER_SECOND:
            return 0.0
        limit, of_stream = _CALLS_PER_SECOND[operation]
        self._forget(now)
        sent = self._sent.setdefault((operation, stream if of_stream else ""), deque(maxlen=limit))
        at = now if len(sent) < limit else max(now, sent[0] + _WINDOW_SECONDS)
        sent.append(at)
        return at - now

    def _forget(self, now: float) -> None:
        """Streams come and go: what has no call within the last second limits nothing."""
        over = [key for key, sent in self._sent.items() if sent[-1] + _WINDOW_SECONDS <= now]
        for key in over:
            del self._sent[key]
