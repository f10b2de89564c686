"""The audit log: a line of JSON for each call that is refused, and for each change."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics

from penstock.rpc._own_files import open_regular
from penstock.rpc.errors import RpcOptionError

if TYPE_CHECKING:
    from typing import TextIO

_log = logging.getLogger("penstock.rpc")
_LOST = metrics.get_meter("penstock.rpc").create_counter(
    "auditLinesLost", unit="{line}", description="Lines of the audit log that could not be written"
)
_LINES_AT_ONCE: Final = 100
_LINES_A_SECOND: Final = 5.0
"""In the long run, for each caller and event: a flood of calls neither fills a disk nor hides other lines."""
_LONGEST_TEXT: Final = 300
_MOST_TEXT_BYTES: Final = 500
_MOST_RESOURCE_BYTES: Final = 1_500
"""As JSON. A line has at most 4 kB."""
_CREDENTIALS: Final = re.compile(r"(?<=//)[^/?#\s]*@")


class _Room:
    """How many lines may be written now, and how many were not.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._left = float(_LINES_AT_ONCE)
        self._at = now
        self.further = 0

    def take(self, now: float) -> bool:
        """Whether one more is written; it is counted otherwise."""
        self._left = min(_LINES_AT_ONCE, self._left + (now - self._at) * _LINES_A_SECOND)
        self._at = now
        if self._left < 1:
            self.further += 1
            return False
        self._left -= 1
        return True


class AuditLog:
    """Writes lines to a file, which only its owner can read, or to standard output. Safe to use from several threads.

    A file that was moved away, as by logrotate, is created again. If a line cannot be written, the log of the service
    says so, and calls are still answered.

    Args:
        place: path of the file, or `-` for standard output.
        service: written into each line.
        clock: monotonic seconds.

    Raises:
        RpcOptionError: the file cannot be written.
    """

    def __init__(self, place: str, service: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = None if place == "-" else Path(place)
        self._service = service
        self._clock = clock
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self._rooms: dict[tuple[str, str], _Room] = {}
        self._failed = False
        try:
            self._open()
        except OSError as error:
            raise RpcOptionError("audit_log", f"cannot write {place}: {error.strerror}") from error

    def close(self) -> None:
        """Write what is left, and close the file."""
        with self._lock:
            for key in self._rooms:
                self._tell_uncounted(key)
            if self._file is not None and self._path is not None:
                self._file.close()
            self._file = None

    def _tell_uncounted(self, key: tuple[str, str]) -> None:
        room = self._rooms[key]
        further, room.further = room.further, 0
        if further:
            self._put({"event": key[0], "who": key[1], "further": further})

    def write(
        self,
        event: str,
        *,
        who: str,
        address: str,
        outcome: str,
        method: str = "",
        reason: str = "",
        what: Sequence[tuple[str, str]] = (),
    ) -> None:
        """A call was refused, or it changed something or failed to. `what` has (kind, name) of each resource."""
        key = event, _shown(who)
        with self._lock:
            if not self._rooms.setdefault(key, _Room(self._clock())).take(self._clock()):
                return
        resources: dict[str, list[str]] = {}
        left = _MOST_RESOURCE_BYTES
        for number, (kind, name) in enumerate(what):
            left -= len(json.dumps(_shown(name))) + 2
            if left < 0:
                resources["more"] = [f"… and {len(what) - number:,} more"]
                break
            resources.setdefault(kind, []).append(_shown(name))
        origin = {"who": key[1], "from": _shown(address) or "unix", "method": _shown(method)}
        with self._lock:
            self._tell_uncounted(key)
            self._put({"event": event, **origin, **resources, "outcome": outcome, "reason": _shown(reason)})

    def _put(self, line: Mapping[str, object]) -> None:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        full = {"time": moment, "service": self._service, **{key: value for key, value in line.items() if value}}
        try:
            file = self._open()
            # ASCII alone: nothing in it ends a line, or commands a terminal.
            file.write(json.dumps(full, ensure_ascii=True) + "\n")
            file.flush()
            self._failed = False
        except (OSError, ValueError) as error:
            _LOST.add(1)
            if not self._failed:
                _log.error("the audit log is not written: %s", error)
            self._failed = True

    def _open(self) -> TextIO:
        if self._path is None:
            return sys.stdout
        if self._file is not None:
            with suppress(OSError):
                found, own = os.stat(self._path), os.fstat(self._file.fileno())
                if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                    return self._file
            self._file.close()
            self._file = None
        number = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode=0o600)
        self._file = os.fdopen(number, "a", encoding="ascii")
        return self._file


def _shown(text: str) -> str:
    text = _CREDENTIALS.sub("***@", text[: 4 * _LONGEST_TEXT])[:_LONGEST_TEXT]
    while len(json.dumps(text)) > _MOST_TEXT_BYTES:
        text = text[: len(text) // 2]
    return text
