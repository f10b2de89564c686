"""Fakes and helpers for tests of code that plans or schedules stages."""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from penstock.operator_attributes._schedule.local import LocalStageScheduler
from penstock.operator_attributes._schedule.remote import SERVICE_NAME, RemoteStageScheduler, StageSchedulerServicer
from penstock.operator_attributes._schedule.scheduler import StageScheduler
from penstock.operator_attributes._schedule.states import StageEvent, StageFailed, StageFinished, StageStarted
from penstock.rpc import ClientSecurity, GrpcServer, ServerSettings

__all__ = ["FakeClock", "StageSchedulerServer", "play", "running_stage_scheduler"]


class FakeClock:
    """Monotonic seconds that move only by `advance`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        self.now += seconds


def play(
    scheduler: StageScheduler, *, failures: Mapping[str, int] | None = None, seconds: float = 1.0
) -> tuple[StageEvent, ...]:
    """Play a driver until nothing is left to do: deploy all that is ready, then end the oldest batch stage that runs.

    Live stages are stopped when every batch stage has ended, and not before: a scheduler that lets them take the
    slots that a batch stage needs is left stuck, not `ended`. `failures` says how many times a stage fails before
    it finishes. Each end is `seconds` after the event before it. Returns the events in their order.
    """
    left = dict(failures or {})
    bounded = {stage.id: stage.bounded for stage in scheduler.plan.stages}
    events: list[StageEvent] = []
    running: list[str] = []
    now = 0.0

    def tell(event: StageEvent) -> None:
        scheduler.apply(event)
        events.append(event)

    while not scheduler.ended:
        for stage in scheduler.ready():
            tell(StageStarted(stage_id=stage.id, at=now))
            running.append(stage.id)
        batch = [stage_id for stage_id in running if bounded[stage_id]]
        live_only = all(state.ended for stage_id, state in scheduler.states.items() if bounded[stage_id])
        if not batch and not (running and live_only):
            break
        now += seconds
        stage_id = (batch or running)[0]
        running.remove(stage_id)
        if left.get(stage_id, 0) > 0:
            left[stage_id] -= 1
            tell(StageFailed(stage_id=stage_id, at=now, error="made to fail"))
        else:
            tell(StageFinished(stage_id=stage_id, at=now))
    return tuple(events)


@asynccontextmanager
async def running_stage_scheduler(
    scheduler: LocalStageScheduler | None = None, settings: ServerSettings | None = None
) -> AsyncIterator[tuple[GrpcServer, RemoteStageScheduler]]:
    """A server on a free port of this machine, and a client of it that knows its token."""
    scheduler = scheduler or LocalStageScheduler()
    settings = settings or ServerSettings(drain_seconds=1.0)
    server = GrpcServer(settings, register=[StageSchedulerServicer(scheduler).add_to], service_names=[SERVICE_NAME])
    async with server:
        security = ClientSecurity(token=settings.security.token)
        try:
            async with RemoteStageScheduler(server.address, security) as client:
                yield server, client
        finally:
            await scheduler.close()


class StageSchedulerServer:
    """A server on a free port of this machine, on a thread of its own: for tests of blocking callers."""

    def __init__(self) -> None:
        self.address = ""
        """`host:port`, between enter and exit."""
        self._started: concurrent.futures.Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = (
            concurrent.futures.Future()
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="stage scheduler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.address, self._loop, self._done = self._started.result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        try:
            async with running_stage_scheduler() as (server, _):
                done = asyncio.Event()
                self._started.set_result((server.address, asyncio.get_running_loop(), done))
                await done.wait()
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise
