"""What a stage scheduler must not forget when its process ends: jobs, their events, and claims."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from penstock.operator_attributes._compile.plan import StagePlan
from penstock.operator_attributes._schedule.claims import ClaimRecord
from penstock.operator_attributes._schedule.states import StageEvent


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
    last_token: int = field(default=0)
    """The highest token that was ever granted."""


class JobStore(Protocol):
    """Keeps a scheduler's jobs and claims; used by one scheduler, from one thread at a time.

    What a call wrote is durable when it returns. Each raises JobStoreError, having changed nothing.
    """

    def load(self) -> StoredState:
        """All that is there."""
        ...

    def add_job(self, job: StoredJob) -> None:
        """Keep a new job, in the place of the one of its id if there is one, whose events are forgotten."""
        ...

    def add_event(self, job_id: str, event: StageEvent) -> None:
        """Keep what happened to a stage of a job, after what happened before."""
        ...

    def remove_job(self, job_id: str) -> None:
        """Forget a job and its events."""
        ...

    def put_claim(self, record: ClaimRecord) -> None:
        """Keep a claim in place of the one on the same fingerprint."""
        ...

    def remove_claim(self, store: str, fingerprint: str) -> None:
        """Forget the claim on a fingerprint; its token is not given again."""
        ...

    def close(self) -> None:
        """Let go of the file. May be repeated."""
        ...


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
