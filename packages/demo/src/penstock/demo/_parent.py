"""What a child process of the demo shares with its parent: it writes JSON lines, and ends when the demo does."""

import json
import os
import signal
import sys
import threading
from typing import Any


def tell(**values: Any) -> None:
    """Write one JSON line for the parent."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


class Parent:
    """What the parent asks for: to go on, and to stop."""

    def __init__(self) -> None:
        self.go = threading.Event()
        """Set when the parent wrote a line to the standard input, and at the stop."""
        self.stop = threading.Event()
        """Set at SIGTERM, and when the parent is gone: its end of the standard input is closed."""
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._watch, name="watch the parent", daemon=True).start()

    def _watch(self) -> None:
        while os.read(0, 1024):
            self.go.set()
        self._end()

    def _end(self) -> None:
        self.stop.set()
        self.go.set()
