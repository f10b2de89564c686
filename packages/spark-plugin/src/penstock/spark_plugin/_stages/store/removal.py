"""Removing a folder that others may swap meanwhile: by descriptors of directories, which follow no link."""

import contextlib
import os
import shutil
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_LARGEST_MARKER = 1_000_000
HIDDEN = ".gone-"
"""How the names begin of folders that are being removed."""


class Removal:
    """A folder two levels below a root, held by descriptors: what is looked at is what is removed.

    Neither the folder nor its parent may be a link. Where they are, or there is no folder, it holds nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parent: int | None = None
        self._folder: int | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            root = os.open(self._path.parent.parent, os.O_RDONLY)
            try:
                self._parent = os.open(self._path.parent.name, _DIRECTORY, dir_fd=root)
                self._folder = os.open(self._path.name, _DIRECTORY, dir_fd=self._parent)
            finally:
                os.close(root)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for opened in (self._parent, self._folder):
            if opened is not None:
                os.close(opened)

    def names(self) -> list[str]:
        """Of what lies in the folder."""
        return [] if self._folder is None else os.listdir(self._folder)

    def read(self, name: str) -> bytes | None:
        """A small file of the folder; None if there is none, or it is a link."""
        if self._folder is None:
            return None
        try:
            file = os.open(name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0), dir_fd=self._folder)
        except OSError:
            return None
        with os.fdopen(file, "rb") as opened:
            return opened.read(_LARGEST_MARKER)

    def remove(self, first: str) -> int:
        """Remove the folder, of its files the one named `first` before all others; how many bytes it had.

        Nothing is removed if another folder has its name by now.
        """
        if self._parent is None or self._folder is None:
            return 0
        # Under a name that nobody knows: whatever takes the old name from now on is not touched.
        hidden = f"{HIDDEN}{uuid.uuid4().hex}"
        try:
            os.rename(self._path.name, hidden, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        except OSError:
            return 0
        if not os.path.samestat(os.stat(hidden, dir_fd=self._parent, follow_symlinks=False), os.fstat(self._folder)):
            with contextlib.suppress(OSError):  # that name may be taken again
                os.rename(hidden, self._path.name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
            return 0
        size_bytes = 0
        for _, _, files, opened in os.fwalk(dir_fd=self._folder):
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    size_bytes += os.stat(file, dir_fd=opened, follow_symlinks=False).st_size
        with contextlib.suppress(FileNotFoundError):
            os.unlink(first, dir_fd=self._folder)
        shutil.rmtree(hidden, ignore_errors=True, dir_fd=self._parent)
        return size_bytes
