"""Lets Spark's streaming source process end in order."""

import os
import signal
import sys
import threading
from types import FrameType

_installed_in: int | None = None


def exit_on_sigterm() -> None:
    """Make SIGTERM leave by `sys.exit`, so that the reader's `stop()` runs.

    Spark asks the process to stop and sends SIGTERM at the same time, twice; by default that kills it before `stop()`
    in two of three cases. Only the main thread can install a handler; elsewhere this does nothing.
    """
    global _installed_in
    if _installed_in == os.getpid() or threading.current_thread() is not threading.main_thread():
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    _installed_in = os.getpid()


def ignore_sigterm() -> None:
    """Let nothing interrupt the end that has begun, where `exit_on_sigterm` was called."""
    if _installed_in == os.getpid() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
