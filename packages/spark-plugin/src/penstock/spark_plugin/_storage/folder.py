"""Small objects as files of a mounted folder. Others may write there too: no link that they leave is followed."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyarrow import fs

from penstock.aws import StoredValue
from penstock.rpc import open_regular
from penstock.spark_plugin._for_stages import Listed, Objects, Place
from penstock.spark_plugin.errors import StoreUnusableError

_ID = ".id"
_GONE = ".gone-"
"""Names of folders that are being removed start with this."""
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class FolderObjects(Objects):
    """Files below a folder. A `write` over a file is atomic for a caller that holds a lock."""

    spark_reaches = True

    def __init__(self, root: Path) -> None:
        """Touch nothing yet."""
        self.root = root.absolute()
        self.place = Place(url=f"file://{self.root}")

    @property
    def name(self) -> str:
        return str(self.root)

    def below(self, path: str) -> "FolderObjects":
        return FolderObjects(self.root / path)

    def identity(self) -> str:
        # Not the path: on another host that may be another folder, and this folder may be mounted at another path.
        found = self.read(_ID)
        if found is None:
            self.write(_ID, secrets.token_hex(16).encode(), if_version=None)
            found = self.read(_ID)
        text = found.data.decode(errors="replace").strip() if found is not None else ""
        # A file that was emptied by hand still gives one identity to all drivers.
        return text or hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:32]

    def change_identity(self, identity: str) -> None:
        """Set an identity, for a copy of another folder."""
        found = self.read(_ID)
        self.write(_ID, identity.encode(), if_version=found and found.version)

    def is_copy_of(self, name: str) -> bool:
        """Whether another folder, by its path, has the same identity and is not this one mounted twice."""
        other, probe = FolderObjects(Path(name)), f".probe-{uuid.uuid4().hex}"
        try:
            mine, its = self.read(_ID), other.read(_ID)
            if mine is None or its is None or mine.data != its.data or os.path.samefile(self.root, name):
                return False
            # Mounted twice, a folder may look like two: what comes into the one is in the other.
            self.write(probe, b"", if_version=None)
            return other.read(probe) is None
        except (OSError, ValueError, StoreUnusableError):
            return False
        finally:
            self.delete([probe])

    def url(self, key: str) -> str:
        # A bare path would be on Spark's default file system, which may be HDFS.
        return f"file://{self._within(key)}"

    def file_system(self) -> tuple[fs.FileSystem, str]:
        return fs.LocalFileSystem(), str(self.root)

    def read(self, key: str) -> StoredValue | None:
        try:
            with (
                self._folder(key) as (folder, name),
                os.fdopen(open_regular(name, dir_fd=folder), "rb") as file,
            ):
                data, written = file.read(), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        return StoredValue(data, _version(data), max(0.0, time.time() - written))

    def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        if if_version is not None:
            found = self.read(key)
            if found is None or found.version != if_version:
                return found.version if found is not None and found.data == data else None
        with self._folder(key, make=if_version is None) as (folder, name), _written(folder, name, data) as temporary:
            try:
                if if_version is None:
                    os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                    _forget_temporaries(folder, name)
                    return _version(data)
            except OSError:
                if (found := self.read(key)) is not None:
                    return found.version if found.data == data else None
                # The file system has no hard links.
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            _forget_temporaries(folder, name)
        return _version(data)

    def list(self, prefix: str) -> Iterator[Listed]:
        found = []
        for path, _, files in os.walk(self._within(prefix.rpartition("/")[0])):
            for file in (Path(path) / name for name in files):
                key = file.relative_to(self.root).as_posix()
                if key.startswith(prefix):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(Listed(key, file.lstat().st_size))
        yield from sorted(found, key=lambda one: one.key)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with contextlib.suppress(FileNotFoundError), self._folder(key) as (folder, name):
                _forget_temporaries(folder, name)
                os.unlink(name, dir_fd=folder)
            self._prune(key)

    def folders(self, prefix: str) -> Sequence[str]:
        try:
            with os.scandir(self._within(prefix)) as entries:
                return sorted(one.name for one in entries if one.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def clear(self, prefix: str, *, first: str = "") -> int:
        size_bytes = sum(one.size for one in self.list(prefix))
        gone = self.root / f"{_GONE}{uuid.uuid4().hex}"
        try:
            with self._folder(prefix.rstrip("/")) as (folder, name):
                # Readers see either all of it or none of it, and a folder that takes the name later is not touched.
                os.rename(name, gone, src_dir_fd=folder)
        except FileNotFoundError:
            return 0
        self._prune(prefix.rstrip("/"))
        self.close()
        return size_bytes

    def close(self) -> None:
        """Remove what `clear` has renamed, here or in a driver that was killed."""
        for name in self.folders(""):
            if name.startswith(_GONE):
                shutil.rmtree(self.root / name, ignore_errors=True)

    def _prune(self, key: str) -> None:
        """Remove the folders of a key that are empty."""
        for parent in Path(key).parents:
            try:
                if parent.name:
                    (self.root / parent).rmdir()
            except OSError:
                return

    def _within(self, key: str) -> Path:
        path = self.root / key
        real = path.resolve()
        if not real.is_relative_to(self.root.resolve()):
            raise StoreUnusableError(str(path), f"a link leads out of {self.root}, to {real}")
        return path

    @contextlib.contextmanager
    def _folder(self, key: str, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
        """The folder of a key, as a descriptor that was reached over no link, and the name in it."""
        *folders, name = key.split("/")
        if make:
            self.root.mkdir(parents=True, exist_ok=True)
        if os.open not in os.supports_dir_fd:  # on Windows, where links need privileges
            path = self.root.joinpath(*folders)
            if make:
                path.mkdir(parents=True, exist_ok=True)
            yield None, str(path / name)
            return
        opened = os.open(self.root, os.O_RDONLY)
        try:
            for one in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(one, dir_fd=opened)
                try:
                    below = os.open(one, _DIRECTORY, dir_fd=opened)
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    reason = f"{one!r} leads out of {self.root}, or is not a folder"
                    raise StoreUnusableError(str(self.root / key), reason) from error
                os.close(opened)
                opened = below
            yield opened, name
        finally:
            os.close(opened)


@contextlib.contextmanager
def _written(folder: int | None, name: str, data: bytes) -> Iterator[str]:
    """A file with the data next to a name, which is on the disk, and removed at the end unless it was renamed."""
    path, slash, last = name.rpartition(os.sep)
    temporary = f"{path}{slash}.{last}.{uuid.uuid4().hex}"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)


def _forget_temporaries(folder: int | None, name: str) -> None:
    """Remove the temporary files for a name: writers that were killed have left them."""
    path, slash, last = name.rpartition(os.sep)
    left = re.compile(rf"\.{re.escape(last)}\.[0-9a-f]{{32}}")
    for one in os.listdir(path if folder is None else folder):
        if left.fullmatch(one):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{path}{slash}{one}", dir_fd=folder)


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
