"""Small objects as files of any file system that Arrow has: whole, but on no condition."""

import hashlib
import posixpath
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pyarrow import fs

from penstock.aws import AwsConnectionError, AwsError, StoredValue
from penstock.spark_plugin._for_stages import Listed, Objects, Place

_NEW = ".new"
_HIDDEN = ".tmp-"
_T = TypeVar("_T")


class FileObjects(Objects):
    """See `Objects`, without its promise: between a look and a write another driver may write.

    A driver that writes has to hold a claim by other means. A file appears whole: where growing files are visible, it
    is written under another name first.
    """

    conditional = False

    def __init__(self, place: Place) -> None:
        """Open it. Raises: OSError: Arrow does not have the file system."""
        self.place = place
        self._system, self._folder = place.open()

    def below(self, path: str) -> "FileObjects":
        return FileObjects(self.place.below(path))

    def read(self, key: str) -> StoredValue | None:
        def read() -> StoredValue | None:
            # What is to take a file's place is complete by the time that it has that name.
            for name in (key, key + _NEW):
                path = self._path(name)
                info = self._system.get_file_info(path)
                if info.type is fs.FileType.File:
                    try:
                        with self._system.open_input_stream(path) as file:
                            data = file.read()
                    except FileNotFoundError:
                        continue
                    written = info.mtime_ns / 1e9 if info.mtime_ns else time.time()
                    return StoredValue(data, hashlib.sha256(data).hexdigest(), max(0.0, time.time() - written))
            return None

        return self._typed("read", read)

    def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        found = self.read(key)
        if (None if found is None else found.version) != if_version:
            return found.version if found is not None and found.data == data else None
        return self._put(key, data)

    def list(self, prefix: str) -> Iterator[Listed]:
        # A prefix may end within a name.
        folder = posixpath.dirname(prefix)
        below = f"{self._folder}/"

        def look() -> list[Listed]:
            selector = fs.FileSelector(self._path(folder).rstrip("/"), allow_not_found=True, recursive=True)
            found = []
            for info in self._system.get_file_info(selector):
                key = info.path.removeprefix(below)
                if info.type is fs.FileType.File and key.startswith(prefix):
                    found.append(Listed(key, int(info.size or 0)))
            return sorted(found, key=lambda one: one.key)

        yield from self._typed("list", look)

    def delete(self, keys: Sequence[str]) -> None:
        def delete() -> None:
            for key in keys:
                for name in (key, key + _NEW):
                    if self._system.get_file_info(self._path(name)).type is fs.FileType.File:
                        self._system.delete_file(self._path(name))
                if self.place.shows_growing_files:
                    self._forget_temporaries(self._path(key))

        self._typed("delete", delete)

    def _put(self, key: str, data: bytes) -> str:
        def put() -> str:
            path = self._path(key)
            if self.place.shows_growing_files:
                self._system.create_dir(posixpath.dirname(path), recursive=True)
                temporary = f"{self._temporary(path)}{uuid.uuid4().hex}"
                self._write(temporary, data)
                # A rename of HDFS takes no file's place.
                if self._system.get_file_info(path + _NEW).type is fs.FileType.File:
                    self._system.delete_file(path + _NEW)
                self._system.move(temporary, path + _NEW)
                if self._system.get_file_info(path).type is fs.FileType.File:
                    self._system.delete_file(path)
                self._system.move(path + _NEW, path)
                self._forget_temporaries(path)
            else:
                self._write(path, data)
            return hashlib.sha256(data).hexdigest()

        return self._typed("put", put)

    def _temporary(self, path: str) -> str:
        folder, name = posixpath.split(path)
        return f"{folder}/{_HIDDEN}{name}."

    def _forget_temporaries(self, path: str) -> None:
        """Remove the temporary files for a path: writers that were killed have left them."""
        for one in self._system.get_file_info(fs.FileSelector(posixpath.dirname(path), allow_not_found=True)):
            if one.path.rpartition(".")[0] + "." == self._temporary(path):
                self._system.delete_file(one.path)

    def _write(self, path: str, data: bytes) -> None:
        with self._system.open_output_stream(path) as file:
            file.write(data)

    def _path(self, key: str) -> str:
        return f"{self._folder}/{key}"

    def _typed(self, operation: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except (OSError, AwsError) as error:
            # Callers treat it like an outage of S3.
            raise AwsConnectionError(operation=operation, endpoint=self.place.shown, reason=str(error)) from error
