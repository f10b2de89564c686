"""Files that change while a process runs: certificates, authorities, tokens."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.rpc.errors import RpcOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp_of(files: Iterable[Path | None]) -> Stamp:
    """What differs when one of the files was written or replaced; links are followed, as mounted secrets are links."""
    return tuple(None if file is None else _stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_file(path: Path | None, option: str) -> bytes | None:
    """The content; None where there is no file to read.

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
