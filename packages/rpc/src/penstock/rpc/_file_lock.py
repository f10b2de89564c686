"""Locks that end with their process, however that ends."""

import errno
import os
from typing import IO, Any

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
