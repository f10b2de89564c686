"""What a process owns: files that other users must not read or change, locks on files, and its garbage collector.

The rules for files are here: a file is opened only if it is a regular file and not a link, and a private file gets its
mode also if it exists already.
"""

from __future__ import annotations

import errno
import gc
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

try:
    import fcntl
except ImportError:  # pragma: no cover  # not on Windows
    fcntl = None  # type: ignore[assignment]

_PRIVATE: Final = 0o600
# Windows has none of these. A FIFO without a writer would block `os.open` without O_NONBLOCK.
_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def open_regular(
    path: str | Path, flags: int = os.O_RDONLY, *, mode: int | None = None, dir_fd: int | None = None
) -> int:
    """Open a regular file that is not a link. Never blocks.

    Args:
        path: the file. Links in the path to its folder are followed.
        flags: of `os.open`.
        mode: the widest mode that the file may have: a new file is made with it, and an existing file loses all other
            bits. None: a new file gets the mode of the umask, and an existing file keeps its mode.
        dir_fd: descriptor of the folder that `path` is relative to.

    Returns:
        The descriptor.

    Raises:
        OSError: the file is a link or is not a regular file, its mode cannot be set, or it cannot be opened.
    """
    try:
        number = os.open(path, flags | _FLAGS, 0o666 if mode is None else mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _is_not_regular(path) from error
        raise
    try:
        _check(path, os.fstat(number), mode, lambda narrow: os.fchmod(number, narrow), lambda: os.fstat(number))
    except BaseException:
        os.close(number)
        raise
    return number


def make_database_private(path: Path) -> None:
    """Give a SQLite file and its journals the mode 0600. Make the file if it is missing.

    SQLite would make the file with the mode of the umask. The journals that it makes later have the mode of the file.

    Raises:
        OSError: a file is a link or is not a regular file, or its mode cannot be set; the error names the file.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + suffix)
        # Not by a descriptor: to close it would end the locks that SQLite has on the file in this process.
        with suppress(FileNotFoundError):
            _check(file, file.lstat(), _PRIVATE, file.chmod, file.lstat)


def make_folder(path: Path) -> None:
    """Make a folder, and the missing folders above it, with the mode 0700. A folder that exists keeps its mode."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def _check(
    path: str | Path,
    found: os.stat_result,
    mode: int | None,
    change: Callable[[int], None],
    look: Callable[[], os.stat_result],
) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _is_not_regular(path)
    # Windows has no such modes.
    if mode is None or os.name != "posix" or not stat.S_IMODE(found.st_mode) & ~mode:
        return
    with suppress(PermissionError):
        change(stat.S_IMODE(found.st_mode) & mode)
    if now := stat.S_IMODE(look().st_mode) & ~mode:
        reason = f"other users have access (mode bits {now:04o}), and this user cannot change that: as the owner of the"
        raise PermissionError(errno.EPERM, f"{reason} file run chmod {mode:04o}, or choose another path", str(path))


def _is_not_regular(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "it is a link, or not a regular file: give the path of the file itself", str(path))


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


_ANSWER_SECONDS = 1.0


def is_answered(path: Path) -> bool:
    """Whether a process listens on the Unix socket, and this user may call it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ANSWER_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True


# By Python's own thresholds, 700, 10 and 10, a reader of 8,000 shards looked through all of its millions of objects for
# half of its time: events that wait for their query to take them are old by then, and count as what came to stay. The
# product bounds what cycles may hold meanwhile, two and a half million objects.
_THRESHOLDS = (50_000, 10, 5)


def collect_seldom() -> None:
    """Let this process collect garbage less often, because it keeps millions of objects while it runs.

    Objects outside of cycles are freed at once, as always. For processes of Penstock: a service, the source of a query.
    """
    gc.set_threshold(*_THRESHOLDS)
