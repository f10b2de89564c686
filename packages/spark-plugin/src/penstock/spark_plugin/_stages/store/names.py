"""Names that become files of a store, and how they are kept from leading out of it.

A store may be shared: what others left in it is read, but not believed. A name is one component of a path, whatever its
text; a link that leads out of the store is not followed.
"""

import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from penstock.spark_plugin.errors import StoreUnusableError

_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]")
_FINGERPRINT = re.compile(r"[A-Za-z0-9_-]{1,128}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""One letter is a drive's."""
_OBJECTS = "is reached by no file system of Arrow"
_CURES = {
    "Azure by that scheme": (("wasb", "wasbs", "adl"), _OBJECTS, "Azure Files by NFS, or give a place on abfss://"),
    "WebHDFS": (("webhdfs",), _OBJECTS, "NFS or CephFS, or give a place on hdfs://"),
    "DBFS": (("dbfs",), _OBJECTS, "NFS by an init script, or give a place on s3://, abfss:// or gs://"),
}
"""By who has it: schemes, what it lacks for a store, and what to mount instead."""
_LONGEST = 150
# Where there is no such flag, there are next to no links either.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


def safe_name(name: str) -> str:
    """The name as one component of a path: never hidden, never `..`, and short enough with what is added to it."""
    text = _UNSAFE.sub("_", name) or "_"
    if text.startswith("."):
        # The store's own folders begin with a dot, as do the parents of a folder.
        text = "_" + text[1:]
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    return text


def is_fingerprint(text: object) -> bool:
    """Whether it can be a fingerprint, and so the name of a folder."""
    return isinstance(text, str) and _FINGERPRINT.fullmatch(text) is not None


def within(root: Path, path: Path) -> Path:
    """The path, if it is below the root also when all links are followed.

    Raises:
        StoreUnusableError: the path leads out of the root.
    """
    real = path.resolve()
    if not real.is_relative_to(root.resolve()):
        raise StoreUnusableError(str(path), f"a link leads out of {root}, to {real}")
    return path


def store_folder(path: str | Path) -> Path:
    """The folder that a store's path means.

    Raises:
        StoreUnusableError: the path is not on a file system that is mounted here.
    """
    if not _URL.match(str(path)):
        return Path(path)
    parts = urlsplit(str(path))
    for whose, (schemes, lacks, mount) in _CURES.items():
        if parts.scheme.lower() in schemes:
            raise StoreUnusableError(
                str(path),
                f"{whose} {lacks}; mount {mount}. Sources, sinks and a checkpointLocation of a sink's own may lie "
                "wherever Spark reaches them",
            )
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise StoreUnusableError(str(path), "it is on no file system that is mounted here")
    return Path(unquote(parts.path))


def as_url(path: Path) -> str:
    """A path as Spark is told it: a bare one would be on its default file system, which may be HDFS."""
    return f"file://{path}"


def open_own(path: Path) -> IO[str]:
    """Open a file to write, in place of what has its name; what a link with that name points to stays as it is."""
    path.unlink(missing_ok=True)
    # Exclusive: whoever puts a link of any kind in its place meanwhile is an error, and nothing is written through it.
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w")


def open_lock(path: Path) -> IO[str]:
    """Open a file to read and write, made if need be; an error if it is a link."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o666), "r+")


def folder_id(folder: Path) -> str:
    """What a folder is known by to all drivers: made by the first that asks, and kept in it."""
    file = folder / ".id"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".id.{os.getpid()}.{secrets.token_hex(4)}"
        temporary.write_text(secrets.token_hex(16))
        try:
            os.link(temporary, file)
        except FileExistsError:
            pass  # another was first
        except OSError:  # a file system without hard links; whoever is the last of the first gives the name
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    text = file.read_text().strip()
    # A file that was emptied by hand still gives one name to all.
    return text or hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]


def is_copy(folder: Path, other: object) -> bool:
    """Whether another folder, by its path, is known by the same, and is not this one by another path."""
    probe = folder / f".id.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        original = Path(str(other))
        if folder_id(folder) != (original / ".id").read_text().strip() or os.path.samefile(folder, original):
            return False
        # Mounted twice, a folder may look like two: what comes into the one is in the other.
        probe.touch()
        return not (original / probe.name).exists()
    except (OSError, ValueError):
        return False  # it is gone, or none that is mounted here
    finally:
        probe.unlink(missing_ok=True)
