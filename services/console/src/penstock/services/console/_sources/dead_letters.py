"""Folders of dead letters: what they hold, and writing them again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.async_sink.dead_letters import DeadLetter, RedriveSummary, read_dead_letters, redrive
from penstock.async_sink.errors import DeadLetterFileError, RedriveInProgressError
from penstock.services.console.errors import ConsoleError

if TYPE_CHECKING:
    from penstock.aws import AwsOptions

MOST_LETTERS: Final = 100
"""Letters on a page."""
MOST_COUNTED: Final = 200_000
"""Letters of a folder that are counted; of those behind them a page says that there are more."""
_MOST_CHARACTERS: Final = 4_000


@dataclass(kw_only=True)
class LettersOfStream:
    """What a folder holds for a stream."""

    folder: str
    stream: str | None
    open: int = 0
    """Letters that were not written again."""
    redriven: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    """Open letters, by the service's error code, or by what was wrong."""
    newest: str = ""


@dataclass(kw_only=True)
class Folder:
    """A folder of dead letters as it is now."""

    name: str
    streams: list[LettersOfStream] = field(default_factory=list)
    has_more: bool = False
    """Whether it holds more than were counted."""
    problem: str = ""
    """Why it cannot be read."""


class DeadLetters:
    """The folders by name.

    Args:
        folders: with their names.
        aws: how to reach Kinesis; None: nothing is written again.
    """

    def __init__(self, folders: Sequence[tuple[str, Path]], aws: AwsOptions | None) -> None:
        self._folders = dict(folders)
        self._aws = aws

    @property
    def can_redrive(self) -> bool:
        """Whether it is known how to reach Kinesis."""
        return self._aws is not None

    def knows(self, folder: str) -> bool:
        """Whether there is a folder of this name."""
        return folder in self._folders

    async def count(self) -> list[Folder]:
        """What each folder holds."""
        return [await asyncio.to_thread(_count, name, path) for name, path in self._folders.items()]

    async def look(self, folder: str, stream: str | None, *, after: int = 0) -> list[DeadLetter]:
        """The next open letters of a stream behind so many, with data that is not longer than a page can bear.

        Raises:
            ConsoleError: the folder cannot be read.
        """
        path = self._folders[folder]

        def look() -> list[DeadLetter]:
            chosen = (one for one in read_dead_letters(path) if one.stream == stream and not one.is_redriven)
            shown = islice(chosen, after, after + MOST_LETTERS)
            return [replace(one, line="", data=one.data and one.data[:_MOST_CHARACTERS]) for one in shown]

        try:
            return await asyncio.to_thread(look)
        except (OSError, DeadLetterFileError) as error:
            raise ConsoleError(_words(folder, error)) from error

    async def redrive(self, folder: str, stream: str) -> str:
        """Write the letters of a stream again. Returns what became of them, in words.

        Raises:
            ConsoleError: the letters cannot be written again.
            AwsError, SinkError: Kinesis does not answer, or refuses.
        """
        if self._aws is None:
            raise ConsoleError("start the console with --region, or another setting of how to reach Kinesis")
        aws, path, why = self._aws, self._folders[folder], Counter[str]()

        def write() -> RedriveSummary:
            return redrive(
                path,
                aws,
                wanted=lambda one: one.stream == stream,
                report=lambda _, words: why.update([words]),
            )

        try:
            summary = await asyncio.to_thread(write)
        except (OSError, DeadLetterFileError) as error:
            raise ConsoleError(_words(folder, error)) from error
        except RedriveInProgressError as error:
            raise ConsoleError(f"another process redrives the letters of {folder}: wait until it has ended") from error
        said = [f"{summary.written.total()} written"]
        if summary.failed:
            said += [f"{count} refused again, such as {words}" for words, count in why.most_common(1)]
        said += [f"{count} stay: a letter {reason}" for reason, count in summary.kept.items()]
        return ", ".join(said)


def _count(name: str, path: Path) -> Folder:
    folder = Folder(name=name)
    found: dict[str | None, LettersOfStream] = {}
    try:
        for number, one in enumerate(read_dead_letters(path)):
            if number >= MOST_COUNTED:
                folder.has_more = True
                break
            some = found.setdefault(one.stream, LettersOfStream(folder=name, stream=one.stream))
            some.newest = max(some.newest, one.time)
            if one.is_redriven:
                some.redriven += 1
            else:
                some.open += 1
                some.causes[one.code or one.why] += 1
    except FileNotFoundError:
        # A job makes it with its first letter.
        pass
    except (OSError, DeadLetterFileError) as error:
        folder.problem = _words(name, error)
    folder.streams = sorted(found.values(), key=lambda one: (-one.open, one.stream or ""))
    return folder


def _words(name: str, error: OSError | DeadLetterFileError) -> str:
    # Where the folder lies on this machine concerns nobody who looks.
    if isinstance(error, DeadLetterFileError):
        return f"line {error.number} of {error.file.name} in {name} is not a dead letter"
    return f"the folder {name} cannot be used: {error.strerror}"
