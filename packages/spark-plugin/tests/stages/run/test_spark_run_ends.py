"""How a run ends, and what it leaves: queries that fail, a session that is gone, a removal that is cut short."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from store_lives import folder_store

from penstock.operator_attributes import StagedJob, StageStarted
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._stages.plans.jobs import SessionJobs
from penstock.spark_plugin._stages.run.builder import Kept
from penstock.spark_plugin._stages.run.failures import words
from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun
from penstock.spark_plugin._stages.run.runner import LiveQuery, StageLookup
from penstock.spark_plugin._stages.store.file_lock import FileLock
from penstock.spark_plugin._stages.store.pins import Pin, RunPins
from penstock.spark_plugin._stages.store.result import CommittedStage, StageResult
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin.errors import StoreUnusableError

FINGERPRINT = "a" * 24


class Query:
    """A streaming query that runs on until it is stopped, or has failed."""

    def __init__(self, *, failure: Exception | None = None, broken: bool = False) -> None:
        self._failure = failure
        self._broken = broken
        self.isActive = failure is None
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        if self._broken:
            raise OSError("the session is gone")
        self.isActive = False

    def exception(self) -> Exception | None:
        return self._failure

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        if self._failure is not None:
            raise self._failure
        if timeout is None and self.isActive:
            pytest.fail("it never ends")
        return not self.isActive


class Frame:
    def __init__(self) -> None:
        self.kept = True

    def persist(self) -> "Frame":
        return self

    def unpersist(self) -> None:
        self.kept = False
        raise OSError("the session is gone")


def run_of(folder: Path, **queries: Query) -> tuple[PipelineRun, list[Frame]]:
    made = Pipeline("job", store=folder)
    made.source(bounded=False, name="numbers")(lambda spark: spark)
    for name in queries:
        made.sink(inputs=["numbers"], name=name)(lambda frame: frame)
    plan = made.compile()
    store = folder_store(folder)
    store.__enter__()
    job = StagedJob(plan)
    job.apply(StageStarted(stage_id=plan.stages[0].id))
    run = PipelineRun(plan, job, store, clock=time.monotonic)
    frames = [Frame(), Frame()]
    given: Any = queries
    kept = [Kept() for _ in frames]
    for one, frame in zip(kept, frames, strict=True):
        for _ in queries:
            one.hold(0, lambda frame=frame: frame)  # type: ignore[misc]
    run.deploy(plan.stages[0], {sink: LiveQuery(query=query, kept=[*kept]) for sink, query in given.items()})
    return run, frames


def test_a_run_that_fails_to_stop_releases_all_that_it_can(tmp_path: Path) -> None:
    """Its other queries stop, so that the next run gets the store at once."""
    first, second = Query(broken=True), Query()
    run, frames = run_of(tmp_path, first=first, second=second)
    with pytest.raises(OSError, match="the session is gone"):
        run.stop()
    assert (first.stopped, second.stopped) == (True, True)
    assert not any(frame.kept for frame in frames)
    with folder_store(tmp_path):
        pass


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_failed_query_is_reported_while_another_one_runs(tmp_path: Path, timeout: float | None) -> None:
    """A caller that waits for the run gets the error."""
    run, _ = run_of(tmp_path, healthy=Query(), failed=Query(failure=ValueError("no such column")))
    with pytest.raises(ValueError, match="no such column"):
        run.await_termination(timeout)


def test_a_wait_ends_with_its_time_or_with_the_last_query(tmp_path: Path) -> None:
    """False while one of them runs."""
    running, ended = Query(), Query()
    ended.stop()
    run, _ = run_of(tmp_path, ended=ended, running=running)
    assert run.await_termination(0.01) is False
    running.stop()
    assert run.await_termination(0.01) is True
    assert run.await_termination() is True


def test_a_checkpoint_is_forgotten_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is killed as it removes one leaves none that begins in the middle; what is left goes later."""
    store, checkpoint = folder_store(tmp_path), tmp_path / "live/out/checkpoint"
    for number in range(3):
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (checkpoint / "offsets" / str(number)).touch()

    def killed(path: Path, **_: object) -> None:
        next(Path(path).rglob("2")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.forget()
    assert not checkpoint.exists()
    store.release()
    assert {path.name for path in tmp_path.iterdir()} <= {".id", "stages"}


def test_a_checkpoint_that_cannot_be_removed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the query would continue in it, instead of starting from the beginning."""
    store = folder_store(tmp_path)
    (tmp_path / "live/out/checkpoint/offsets").mkdir(parents=True)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StoreUnusableError, match="Permission denied"):
        store.forget()


def result(store: StageStore) -> StageResult:
    """A committed result whose one file is not Parquet."""
    found = store.stage("daily", FINGERPRINT)
    found.begin("daily")
    system, folder = found._objects.file_system()
    system.create_dir(f"{folder}/{found.folder('daily')}", recursive=True)
    with system.open_output_stream(f"{folder}/{found.folder('daily')}part-0.parquet") as file:
        file.write(b"x")
    found.wrote("daily", [("part-0.parquet", 1, 1)], "{}")
    found.commit(CommittedStage("daily", FINGERPRINT, rows=1, size_bytes=1, seconds=0.1, outputs={"daily": "daily"}))
    return found


class Builder:
    """As much of a `StageBuilder` as finds one result."""

    def __init__(self, store: StageStore) -> None:
        self.store = store
        self.forgotten: list[object] = []

    def folder(self, stage: object) -> StageResult:
        return self.store.stage("daily", FINGERPRINT)

    def forget(self, stage: object) -> None:
        self.forgotten.append(stage)


def test_a_damaged_result_that_another_driver_computes_is_left_to_it(tmp_path: Path) -> None:
    """Removed under its hands, it would be committed with half of its rows."""
    mine, other = (folder_store(tmp_path / name, tmp_path / "shared") for name in ("mine", "other"))
    builder: Any = Builder(mine)
    folder = result(mine)
    stage: Any = type("Stage", (), {"name": "daily"})()
    lookup = StageLookup(builder, lambda: None)
    with other.computing("daily", FINGERPRINT):
        assert "cannot be read" in lookup.lost(stage)
        assert folder.committed() is not None
    assert "cannot be read" in lookup.lost(stage)
    assert not Path(folder.location).exists()
    assert builder.forgotten == [stage, stage]


def test_a_result_that_is_pinned_while_others_are_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing a large one takes minutes, in which another driver may have begun to use this one."""
    mine, other = (folder_store(tmp_path / name, tmp_path / "shared") for name in ("mine", "other"))
    folder = result(mine)
    pins = RunPins(pipeline="p", store="s", stages={"daily": Pin(fingerprint=FINGERPRINT, code="c", inputs={})})
    acquire: Callable[[Any], bool] = FileLock.acquire

    def pinned_meanwhile(lock: Any) -> bool:
        other.pin(pins)
        return acquire(lock)

    monkeypatch.setattr(FileLock, "acquire", pinned_meanwhile)
    assert mine.clean_up() == 0
    assert folder.committed() is not None


class Context:
    """As much of a `SparkContext` as names jobs."""

    def __init__(self, **properties: str) -> None:
        self.properties: dict[str, str | None] = {f"spark.{name}": value for name, value in properties.items()}

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)

    def setLocalProperty(self, name: str, value: str | None) -> None:
        self.properties[name] = value

    def addJobTag(self, tag: str) -> None:
        self.properties["spark.job.tags"] = tag

    def setJobGroup(self, group: str, description: str, *, interruptOnCancel: bool) -> None:
        self.properties |= {
            "spark.jobGroup.id": group,
            "spark.job.description": description,
            "spark.job.interruptOnCancel": str(interruptOnCancel).lower(),
        }


@pytest.mark.parametrize("before", [{}, {"jobGroup.id": "mine", "job.interruptOnCancel": "true"}])
def test_the_callers_own_job_group_is_there_again_after_a_stage(before: dict[str, str]) -> None:
    """A live stage is deployed on the thread that runs the pipeline, which may have named its jobs."""
    context = Context(**before)
    jobs = SessionJobs(SimpleNamespace(sparkContext=context))  # type: ignore[arg-type]  # as much as it needs
    with jobs.group("daily", "job: stage daily", None):
        assert context.getLocalProperty("spark.jobGroup.id") == "daily"
    assert {name: value for name, value in context.properties.items() if value is not None} == {
        f"spark.{name}": value for name, value in before.items()
    }


def test_the_text_of_an_error_can_be_encoded(tmp_path: Path) -> None:
    """A path that is not UTF-8 is in them as half of a pair, which neither a service nor a file takes."""
    name = os.fsdecode(b"rates-\xff.csv")
    assert words(OSError(f"no such file: {name}\nand more")) == "no such file: rates-?.csv"


def test_two_failures_of_a_query_in_the_same_way_have_the_same_words() -> None:
    """Spark adds an id of each start."""
    text = "[STREAM_FAILED] Query [id = 1, runId = {}] terminated with exception: Job aborted: no such file"
    assert [words(RuntimeError(text.format(number))) for number in (2, 3)] == ["Job aborted: no such file"] * 2
