"""A directory of readers for one user and machine, where there is no service: a file for each reader."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from platformdirs import user_state_path

from penstock.registration._readers.directory import TIME_TO_LIVE_SECONDS, AnnouncedReader, AnnouncedShard
from penstock.registration.errors import RegistrationError, RegistryUnavailableError

_FORGOTTEN_SECONDS: Final = 86_400.0
_MOST_BYTES: Final = 2_000_000


class ReaderFiles:
    """Readers of this user on this machine, as files that nobody else may read: they hold tokens.

    Args:
        folder: where; `readers` in the user's state directory by default. Made when something is announced.
        wall_clock: seconds since the epoch, by which files are dated.
    """

    def __init__(self, folder: Path | None = None, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._folder = folder or user_state_path("penstock") / "readers"
        self._wall_clock = wall_clock

    async def announce(self, reader: AnnouncedReader) -> float:
        """See ReaderDirectory.

        Raises:
            RegistryUnavailableError: the folder cannot be written.
        """
        path = self._path(reader)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            document = asdict(reader) | {"begun": self._begun(path) or self._wall_clock()}
            part = path.with_suffix(".part")
            # Only its owner may read it, from the first byte on.
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(document, file)
            now = self._wall_clock()
            os.utime(part, (now, now))
            part.replace(path)
            self._tidy(now)
        except OSError as error:
            raise self._unusable(error) from error
        return TIME_TO_LIVE_SECONDS

    async def withdraw(self, reader: AnnouncedReader) -> None:
        """See ReaderDirectory."""
        try:
            self._path(reader).unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    async def readers(self) -> Sequence[AnnouncedReader]:
        """See ReaderDirectory. A file that holds no reader is left out."""
        now = self._wall_clock()
        try:
            found = [self._announced(path, now) for path in self._folder.glob("*.json")]
        except OSError as error:
            raise self._unusable(error) from error
        return sorted(filter(None, found), key=lambda one: (one.job_id, one.reader_id))

    async def close(self) -> None:
        """See ReaderDirectory."""

    def _path(self, reader: AnnouncedReader) -> Path:
        name = "".join(one for one in reader.reader_id if one.isalnum() or one in "-_")
        return self._folder / f"{name}.json"

    def _begun(self, path: Path) -> float | None:
        document = self._read(path)
        return None if document is None else float(document["begun"])

    def _announced(self, path: Path, now: float) -> AnnouncedReader | None:
        try:
            silent = now - path.stat().st_mtime
        except FileNotFoundError:
            return None  # its driver has withdrawn it since the folder was listed
        document = self._read(path) if silent <= TIME_TO_LIVE_SECONDS else None
        reader = None if document is None else _reader(document)
        if document is None or reader is None:
            return None
        age = now - float(document["begun"])
        return replace(reader, age_seconds=max(0.0, age), silent_seconds=max(0.0, silent))

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            with path.open() as file:
                document = json.loads(file.read(_MOST_BYTES))
            return document if isinstance(document, dict) and isinstance(document["begun"], float) else None
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def _tidy(self, now: float) -> None:
        """Remove what drivers that were killed left behind long ago."""
        for path in self._folder.iterdir():
            try:
                if now - path.stat().st_mtime > _FORGOTTEN_SECONDS:
                    path.unlink()
            except FileNotFoundError:
                continue  # another driver was faster

    def _unusable(self, error: OSError) -> RegistryUnavailableError:
        return RegistryUnavailableError(where=f"the folder {self._folder}", reason=error.strerror or str(error))


def _reader(document: dict[str, Any]) -> AnnouncedReader | None:
    try:
        known = {name: document[name] for name in AnnouncedReader.__dataclass_fields__}
        shards = tuple(AnnouncedShard(**one) for one in document["worst_shards"])
        streams = tuple(map(str, document["stream_names"]))
        return AnnouncedReader(**known | {"stream_names": streams, "worst_shards": shards})
    except (KeyError, TypeError, RegistrationError):
        return None
