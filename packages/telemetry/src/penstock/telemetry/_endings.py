"""Delivers what is left when a process ends, within a bound: at exit, by SIGTERM, and by SIGHUP from Spark."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Final

LAST_SECONDS: Final = 3.0
"""What the end of a process may wait for its telemetry."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


def bounded(work: Callable[[], object], seconds: float = LAST_SECONDS) -> bool:
    """Do it on a thread of its own, and wait no longer than that. Tells whether it is done.

    The thread that waits may hold a lock of a processor, when a signal caught it there: it must not do the work itself.
    """
    done = threading.Event()

    def run() -> None:
        try:
            work()
        finally:
            done.set()

    threading.Thread(target=run, name="penstock-telemetry-flush", daemon=True).start()
    return done.wait(seconds)


class Endings:
    """Calls `flush` before the process ends."""

    def __init__(self, flush: Callable[[], object], *, seconds: float = LAST_SECONDS) -> None:
        self._flush = flush
        self._seconds = seconds
        self._forgotten = False
        self._stand_by()
        in_child = weakref.WeakMethod(self._stand_by)
        os.register_at_fork(after_in_child=lambda: (again := in_child()) and again())
        atexit.register(self._at_exit)

    def _stand_by(self) -> None:
        # Python 3.12.0 to 3.12.2 start no thread at exit, and later ones do not promise to: it is there before, in a
        # forked child as well.
        self._asked, self._done = threading.Event(), threading.Event()
        if not self._forgotten:
            threading.Thread(target=self._deliver, name="penstock-telemetry-exit", daemon=True).start()

    def _deliver(self) -> None:
        done = self._done
        self._asked.wait()
        try:
            if not self._forgotten:
                self._flush()
        finally:
            done.set()

    def watch_signals(self) -> None:
        """Handle signals that would end the process at once; those that it handles or ignores are left alone.

        Only the main thread can. Spark's worker takes the handler away at each task, so this is called again.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._end)

    def forget(self) -> None:
        """Do nothing more at exit."""
        self._forgotten = True
        self._asked.set()
        atexit.unregister(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) == self._end:
                    signal.signal(number, signal.SIG_DFL)

    def _at_exit(self) -> None:
        self._asked.set()
        self._done.wait(self._seconds)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        bounded(self._flush, self._seconds)
        # The process ends as it would have done: others see which signal it was.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
