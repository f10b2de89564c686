"""Locks between drivers on one machine or file system. A lock ends with its process, even if that is killed."""

import contextlib
import os
import time
from pathlib import Path
from typing import IO

from penstock.rpc import lock_file, open_regular, unlock_file
from penstock.spark_plugin.errors import StoreUnusableError


class FileLock:
    """A lock on a file, held by one process at a time; see `StoreClaim`."""

    token = 0
    """Locks need no fencing: the operating system knows whether the holder lives."""
    holder_lives = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None
        self.holder = "another driver"

    def acquire(self) -> bool:
        """Take the lock; False if another holds it.

        Raises:
            StoreUnusableError: the lock's file cannot be made or written, or the file system has no locks.
        """
        while True:
            file = self._open()
            try:
                is_ours = lock_file(file)
            except OSError as error:
                file.close()
                reason = f"no file can be locked there: {error.strerror or error}"
                raise StoreUnusableError(str(self.path.parent), reason) from error
            if not is_ours:
                with contextlib.suppress(OSError):  # Windows lets only the holder read it
                    self.holder = file.read().strip() or self.holder
                file.close()
                return False
            if self._is(file):
                break
            file.close()  # its holder removed it: the next call makes another file
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}")
        file.flush()
        self._file = file
        return True

    def check(self) -> None:
        """Nothing to check: a lock is not lost."""

    def _open(self) -> IO[str]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.fdopen(open_regular(self.path, os.O_RDWR | os.O_CREAT), "r+")
        except OSError as error:
            raise StoreUnusableError(str(self.path.parent), error.strerror or str(error)) from error

    def _is(self, file: IO[str]) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except OSError:
            return False

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, and remove its file first if asked to. Can be repeated."""
        file, self._file = self._file, None
        if file is not None:
            if remove:
                self.path.unlink(missing_ok=True)
            unlock_file(file)
            file.close()
