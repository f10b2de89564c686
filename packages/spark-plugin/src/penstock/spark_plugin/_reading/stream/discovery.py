"""Streams that come to match a pattern while a query runs."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from penstock.efo_consumer import StreamPositions

_log = logging.getLogger(__name__)
_DEFAULT_SECONDS = 300.0
_END_SECONDS = 10.0
"""Longer than listing streams takes; a consumer that is waited for is registered or not by then."""


class StreamDiscovery:
    """Looks for further streams from time to time, by a thread of its own: the query goes on meanwhile.

    What fails is reported in a warning and by `failure`, and is done again at the next time.

    Args:
        look: Gives the streams that are not read yet, each at its beginning.
        prepare: Leases their consumers.
        interval: Seconds between two looks; None for the default, 0 for none.
    """

    def __init__(
        self,
        look: Callable[[], Mapping[str, StreamPositions]],
        prepare: Callable[[Sequence[str]], None],
        interval: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._prepare = prepare
        self._interval = _DEFAULT_SECONDS if interval is None else interval
        self._clock = clock
        self._due = clock() + self._interval
        self._thread: threading.Thread | None = None
        self._found: Mapping[str, StreamPositions] = {}
        self._is_closed = False
        self.failure = ""
        """Why streams that match may not be read yet; empty if the last look went well."""

    def news(self) -> Mapping[str, StreamPositions]:
        """What a look found since the last call, ready to be read; begins another one when that is due."""
        if self._thread is not None:
            if self._thread.is_alive():
                return {}
            self._thread = None
            found, self._found = self._found, {}
            return found
        if self._interval and self._clock() >= self._due:
            self._due = self._clock() + self._interval
            self._thread = threading.Thread(target=self._run, name="penstock stream discovery", daemon=True)
            self._thread.start()
        return {}

    def close(self) -> None:
        """Look no more. What is being leased meanwhile is waited for, so that it can be given back."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            found = self._look()
            if found and not self._is_closed:
                self._prepare(tuple(found))
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            if not self._is_closed:
                _log.warning("streams that match streamNamePattern by now are looked for again later: %s", error)
        else:
            self.failure, self._found = "", found
