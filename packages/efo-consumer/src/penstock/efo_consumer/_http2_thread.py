"""Keeps Python's state of awscrt's threads from one callback to the next."""

from __future__ import annotations

import ctypes
import sys
import threading

_local = threading.local()


def keep_thread_state() -> None:
    """Called in a callback: later callbacks on the same thread find its Python state as it was.

    CPython makes a state for a thread that it did not start when that thread enters Python, and destroys it when the
    thread leaves: with its stack's memory, mapped and unmapped, 8 microseconds for every chunk of 8 kB, as much as
    awscrt's own work on it. A thread that entered once more than it left keeps its state. It is one of awscrt's few
    event loops, which live as long as the process.
    """
    if sys.implementation.name != "cpython" or getattr(_local, "kept", False):
        return
    _local.kept = True
    # PyDLL calls with the interpreter's lock held, so this only counts up.
    ctypes.pythonapi.PyGILState_Ensure()
