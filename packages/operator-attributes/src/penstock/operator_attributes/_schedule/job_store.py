"""What a stage scheduler must not forget when its process ends: jobs, their events, and claims."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.operator_attributes._compile.plan import StagePlan
from penstock.operator_attributes._schedule.claims import ClaimRecord
from penstock.operator_attributes._schedule.states import StageEvent

if TYPE_CHECKING:
    from penstock.operator_attributes._schedule.sqlite_store import SqliteJobStore


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job as it was submitted, and all that happened to it."""

    job_id: str
    plan: StagePlan
    """As it was compiled then: a later release may cut the same graph in another way."""
    slots: int | None
    max_attempts: int
    events: tuple[StageEvent, ...] = ()
    """In the order in which they came; `at` is in seconds of the scheduler's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """All that a store holds."""

    jobs: tuple[StoredJob, ...] = ()
    """In the order of submission."""
    claims: tuple[ClaimRecord, ...] = ()
    """In the order in which they changed last."""
    last_token: int = 0
    """The highest token that was ever granted."""


T = TypeVar("T")


class StoreWriter:
    """Changes what a scheduler remembers, in memory and in its store if it has one."""

    def __init__(self, store: "SqliteJobStore | None") -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work`, which may call `write`, while no other change is under way: what it checked holds to its end.

        The change continues when the caller is cancelled: otherwise it could be on the disk and not in memory.
        """

        async def alone() -> T:
            async with self._lock:
                return await work

        task = asyncio.create_task(alone(), name="stage scheduler change")
        self._changes.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def write(self, call: "Callable[[SqliteJobStore], None]") -> None:
        """Call the store, if there is one, in a thread."""
        if self._store is not None:
            await asyncio.to_thread(call, self._store)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            # If the caller is gone, the error would be reported as never retrieved.
            task.exception()
