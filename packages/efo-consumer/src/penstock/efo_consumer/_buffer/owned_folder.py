"""Temporary folders that belong to a process: a lock that ends with it, however it ends, shows whether it lives."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.rpc import is_answered, lock_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import TextIOWrapper

MEMORY = Path("/dev/shm")  # noqa: S108  # each reader makes a folder of its own in it
"""Where Linux keeps files in memory."""

READER_PREFIX: Final = "penstock-reader-"
"""Prefix of a reader's folder, which holds its Unix socket and its batches in shared memory."""
SOCKET: Final = "socket"
"""Name of the Unix socket in a reader's folder."""

_LOCK: Final = "in-use"
# Folders of versions before the lock: a reader that starts listens within seconds of making its folder.
_UNLOCKED_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Leftover:
    """A folder of a reader, with its socket and shared memory, whose process is dead.

    Attributes:
        path: the folder.
        nbytes: of its files.
        age_seconds: since it was changed last.
    """

    path: Path
    nbytes: int
    age_seconds: float

    def remove(self) -> bool:
        """Remove it, unless it is in use by now. Returns whether it is gone."""
        return _remove(self.path)


def find_leftovers(parents: Sequence[Path] | None = None) -> list[Leftover]:
    """Find what dead processes of this user left behind; nothing is changed.

    Args:
        parents: where to look; shared memory and the system's temporary folder when left out.
    """
    found = []
    for parent in dict.fromkeys(parents or (MEMORY, Path(tempfile.gettempdir()))):
        for folder in _own_folders(parent):
            with suppress(OSError):
                lock = _lock(folder)
                if lock is None:
                    continue
                os.close(lock)
                sizes = [file.lstat().st_size for file in folder.rglob("*") if not file.is_dir()]
                age = max(0.0, time.time() - folder.lstat().st_mtime)
                found.append(Leftover(folder, sum(sizes), age))
    return found


def remove_leftovers(parents: Sequence[Path] | None = None) -> None:
    """Remove what `find_leftovers` finds. What cannot be removed stays."""
    for one in find_leftovers(parents):
        one.remove()


def new_folder(parent: Path) -> tuple[Path, TextIOWrapper]:
    """Make a folder that only this user can enter, and the open file in it whose lock says that it is in use.

    Raises:
        OSError: it cannot be made there.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=READER_PREFIX, dir=parent))
        # Held for as long as the process lives, however it ends.
        lock = (folder / _LOCK).open("w")
        lock_file(lock, wait=True)
        if folder.exists():
            return folder, lock
        # Another process took it for abandoned just before.
        lock.close()


def _own_folders(parent: Path) -> Iterator[Path]:
    for folder in parent.glob(f"{READER_PREFIX}*"):
        with suppress(OSError):  # gone meanwhile
            about = folder.lstat()
            if about.st_uid == os.getuid() and stat.S_ISDIR(about.st_mode):
                yield folder


def _lock(folder: Path) -> int | None:
    """Lock the folder of a process that is dead: a file descriptor; None if the process lives."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        is_old = time.time() - folder.lstat().st_mtime > _UNLOCKED_SECONDS
        if not is_old or is_answered(folder / SOCKET):
            return None
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        is_ours = lock_file(lock)
    except OSError:
        is_ours = False
    if not is_ours:
        os.close(lock)
        return None
    return lock


def _remove(folder: Path) -> bool:
    with suppress(FileNotFoundError):
        try:
            lock = _lock(folder)
            if lock is None:
                return False
            try:
                shutil.rmtree(folder)
            finally:
                os.close(lock)
        except FileNotFoundError:
            raise
        except OSError:
            return False
    return not folder.exists()
