"""What a process sets for itself: locks that end with it, and how often it looks for garbage."""

import errno
import gc
import os
from typing import IO, Any

# By Python's own thresholds, 700, 10 and 10, a reader of 8,000 shards looked through all of its millions of objects for
# half of its time: events that wait for their query to take them are old by then, and count as what came to stay. The
# product bounds what cycles may hold meanwhile, two and a half million objects.
_THRESHOLDS = (50_000, 10, 5)


def collect_seldom() -> None:
    """Let this process look for garbage less often: one that keeps millions of objects for as long as it runs.

    What no cycle holds is freed at once as ever. For processes that are ours: a service, a query's source.
    """
    gc.set_threshold(*_THRESHOLDS)


try:
    import fcntl
except ImportError:  # pragma: no cover  # not on Windows
    fcntl = None  # type: ignore[assignment]


def lock_file(file: int | IO[Any], *, wait: bool = False) -> bool:
    """Lock an open file against whoever opens it beside, in other processes too, until it is closed.

    Args:
        file: the open file, or its descriptor.
        wait: for whoever has it locked.

    Returns:
        whether it is locked now; without `wait`, False if another has it.

    Raises:
        OSError: no file can be locked there, or on this system.
    """
    if fcntl is None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_file(file: int | IO[Any]) -> None:
    """Let another have it before the file is closed, which a process that this one forked may have open too."""
    fcntl.flock(file, fcntl.LOCK_UN)
