"""Threads for blocking calls that never keep a process alive."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
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


class DaemonThreads:
    """A few daemon threads that run blocking calls for a loop.

    `asyncio.to_thread` uses threads that the interpreter joins when it exits: a call to AWS that hangs would then hold
    up the end of the process that merely keeps a lease.
    """

    def __init__(self, count: int, *, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the call in a thread, within the caller's context (trace, …).

        Cancelling stops the waiting, not the call.
        """
        context = contextvars.copy_context()
        return await asyncio.wrap_future(self.submit(lambda: context.run(call, *args, **kwargs)))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run the call in a thread, for whoever cares about its outcome."""
        job: _Job[T] = _Job(call)
        with self._lock:
            if len(self._threads) < self._count:
                name = f"{self._name} {len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Let the threads end after what they are doing now. Does not wait."""
        with self._lock:
            for _ in self._threads:
                self._jobs.put(None)
            self._threads.clear()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
