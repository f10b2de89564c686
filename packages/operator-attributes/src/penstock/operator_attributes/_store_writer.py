"""One change at a time, on the disk before it is in memory."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.operator_attributes._job_store import JobStore

T = TypeVar("T")


class StoreWriter:
    """Changes what a scheduler remembers, in memory and in its store if it has one."""

    def __init__(self, store: JobStore | None) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work`, which may call `write`, while no other change is under way: what it checked holds to its end.

        It goes on when the caller is cancelled: otherwise a change could be on the disk and not in memory.
        """

        async def alone() -> T:
            async with self._lock:
                return await work

        task = asyncio.create_task(alone(), name="stage scheduler change")
        self._changes.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def write(self, call: Callable[[JobStore], None]) -> None:
        """Call the store, if there is one, in a thread."""
        if self._store is not None:
            await asyncio.to_thread(call, self._store)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            # Its caller may be gone; then nobody else looks at it.
            task.exception()
