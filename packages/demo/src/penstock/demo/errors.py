"""The error of the demo."""

from pathlib import Path


class DemoError(Exception):
    """The demo cannot start, or a part of it ended before its time.

    Cure: Follow the message. It names the log file of a process that ended; `hatch run demo --keep` leaves everything
    else too.
    """


def ended_early(name: str, code: int, log: Path) -> DemoError:
    """The error for a process that ended before its time, with its exit code (negative: a signal) and its log file."""
    return DemoError(f"the {name} ended with {code}; its last words are in {log}")
