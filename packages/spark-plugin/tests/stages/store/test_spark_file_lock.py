"""The lock on a store: when a driver is refused, and when the lock is free."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from store_lives import folder_store

from penstock.spark_plugin._stages.store import file_lock
from penstock.spark_plugin._stages.store.file_lock import FileLock
from penstock.spark_plugin.errors import StoreUnusableError


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error does not name another driver, and no stage is computed without the lock."""

    def refuse(file: Any) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(file_lock, "lock_file", refuse)
    store = folder_store(tmp_path)
    with pytest.raises(StoreUnusableError, match="No locks available"):
        store.__enter__()
    with pytest.raises(StoreUnusableError, match="No locks available"), store.computing("daily", "a" * 24):
        pytest.fail("the stage is computed without a lock")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_lock_that_is_given_back_is_free_though_a_forked_child_lives(tmp_path: Path) -> None:
    """Such as a worker of `multiprocessing`, which has the lock's file open as well."""
    lock, again = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert lock.acquire()
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begin)
        os.read(end, 1)
        os._exit(0)
    try:
        assert not again.acquire()
        lock.release()
        assert again.acquire()
    finally:
        again.release()
        os.close(begin)
        os.close(end)
        os.waitpid(child, 0)
