"""Locks between drivers on one machine or file system. The lock of a process ends with it, however that ends."""

import os
import time
from pathlib import Path
from typing import IO

from penstock.rpc import lock_file, unlock_file
from penstock.spark_plugin._stages.store.names import open_lock
from penstock.spark_plugin.errors import StoreUnusableError


class FileLock:
    """A lock on a file, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

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
                file.close()
                return False
            if self._is(file):
                break
            file.close()  # its holder removed it: whoever comes next makes another
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}")
        file.flush()
        self._file = file
        return True

    def holder(self) -> str:
        """Who wrote its name there last."""
        try:
            return self.path.read_text().strip() or "another driver"
        except OSError:
            return "another driver"

    def _open(self) -> IO[str]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return open_lock(self.path)
        except OSError as error:
            raise StoreUnusableError(str(self.path.parent), error.strerror or str(error)) from error

    def _is(self, file: IO[str]) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Let another have it. Can be repeated."""
        file, self._file = self._file, None
        if file is not None:
            unlock_file(file)
            file.close()
