"""Is there room, and may one write?"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import platformdirs

from penstock.cli._doctor._surroundings import Finding, Surroundings, ok, problem, skipped, warning
from penstock.terminal import size

_STORES: Final = ("registry.db", "checkpoints.db")
MUCH_DISK_BYTES: Final = 2 * 1024**3
LITTLE_DISK_BYTES: Final = 256 * 1024**2
MANY_FILES: Final = 4096
FEW_FILES: Final = 256


def check_state_folder(surroundings: Surroundings) -> Iterator[Finding]:
    """Leases and checkpoints are kept in SQLite files, unless a job names other places."""
    folder = surroundings.state_folder or Path(platformdirs.user_state_dir("penstock"))
    cure = f"chown -R $(id -un) {folder}, or name another place: registryStore, XDG_STATE_HOME"
    try:
        # A folder above it may be closed to this user, and then says so.
        there = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
        if not there.is_dir():
            raise NotADirectoryError(20, "not a directory", str(there))
        with tempfile.NamedTemporaryFile(dir=there, prefix=".penstock-doctor-"):
            pass
    except OSError as error:
        yield problem("State folder", f"{folder} cannot be written: {error.strerror}", cure)
        return
    for name in _STORES:
        if (folder / name).exists() and (reason := _damage(folder / name)):
            yield problem("State folder", f"{folder / name} cannot be used: {reason}", cure)
            return
    yield ok("State folder", str(folder))


def _damage(path: Path) -> str:
    """Why a SQLite file cannot be used; empty when it can."""
    if not os.access(path, os.W_OK):
        return "it is read-only for this user"
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=1)
        try:
            connection.execute("SELECT name FROM sqlite_master").fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        return str(error)
    return ""


def check_disk(surroundings: Surroundings) -> Iterator[Finding]:
    """Shuffles and staged results need room."""
    named = surroundings.environ.get("SPARK_LOCAL_DIRS") or (surroundings.spark_settings or {}).get("spark.local.dir")
    folders = named.split(",") if named else [tempfile.gettempdir()]
    for folder in folders:
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            yield problem("Disk", f"{folder}: {error.strerror}", "set SPARK_LOCAL_DIRS to folders that are there")
            continue
        yield judge_disk(folder, free)


def judge_disk(folder: str, free: int) -> Finding:
    """What so many free bytes mean."""
    text = f"{size(free)} free in {folder}"
    cure = "free some, or set SPARK_LOCAL_DIRS (and TMPDIR) to a folder with more room"
    if free < LITTLE_DISK_BYTES:
        return problem("Disk", text, cure)
    return warning("Disk", text, cure) if free < MUCH_DISK_BYTES else ok("Disk", text)


def check_open_files(surroundings: Surroundings) -> Iterator[Finding]:
    """Each shard, task and connection has a descriptor."""
    try:
        import resource
    except ImportError:
        yield skipped("Open files", "this system has no such limit")
        return
    yield judge_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.RLIM_INFINITY)


def judge_open_files(limit: int, infinity: int = -1) -> Finding:
    """What a limit on open files means."""
    cure = f"ulimit -n {MANY_FILES * 4} before the driver starts, or LimitNOFILE= of its unit"
    if limit == infinity:
        return ok("Open files", "without limit")
    text = f"at most {limit} (ulimit -n)"
    if limit < FEW_FILES:
        return problem("Open files", f"{text}: too few for Spark", cure)
    if limit < MANY_FILES:
        return warning("Open files", f"{text}: few for hundreds of shards", cure)
    return ok("Open files", text)
