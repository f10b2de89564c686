"""A thread for blocking calls that never keeps a process alive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Job(Generic[T]):
    def __init__(self, call: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._call = call

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._call())
        except BaseException as error:
            self.future.set_exception(error)


class DaemonThread:
    """Runs blocking calls, one after the other.

    `asyncio.to_thread` uses threads that the interpreter joins when it exits: a file whose disk hangs would then hold
    up the end of the process that merely keeps a lease.
    """

    def __init__(self, *, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._name = name
        self._lock = threading.Lock()
        self._lives = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run the call in the thread, for whoever cares about its outcome."""
        job: _Job[T] = _Job(call)
        with self._lock:
            if not self._lives:
                self._lives = True
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Let the thread end after what it is doing now. Does not wait."""
        with self._lock:
            if self._lives:
                self._lives = False
                self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
