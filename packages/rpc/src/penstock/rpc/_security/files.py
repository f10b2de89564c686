"""Files that change while a process runs: certificates, authorities, tokens, principals."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.rpc.errors import RpcOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from opentelemetry.metrics import Counter

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int, int] | None, ...]
KEPT_SECONDS: Final = 60.0
"""How long what a file said counts after the file could be read last, once it cannot be read any more."""
_AGAIN_SECONDS: Final = 1.0
"""Between two attempts to read a file that could not be read: what was in the way, as a lack of files, may be gone."""
_log = logging.getLogger("penstock.rpc")


def stamp_of(files: Iterable[Path | None]) -> Stamp:
    """What differs when one of the files was written or replaced; links are followed, as mounted secrets are links."""
    return tuple(None if file is None else _stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    # The time of change, too: of rights, and of contents whose time was set back.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def read_file(path: Path | None, option: str) -> bytes | None:
    """The content; None without a path.

    Raises:
        RpcOptionError: it cannot be read; names the option.
    """
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise RpcOptionError(option, f"cannot read {path}: {error.strerror}") from error


class FileChanges:
    """Whether files have changed since they were read last. For one thread at a time.

    A change that cannot be taken over is tried again every second: the cause, such as a lack of open files, may be gone
    although the files are as before.

    Args:
        look: gives a value that differs when a file has changed, as `stamp_of` does.
        kept: what the log says while a change is not taken over, such as "the certificates stay as they were".
        clock: monotonic seconds.
        errors: counts changes that could not be taken over.
    """

    def __init__(
        self,
        look: Callable[[], Stamp],
        kept: str,
        clock: Callable[[], float] = time.monotonic,
        errors: Counter | None = None,
    ) -> None:
        self._look = look
        self._kept = kept
        self._clock = clock
        self._errors = errors
        self._seen: Stamp | None = look()
        self._failed: Stamp | None = None
        self._failing_since: float | None = None
        self._again_at = 0.0

    def take_over(self, read: Callable[[], T]) -> T | None:
        """Give what `read` makes of changed files.

        None while they are as before, while `read` raises, and where they change while they are read, as what was read
        may not fit together then: the next call looks again.
        """
        stamp, now = self._look(), self._clock()
        if stamp == self._seen:
            self._failed = self._failing_since = None
            return None
        if stamp == self._failed and now < self._again_at:
            return None
        try:
            made = read()
        except Exception as error:
            if stamp != self._failed:
                _log.error("%s: %s", self._kept, error)
                if self._errors is not None:
                    self._errors.add(1)
            self._failed, self._again_at = stamp, now + _AGAIN_SECONDS
            self._failing_since = now if self._failing_since is None else self._failing_since
            return None
        if self._look() != stamp:
            return None
        self._seen, self._failed, self._failing_since = stamp, None, None
        return made

    def is_over(self) -> bool:
        """Whether changes could not be taken over for `KEPT_SECONDS`. The files then count as changed."""
        if self._failing_since is None or self._clock() - self._failing_since <= KEPT_SECONDS:
            return False
        self._seen = None
        return True


class RereadFile(Generic[T]):
    """What a file says, read again when it has changed. Safe to use from several threads.

    A file that cannot be read, or is malformed, changes nothing for `KEPT_SECONDS`, as it may be in the middle of a
    change; after that it counts as empty.

    Args:
        path: the file.
        option: the setting that names it, for errors.
        parse: makes a value of its bytes, or raises RpcOptionError.
        nothing: the value that counts when the file can no longer be read.
        noun: one of what it holds, for the log.
        errors: counts changed files that could not be read.
        clock: monotonic seconds.

    Raises:
        RpcOptionError: the file cannot be read or is malformed; only when the object is made.
    """

    def __init__(
        self,
        path: Path,
        option: str,
        parse: Callable[[bytes], T],
        nothing: T,
        *,
        noun: str,
        errors: Counter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._nothing = nothing
        self._noun = noun
        self._lock = threading.Lock()
        kept = f"the {noun}s stay as they were, for {KEPT_SECONDS:.0f} s at most"
        self._changes = FileChanges(lambda: stamp_of([path]), kept, clock, errors)
        self._read: Callable[[], T] = lambda: parse(read_file(path, option) or b"")
        self._value = self._read()

    def value(self) -> T:
        """What the file says now."""
        with self._lock:
            found = self._changes.take_over(self._read)
            if found is not None:
                self._value = found
                if found != self._nothing:
                    _log.info("took over the changed %ss of %s", self._noun, self._path)
                else:
                    _log.warning("%s holds no %s any more: all of them are revoked", self._path, self._noun)
            elif self._value != self._nothing and self._changes.is_over():
                self._value = self._nothing
                words = "%s cannot be read for %.0f s: no %s is taken any more"
                _log.error(words, self._path, KEPT_SECONDS, self._noun)
            return self._value
