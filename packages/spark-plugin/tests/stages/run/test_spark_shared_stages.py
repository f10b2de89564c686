"""Drivers in processes of their own, one folder of results, and a stage scheduler that decides who computes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.operator_attributes import BlockingStageScheduler, JobStatus, StageState, open_stage_scheduler
from penstock.rpc.testing import service_process

pytest.importorskip("penstock.services.stage_scheduler")

FILE = Path(__file__).parents[2] / "sharing_driver.py"
LEASE_SECONDS = 2.0


@pytest.fixture
def scheduler() -> Iterator[tuple[str, BlockingStageScheduler]]:
    """The service as a process of its own, and a client of it."""
    with (
        service_process("penstock.services.stage_scheduler", ["serve"]) as service,
        open_stage_scheduler(service.address) as client,
    ):
        yield service.address, client


@contextmanager
def driver(folder: Path, name: str, endpoint: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with its JVM in a process group of their own, which is killed at the end."""
    environment = {
        **os.environ,
        "PENSTOCK_TEST_FOLDER": str(folder),
        "PENSTOCK_TEST_DRIVER": name,
        "PENSTOCK_STAGES_ENDPOINT": endpoint,
    }
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, FILE], stdout=log, stderr=log, start_new_session=True, cwd=folder, env=environment
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended, and was seen to
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def states(folder: Path, name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / f"{name}.json").read_text())
    return found


def job_of(scheduler: BlockingStageScheduler, name: str) -> JobStatus | None:
    return next((job for job in scheduler.list_jobs() if job.name == name), None)


def slow_state(scheduler: BlockingStageScheduler, name: str) -> StageState | None:
    job = job_of(scheduler, name)
    return None if job is None else job.stages[0].progress.state


def test_one_driver_computes_and_the_other_waits_for_it(
    scheduler: tuple[str, BlockingStageScheduler], until: Callable[..., None], tmp_path: Path
) -> None:
    """The stage of the same fingerprint runs in one of them; the other reuses its rows."""
    endpoint, client = scheduler
    (tmp_path / "hold-a").touch()
    with driver(tmp_path, "a", endpoint) as a:
        until(lambda: (tmp_path / "reached-a").exists() or a.poll() is not None, "a does not run")
        with driver(tmp_path, "b", endpoint) as b:
            until(
                lambda: slow_state(client, "b") is StageState.RUNNING or b.poll() is not None,
                "b does not wait",
            )
            assert b.poll() is None, (tmp_path / "b.log").read_text()[-3000:]
            (tmp_path / "hold-a").unlink()
            until(lambda: (tmp_path / "a.json").exists() and (tmp_path / "b.json").exists(), "no end")
    assert (states(tmp_path, "a")["slow"], states(tmp_path, "b")["slow"]) == ("finished", "reused")
    assert not (tmp_path / "reached-b").exists()
    finished = {name: job_of(client, name) for name in ("a", "b")}
    assert all(job is not None and job.succeeded for job in finished.values())
    assert {job.stages[0].progress.rows for job in finished.values() if job is not None} == {5}


def test_a_killed_driver_hands_over_and_continues_its_job_when_it_is_back(
    scheduler: tuple[str, BlockingStageScheduler], until: Callable[..., None], tmp_path: Path
) -> None:
    """kill -9 while it computes: the other has the stage within the lease. The one that was killed finds its own job:
    what ran there is interrupted, which is not a failure."""
    endpoint, client = scheduler
    (tmp_path / "hold-a").touch()
    began = time.monotonic()
    with driver(tmp_path, "a", endpoint) as a:
        until(lambda: (tmp_path / "reached-a").exists() or a.poll() is not None, "a does not run")
        start_seconds = time.monotonic() - began
        with driver(tmp_path, "b", endpoint) as b:
            until(
                lambda: slow_state(client, "b") is StageState.RUNNING or b.poll() is not None,
                "b does not wait",
            )
            os.killpg(a.pid, signal.SIGKILL)
            killed_at = time.monotonic()
            until(lambda: (tmp_path / "reached-b").exists(), "b does not compute")
            # Its last renewal was at most the lease ago; an answer that is held back is sent when the claim expires.
            # Then its task starts, which takes less than a whole driver, on a busy machine too.
            assert time.monotonic() - killed_at < 2 * LEASE_SECONDS + 10 + start_seconds
            until(lambda: (tmp_path / "b.json").exists() or b.poll() not in (None, 0), "b does not end")
    assert states(tmp_path, "b")["slow"] == "finished"
    seen: list[StageState] = []
    job = job_of(client, "a")
    assert job is not None
    assert job.stages[0].progress.state is StageState.RUNNING

    def watch() -> None:
        seen.extend(one.stages[0].progress.state for one in client.watch(job.job_id))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    (tmp_path / "hold-a").unlink()
    with driver(tmp_path, "a", endpoint) as a:
        until(lambda: (tmp_path / "a.json").exists() or a.poll() not in (None, 0), "a does not end")
        watcher.join(30)
    assert states(tmp_path, "a")["slow"] == "reused"
    again = job_of(client, "a")
    assert again is not None
    assert (again.job_id, again.succeeded) == (job.job_id, True)
    # A restarted job would have no attempts.
    assert again.stages[0].progress.attempts == 1
    assert seen[0] is StageState.RUNNING
    assert seen[-1] is StageState.REUSED
