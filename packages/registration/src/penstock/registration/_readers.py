"""Readers inside drivers that are known at a moment: in memory, or as files of one user and machine."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from platformdirs import user_state_path

from penstock.registration.errors import RegistrationError, RegistrationOptionError, RegistryUnavailableError
from penstock.rpc import MIN_TOKEN_CHARACTERS, make_folder, open_regular

TIME_TO_LIVE_SECONDS: Final = 20.0
"""A reader that was not announced for so long is forgotten: four intervals of its driver."""
MOST_ANNOUNCED_SHARDS: Final = 20
"""That a reader names one by one: 10,000 readers have to fit into a registry's memory, and into an answer of it."""
_MOST_READERS: Final = 10_000
# A host and a port alone: whoever lists readers connects there, to no file and by no scheme of gRPC's.
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]{0,252}))(:[0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class AnnouncedShard:
    """A shard that a reader follows; numbers are since its session was opened."""

    stream_name: str
    """Or its ARN."""
    shard_id: str
    millis_behind_latest: int = -1
    """-1 when unknown."""
    records: int = 0
    bytes: int = 0
    buffered_bytes: int = 0
    """In memory now."""
    replays: int = 0
    """Ranges that were read again."""
    losses: int = 0
    """Positions whose records were gone, and that were skipped."""
    state: str = "reading"
    """What the shard is doing, as a shard reader calls it."""
    since_millis: int = 0
    """Since when, in milliseconds since the epoch; 0 if unknown."""
    cause: str = ""
    """Why, as text."""


@dataclass(frozen=True, kw_only=True)
class AnnouncedReader:
    """A reader inside a driver, or on an executor of it.

    Raises:
        RegistrationOptionError: a field is invalid; checked at construction, and named.
    """

    job_id: str
    """Identity of the job, chosen by it."""
    reader_id: str
    """Random, a new one for each run."""
    address: str
    """`host:port` of its gRPC server."""
    view_token: str = field(repr=False)
    """Bearer token that this server takes for listing its sessions, and for nothing else.

    Empty for a reader on an executor, whose tokens stay in its session: it is not to be asked, and its driver announces
    what the reader does for its query.
    """
    query: str = ""
    """What the query is called, for people."""
    owner: str = ""
    """Host and process of the driver."""
    stream_names: tuple[str, ...] = ()
    """Names or ARNs of the streams that it reads."""
    shards: int = 0
    """Shards that it follows, or has followed."""
    troubled_shards: int = 0
    """Shards that it cannot read at the moment."""
    millis_behind_latest: int = -1
    """The largest lag of its shards; -1 when unknown."""
    condition: str = ""
    """Condition of the shard with the most trouble, as text."""
    worst_shards: tuple[AnnouncedShard, ...] = ()
    """For a reader that is not asked: its shards in trouble or furthest behind, `MOST_ANNOUNCED_SHARDS` at most."""
    age_seconds: float = 0.0
    """Since it was first announced; of those that are listed."""
    silent_seconds: float = 0.0
    """Since it was announced last; of those that are listed."""

    @property
    def is_asked(self) -> bool:
        """Whether the reader lists its sessions to who looks."""
        return bool(self.view_token)

    def __post_init__(self) -> None:
        for name in ("job_id", "reader_id"):
            if not getattr(self, name):
                raise RegistrationOptionError(option=name, reason="is required")
        if not _ADDRESS.fullmatch(self.address):
            raise RegistrationOptionError(option="address", reason=f"{self.address[:200]!r} is not host:port")
        if self.is_asked and len(self.view_token) < MIN_TOKEN_CHARACTERS:
            raise RegistrationOptionError(
                option="view_token", reason=f"must be at least {MIN_TOKEN_CHARACTERS} characters"
            )
        if not {one.stream_name for one in self.worst_shards} <= set(self.stream_names):
            raise RegistrationOptionError(option="worst_shards", reason="must be shards of the announced stream_names")


class ReaderDirectory(Protocol):
    """Readers announce themselves here, and who looks lists them."""

    async def announce(self, reader: AnnouncedReader) -> float:
        """Make a reader known, or say how it fares. Returns the seconds until it is forgotten without another call.

        Raises:
            RegistrationError: the directory cannot be reached, or refuses.
        """
        ...

    async def withdraw(self, reader: AnnouncedReader) -> None:
        """Forget a reader that ends. Repeating it is not an error. Raises: RegistrationError."""
        ...

    async def readers(self) -> Sequence[AnnouncedReader]:
        """The readers that are known, ordered by job and reader. Raises: RegistrationError."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@dataclass
class _Known:
    reader: AnnouncedReader
    first: float
    last: float


class KnownReaders:
    """A directory in memory, for a service: after a restart readers announce themselves again.

    Args:
        time_to_live_seconds: a reader that was not announced for so long is forgotten.
        most: readers at a time; more are refused.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        time_to_live_seconds: float = TIME_TO_LIVE_SECONDS,
        most: int = _MOST_READERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._time_to_live_seconds = time_to_live_seconds
        self._most = most
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}

    async def announce(self, reader: AnnouncedReader) -> float:
        """See ReaderDirectory. Raises: RegistrationOptionError: there are too many readers."""
        now = self._now()
        key = reader.job_id, reader.reader_id
        known = self._known.get(key)
        if known is None and len(self._known) >= self._most:
            raise RegistrationOptionError(
                option="reader", reason=f"{self._most:,} readers are announced, and no more fit"
            )
        self._known[key] = _Known(reader, now if known is None else known.first, now)
        return self._time_to_live_seconds

    async def withdraw(self, reader: AnnouncedReader) -> None:
        """See ReaderDirectory."""
        self.forget(reader.job_id, reader.reader_id)

    def forget(self, job_id: str, reader_id: str) -> None:
        """Forget a reader, if it is known."""
        self._known.pop((job_id, reader_id), None)

    async def readers(self) -> Sequence[AnnouncedReader]:
        """See ReaderDirectory."""
        now = self._now()
        return [
            replace(one.reader, age_seconds=now - one.first, silent_seconds=now - one.last)
            for _, one in sorted(self._known.items())
        ]

    async def close(self) -> None:
        """See ReaderDirectory."""

    def _now(self) -> float:
        """The time; what is too old by then is forgotten."""
        now = self._clock()
        old = [key for key, one in self._known.items() if now - one.last > self._time_to_live_seconds]
        for key in old:
            del self._known[key]
        return now


_FORGOTTEN_SECONDS: Final = 86_400.0
_MOST_BYTES: Final = 2_000_000


class ReaderFiles:
    """Readers of this user on this machine, as files that other users cannot read: they contain tokens.

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
            make_folder(self._folder)
            document = asdict(reader) | {"begun": self._begun(path) or self._wall_clock()}
            part = path.with_suffix(".part")
            with os.fdopen(open_regular(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o600), "w") as file:
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
            with os.fdopen(open_regular(path)) as file:
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
