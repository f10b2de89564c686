"""The last day of all series, in a file that outlives the console."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from penstock.services.console.errors import ConsoleOptionError

if TYPE_CHECKING:
    from penstock.services.console._sources.history import Series

SLOT_SECONDS: Final = 300
SLOTS: Final = 288
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS points (
    series INTEGER NOT NULL, slot INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (series, slot)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS points_by_slot ON points (slot);
"""
_log = logging.getLogger(__name__)


class DayHistory:
    """The largest value of each series in each five minutes of a day; as `History` for those who read it.

    Between enter and exit it is written every five minutes, and once more at the end: what a console that is killed had
    taken since is not there. A disk that is full keeps the pages from nothing: it is in the log, and tried again.

    Args:
        path: of the SQLite file; made if it is not there, for its owner alone.
        max_series: that are taken in five minutes.
        wall_clock: seconds since the epoch.
        sleep: waits for seconds.

    Raises:
        ConsoleOptionError: the file cannot be used.
    """

    points: Final = SLOTS
    seconds: Final = float(SLOT_SECONDS)

    def __init__(
        self,
        path: Path,
        *,
        max_series: int = 20_000,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._max_series = max_series
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._largest: dict[Series, float] = {}
        self._slot = self._now()
        self._lock = threading.Lock()
        # Apart: who takes values waits for no disk.
        self._file_lock = threading.Lock()
        self._task: asyncio.Task[None] | None = None
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            self._file = sqlite3.connect(path, check_same_thread=False, timeout=5.0)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            words = error.strerror if isinstance(error, OSError) else str(error)
            raise ConsoleOptionError("history_file", f"{path} cannot be used: {words}") from error

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._write_again(), name="write the history")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.write()
        self._file.close()

    def add(self, values: Mapping[Series, float | None]) -> None:
        """Take values; those that are not known are left out."""
        with self._lock:
            if not self._largest:
                self._slot = self._now()
            for series, value in values.items():
                if value is not None and (series in self._largest or len(self._largest) < self._max_series):
                    self._largest[series] = max(value, self._largest.get(series, value))

    def values(self, series: Series) -> list[float | None]:
        """The values of a day, oldest first, the present five minutes last, None where one is not known."""
        now = self._now()
        first = now - SLOTS + 1
        found: list[float | None] = [None] * SLOTS
        query = "SELECT slot, value FROM points JOIN series ON series = id WHERE name = ? AND slot BETWEEN ? AND ?"
        # A file that was damaged since: the page shows what is known now.
        with self._file_lock, contextlib.suppress(sqlite3.Error):
            for slot, value in self._file.execute(query, (_name(series), first, now)):
                found[slot - first] = value
        with self._lock:
            present, index = self._largest.get(series), self._slot - first
        if present is not None and 0 <= index < SLOTS:
            found[index] = max(present, found[index] or present)
        return [] if all(value is None for value in found) else found

    async def write(self) -> None:
        """Write what was taken, and let go what is older than a day."""
        await asyncio.to_thread(self._write)

    async def _write_again(self) -> None:
        while True:
            await self._sleep(SLOT_SECONDS - self._wall_clock() % SLOT_SECONDS)
            await self.write()

    def _write(self) -> None:
        with self._lock:
            slot, taken, self._largest = self._slot, self._largest, {}
        with self._file_lock:
            try:
                with self._file:
                    names = [(_name(series),) for series in taken]
                    self._file.executemany("INSERT OR IGNORE INTO series (name) VALUES (?)", names)
                    self._file.executemany(
                        "INSERT INTO points SELECT id, ?, ? FROM series WHERE name = ? "
                        "ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
                        [(slot, value, _name(series)) for series, value in taken.items()],
                    )
                    self._file.execute("DELETE FROM points WHERE slot <= ?", (self._now() - SLOTS,))
                    self._file.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM points)")
            except sqlite3.Error as error:
                _log.warning("five minutes of the history are not kept: %s", error)

    def _now(self) -> int:
        return int(self._wall_clock() // SLOT_SECONDS)


def _name(series: Series) -> str:
    return json.dumps(series)
