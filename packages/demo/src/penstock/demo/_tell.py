"""What a child process of the demo shares: it tells JSON lines, and ends when the demo does."""

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


def stop_event() -> threading.Event:
    """Set at SIGTERM, and when the parent is gone: its end of the standard input is closed."""
    event = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: event.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.read(0, 1024):
            pass
        event.set()

    threading.Thread(target=watch, name="watch the parent", daemon=True).start()
    return event
