"""The file of jobs and claims."""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.operator_attributes import (
    Boundedness,
    ClaimDecision,
    JobGraph,
    LocalStageScheduler,
    OperatorAttributes,
    SqliteJobStore,
    StageEvent,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StageRestarted,
    StageReused,
    StageStarted,
    StoredJob,
    compile,
)
from penstock.operator_attributes._schedule.sqlite_store import OwnFiles
from penstock.operator_attributes.errors import JobStoreError, SchedulingError

EVENTS: list[StageEvent] = [
    StageStarted(stage_id="stage-1", at=1.5),
    StageFailed(stage_id="stage-1", at=2.5, error="no “space”", retryable=False),
    StageFinished(stage_id="stage-1", at=3.5, rows=2**60),
    StageReused(stage_id="stage-1", at=4.5, size_bytes=0),
    StageLost(stage_id="stage-1", at=5.5, error="gone"),
    StageInterrupted(stage_id="stage-1", at=6.5),
    StageRestarted(stage_id="stage-1", at=7.5, error="no table"),
]


def job() -> JobGraph:
    graph = JobGraph("join")
    for name in ("one", "two"):
        graph.add_source(f"{name}_source", boundedness=Boundedness.BOUNDED)
        full_dam = OperatorAttributes(output_only_after_end_of_stream=True)
        graph.add_operator(name, f"{name}_source", attributes=full_dam)
    graph.add_sink("sink", "one", "two")
    return graph


def stored(job_id: str) -> StoredJob:
    return StoredJob(job_id=job_id, plan=compile(job()), slots=3, max_attempts=2)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Jobs in the order of submission, every kind of event in the order of arrival, to the last field."""
    path = tmp_path / "folder" / "stages.db"
    store = SqliteJobStore(path)
    for job_id in ("b", "a"):
        store.add_job(stored(job_id))
    for event in EVENTS:
        store.add_event("a", event)
    store.close()
    again = SqliteJobStore(path)
    first, second = again.load().jobs
    again.close()
    assert first == stored("b")
    assert (second.job_id, second.events) == ("a", tuple(EVENTS))


def test_a_job_that_is_removed_is_gone_with_its_events(tmp_path: Path) -> None:
    """A new job of the same id has no events."""
    store = SqliteJobStore(tmp_path / "stages.db")
    store.add_job(stored("a"))
    store.add_event("a", EVENTS[0])
    store.remove_job("a")
    store.add_job(stored("a"))
    assert store.load().jobs == (stored("a"),)
    store.close()


@pytest.mark.parametrize("content", [b"this is not a database, not at all", None], ids=["other content", "a folder"])
def test_a_file_that_is_not_a_store_is_refused_and_unchanged(content: bytes | None, tmp_path: Path) -> None:
    """The error names the file."""
    path = tmp_path / "stages.db"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content * 100)
    with pytest.raises(JobStoreError, match=r"stages\.db"):
        SqliteJobStore(path)
    assert content is None or path.read_bytes() == content * 100


def test_a_file_of_a_later_release_is_refused(tmp_path: Path) -> None:
    """It may hold what this one would lose."""
    path = tmp_path / "stages.db"
    SqliteJobStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(JobStoreError, match="schema 99"):
        SqliteJobStore(path)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """And closing may be repeated."""
    store = SqliteJobStore(tmp_path / "stages.db")
    store.close()
    store.close()
    with pytest.raises(JobStoreError, match="closed"):
        store.load()


async def test_a_scheduler_continues_where_the_last_one_stopped(tmp_path: Path) -> None:
    """With its slot budget, and with the room that ended jobs leave."""
    path = tmp_path / "stages.db"
    async with LocalStageScheduler(store=SqliteJobStore(path), max_jobs=2) as scheduler:
        await scheduler.submit("a", job(), slots=1)
        await scheduler.report("a", StageStarted(stage_id="stage-1"))
        await scheduler.submit("b", job())
        for number in (1, 2, 3):
            await scheduler.report("b", StageReused(stage_id=f"stage-{number}"))
    async with LocalStageScheduler(store=SqliteJobStore(path), max_jobs=2) as scheduler:
        with pytest.raises(SchedulingError, match="SLOT_BUDGET_EXCEEDED"):
            await scheduler.report("a", StageStarted(stage_id="stage-2"))
        await scheduler.submit("c", job())
        with pytest.raises(SchedulingError, match="TOO_MANY_JOBS"):
            await scheduler.submit("d", job())
    async with LocalStageScheduler(store=SqliteJobStore(path)) as scheduler:
        assert [one.job_id for one in await scheduler.list_jobs()] == ["a", "c"]
        assert (await scheduler.get_job("a")).stage("stage-1").progress.attempts == 1


class FailingStore(SqliteJobStore):
    """A disk that is full."""

    def add_event(self, job_id: str, event: StageEvent) -> None:
        raise JobStoreError(store=job_id, reason="disk full")


async def test_claims_do_not_depend_on_the_time_of_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock steps by minutes, and the scheduler starts again: a live claim stays with its driver."""
    path, passed = tmp_path / "stages.db", 0.0
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0 + passed)
    async with LocalStageScheduler(store=SqliteJobStore(path)) as scheduler:
        mine = await scheduler.claim("store", "abc", owner="one", lease_seconds=30)
        passed = 600.0
        theirs = await scheduler.claim("store", "abc", owner="two", lease_seconds=30, wait_seconds=0)
        assert (mine.decision, theirs.decision) == (ClaimDecision.COMPUTE, ClaimDecision.WAIT)
    passed = -600.0
    async with LocalStageScheduler(store=SqliteJobStore(path)) as scheduler:
        theirs = await scheduler.claim("store", "abc", owner="two", lease_seconds=30, wait_seconds=0)
        assert theirs.decision is ClaimDecision.WAIT
        assert 0 < theirs.expires_seconds <= 30
        assert (await scheduler.renew_claim(mine)).decision is ClaimDecision.COMPUTE


async def test_what_cannot_be_written_did_not_happen(tmp_path: Path) -> None:
    """The caller gets the error, and the job is unchanged."""
    async with LocalStageScheduler(store=FailingStore(tmp_path / "stages.db")) as scheduler:
        before = await scheduler.submit("a", job())
        with pytest.raises(JobStoreError, match="disk full"):
            await scheduler.report("a", StageStarted(stage_id="stage-1"))
        assert await scheduler.get_job("a") == before


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    """SQLite then ends the transaction itself; with room again the store works."""
    store = SqliteJobStore(tmp_path / "stages.db")
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JobStoreError, match="database or disk is full"):
        store.add_job(stored("a long name " * 10_000))
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.add_job(stored("another"))
    assert store.load().jobs[-1] == stored("another")
    store.close()


class FullStore(SqliteJobStore):
    """A disk that has no room for another job."""

    is_full = False

    def add_job(self, job: StoredJob) -> None:
        if self.is_full:
            raise JobStoreError(store=job.job_id, reason="disk full")
        super().add_job(job)


async def test_a_job_that_cannot_restart_is_unchanged(tmp_path: Path) -> None:
    """Here, for those who watch it, and for a scheduler on the same file."""
    store = FullStore(tmp_path / "stages.db")
    async with LocalStageScheduler(store=store) as scheduler:
        await scheduler.submit("a", job())
        before = await scheduler.report("a", StageReused(stage_id="stage-1"))
        store.is_full = True
        with pytest.raises(JobStoreError, match="disk full"):
            await scheduler.submit("a", job(), restart=True)
        assert await scheduler.get_job("a") == before
    async with LocalStageScheduler(store=SqliteJobStore(tmp_path / "stages.db")) as scheduler:
        assert (await scheduler.get_job("a")).stages == before.stages


def test_files_that_one_process_writes_are_as_it_has_left_them(tmp_path: Path) -> None:
    """Or nothing is begun with them, nor said to have gone well; those that were not there yet may come."""
    file, log = tmp_path / "file", tmp_path / "log"
    file.write_text("content")
    own = OwnFiles(file, log)
    with own.written():
        file.write_text("more content")
        log.write_text("log")

    def write(change: Callable[[], object]) -> None:
        with own.written():
            change()
            changed.append(change)

    changed: list[object] = []
    with pytest.raises(FileNotFoundError):
        write((tmp_path / "none").read_text)
    os.link(file, tmp_path / "backup")
    write(lambda: log.write_text("more of the log"))
    (tmp_path / "new").write_text("other")
    with pytest.raises(OSError, match="another process has changed it"):
        write(lambda: (tmp_path / "new").replace(log))
    assert len(changed) == 2
    for _ in range(2):
        with pytest.raises(OSError, match="another process has changed it"):
            write(lambda: None)
    assert len(changed) == 2
