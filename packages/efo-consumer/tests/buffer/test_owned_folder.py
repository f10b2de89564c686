"""Folders of dead readers are removed, and folders in use stay."""

from __future__ import annotations

import fcntl
from io import TextIOWrapper
from pathlib import Path

import pytest

from penstock.efo_consumer._buffer.owned_folder import new_folder, remove_leftovers


def test_the_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    """A folder whose lock no process holds is removed; a folder in use stays."""
    for name in ("penstock-reader-left", "penstock-reader-used"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "in-use").touch()
        (tmp_path / name / "7").write_bytes(b"rows")
    with (tmp_path / "penstock-reader-used" / "in-use").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_leftovers([tmp_path])
        assert [path.name for path in tmp_path.iterdir()] == ["penstock-reader-used"]


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When two readers start at once, one may remove the other's new folder as a leftover."""
    flock = fcntl.flock

    def late(file: TextIOWrapper, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        remove_leftovers([tmp_path])
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    folder, lock = new_folder(tmp_path)
    with lock:
        assert list(tmp_path.iterdir()) == [folder]
        remove_leftovers([tmp_path])
        assert [path.name for path in folder.iterdir()] == ["in-use"]
