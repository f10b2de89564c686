"""Runs whose results come and go, without Spark: what a stage would compute is written by hand."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql.connect.proto import Relation
from store_lives import folder_store

from penstock.operator_attributes import (
    BlockingStageScheduler,
    Claim,
    ClaimDecision,
    LocalStageScheduler,
    OperatorAttributes,
    Stage,
    StagedJob,
    StagePlan,
    StageState,
)
from penstock.operator_attributes.errors import SchedulerAwayError
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._stages.plans.classic import _plan_text
from penstock.spark_plugin._stages.plans.connect_tree import Server
from penstock.spark_plugin._stages.run.builder import StageBuilder
from penstock.spark_plugin._stages.run.loop import RunLoop
from penstock.spark_plugin._stages.run.pipeline_run import PipelineRun
from penstock.spark_plugin._stages.run.runner import StageClaims, StageLookup
from penstock.spark_plugin._stages.store.result import CommittedStage, StageResult
from penstock.spark_plugin._stages.store.store import StageStore

SETTING = "spark.sql.debug.maxToStringFields"
FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
SPARK: Any = SimpleNamespace(version="4", conf=SimpleNamespace(get=lambda name, default=None: default, getAll={}))
"""As much of a session as a fingerprint wants to know."""


def pipeline(store: Path, *, data: str = "1", code: str = "1") -> Pipeline:
    """`first` of one source, which `left` and `right` read, and `other` of another; all of them block."""
    made = Pipeline("job", store=store)
    made.source(bounded=True, name="rates", fingerprint=data)(lambda spark: spark)
    made.source(bounded=True, name="days", fingerprint=data)(lambda spark: spark)
    for name, source in (("first", "rates"), ("left", "first"), ("right", "first"), ("other", "days")):
        made.op(attributes=FULL_DAM, inputs=[source], name=name)(eval(f"lambda frame: ({name!r}, {code!r})"))
    made.sink(inputs=["left", "right", "other"], name="out")(lambda *frames: frames)
    return made


def nothing(stage: Stage) -> None:
    """What happens when a stage has committed, unless a test has something to do."""


def remove_rows(result: StageResult) -> None:
    for file in Path(result.location).rglob("*.parquet"):
        file.unlink()


class Runner:
    """Commits two rows of each output, by hand."""

    def __init__(self, builder: StageBuilder, after: Callable[[Stage], None] = nothing) -> None:
        self.builder = builder
        self._after = after
        self.ran: list[str] = []

    def run_bounded(self, stage: Stage, *_: object) -> CommittedStage:
        self.ran.append(stage.name)
        found = self.builder.folder(stage)
        found.begin(stage.name)
        system, root = found._objects.file_system()
        for vertex in stage.outputs:
            system.create_dir(f"{root}/{found.folder(vertex)}", recursive=True)
            path = f"{root}/{found.folder(vertex)}part-0.parquet"
            pyarrow.parquet.write_table(pa.table({"k": [1, 2]}), path)
            found.wrote(vertex, [("part-0.parquet", Path(path).stat().st_size, 2)], "{}")
        rows, size = found.measure(stage.outputs)
        outputs = {vertex: vertex for vertex in stage.outputs}
        fingerprint = self.builder.fingerprint(stage)
        result = CommittedStage(stage.name, fingerprint, rows=rows, size_bytes=size, seconds=0.0, outputs=outputs)
        found.commit(result)
        self._after(stage)
        return result

    def cancel(self, stage: Stage) -> None:
        """Nothing runs on."""


class Builder(StageBuilder):
    """Looks at no plans."""

    def _look_at_plans(self, stage: Stage) -> str:
        return ""


class Parts:
    """A run's parts, as `run_pipeline` puts them together."""

    def __init__(self, store: StageStore, made: Pipeline, *, slots: int | None = None) -> None:
        self.plan: StagePlan = made.compile()
        before = store.pins()
        pins = before.stages if before is not None and not before.ended else {}
        self.store = store
        self.builder = Builder(made.declared, self.plan, SPARK, store, pins)
        self.job = StagedJob(self.plan, slots=slots)
        self.run = PipelineRun(self.plan, self.job, store, clock=time.monotonic)

    def loop(self, runner: Any) -> RunLoop:
        return RunLoop(self.run, self.job, StageClaims(runner))

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.plan.stages if stage.name == name)


def test_a_result_that_two_stages_were_about_to_read_is_computed_again(tmp_path: Path) -> None:
    """It is gone when both may be deployed: both wait for it, and the run continues to its end."""
    parts = Parts(folder_store(tmp_path), pipeline(tmp_path))

    def lose(stage: Stage) -> None:
        if stage.name == "first" and runner.ran.count("first") == 1:
            remove_rows(parts.builder.folder(stage))

    runner = Runner(parts.builder, lose)
    parts.loop(runner).run()
    assert sorted(runner.ran) == ["first", "first", "left", "other", "out", "right"]
    assert set(parts.run.states.values()) == {StageState.FINISHED}


def test_a_run_and_its_explanation_are_shown_in_a_notebook(tmp_path: Path) -> None:
    """Each stage with its state, and the warnings; all of them as text."""
    made = pipeline(tmp_path)
    assert made.explain()._repr_html_().startswith("<pre>job: ")
    parts = Parts(folder_store(tmp_path), made)
    parts.loop(Runner(parts.builder)).run()
    parts.run.warnings = ["<script> reads a file"]
    shown = parts.run._repr_html_()
    assert shown.count("<tr>") == len(parts.plan.stages) + 1
    assert shown.count("FINISHED") == len(parts.plan.stages)
    assert ("warning: &lt;script&gt; reads a file" in shown, "<script>" in shown) == (True, False)
    assert "warning: &lt;script&gt;" in parts.run.explain()._repr_html_()


def test_a_wider_stage_that_was_lost_has_its_slots_before_live_ones(tmp_path: Path) -> None:
    """What was to be deployed beside its reader waits, too: by now there is another batch stage to leave room for."""
    made = Pipeline("job", store=tmp_path)
    made.source(bounded=True, name="rates", fingerprint="1", parallelism=2)(lambda spark: spark)
    made.op(attributes=FULL_DAM, inputs=["rates"], name="wide", parallelism=2)(lambda frame: frame)
    made.op(attributes=FULL_DAM, inputs=["wide"], name="narrow")(lambda frame: frame)
    made.sink(inputs=["narrow"], name="table")(lambda frame: frame)
    made.source(bounded=False, name="live")(lambda spark: spark)
    made.sink(inputs=["live"], name="out")(lambda frame: frame)
    parts = Parts(folder_store(tmp_path), made, slots=2)

    class Live(Runner):
        def deploy_live(self, stage: Stage) -> dict[str, Any]:
            return {}

    def lose(stage: Stage) -> None:
        if stage.name == "wide" and runner.ran.count("wide") == 1:
            remove_rows(parts.builder.folder(stage))

    runner = Live(parts.builder, lose)
    parts.loop(runner).run()
    assert runner.ran == ["wide", "wide", "narrow", "table"]
    assert set(parts.run.states.values()) == {StageState.FINISHED}


def test_a_run_that_is_killed_as_it_resumes_loses_nothing_of_its_snapshot(tmp_path: Path) -> None:
    """The next run continues with results that it had not reached yet, whatever the sources hold then."""
    store = folder_store(tmp_path)
    first = Parts(store, pipeline(tmp_path))
    runner = Runner(first.builder)
    for stage in first.plan.stages[:-1]:
        runner.run_bounded(stage)
    first.builder.pin()
    # Killed, and killed again when it had looked for one of them.
    second = Parts(store, pipeline(tmp_path, data="2"))
    lookup = StageLookup(second.builder, second.builder.pin)
    assert lookup.committed(second.stage("first"))[0] is not None
    store.clean_up()
    third = Parts(store, pipeline(tmp_path, data="3"))
    runner = Runner(third.builder)
    third.loop(runner).run()
    assert runner.ran == ["out"]
    assert third.run.states == {
        "first": StageState.REUSED,
        "left": StageState.REUSED,
        "right": StageState.REUSED,
        "other": StageState.REUSED,
        "out": StageState.FINISHED,
    }
    # It has ended: the next one looks, and what it does not use goes.
    fourth = Parts(store, pipeline(tmp_path, data="4"))
    fourth.loop(Runner(fourth.builder)).run()
    assert len(list((tmp_path / "stages/other").iterdir())) == 1


class Unsteady(LocalStageScheduler):
    """Away when a result is to be committed, and back at once."""

    async def commit_claim(
        self, claim: Claim, *, location: str, rows: int | None = None, size_bytes: int | None = None
    ) -> None:
        raise SchedulerAwayError.of("SCHEDULER_CALL_FAILED", status="UNAVAILABLE", details="it restarts")


def test_a_claim_whose_commit_the_service_missed_expires(tmp_path: Path) -> None:
    """The driver lives on for days with its live query; others have the stage's result within the lease."""
    parts = Parts(folder_store(tmp_path), pipeline(tmp_path))
    with BlockingStageScheduler(Unsteady) as service:
        runner: Any = Runner(parts.builder)
        claims = StageClaims(runner, service=service, results="shared", owner="one", lease_seconds=1.0)
        stage = parts.stage("first")
        assert not claims.run_bounded(stage).reused
        name = f"{parts.builder.name(stage)}/{parts.builder.fingerprint(stage)}"
        other = service.claim("shared", name, owner="two", wait_seconds=4.0)
        assert other.decision is ClaimDecision.COMPUTE


def test_an_interrupt_ends_the_wait_for_another_driver(tmp_path: Path) -> None:
    """It may compute for hours what both need."""
    mine, other = (folder_store(tmp_path / name, tmp_path / "shared") for name in ("mine", "other"))
    stopped, ended = threading.Event(), threading.Event()

    def wait() -> None:
        with pytest.raises(RuntimeError, match="the run has ended"), mine.computing("daily", "a" * 24, stopped=stopped):
            pass
        ended.set()

    with other.computing("daily", "a" * 24):
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert not ended.wait(0.3)
        stopped.set()
        assert ended.wait(20)
    with mine.computing("daily", "a" * 24):
        pass


class Conf(dict[str, str]):
    def set(self, name: str, value: str) -> None:
        self[name] = value


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_two_threads_get_plan_texts_with_all_columns(kind: str) -> None:
    """A setting of the session limits how many columns a plan's text names. One thread must not reset it while another
    needs it: different plans with truncated texts look the same.
    """
    conf = Conf({SETTING: "25"})
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()
    seen: list[str] = []

    def text() -> str:
        if not first_is_in.is_set():
            first_is_in.set()
            second_is_in.wait(0.3)
        else:
            second_is_in.set()
            first_is_out.wait(20)
        seen.append(conf[SETTING])
        return "plan"

    plan = SimpleNamespace(canonicalized=lambda: SimpleNamespace(toString=text))
    client = SimpleNamespace(explain_string=lambda *_: text())
    spark: Any = SimpleNamespace(conf=conf, client=client)
    server = Server(spark)

    def ask() -> str:
        return _plan_text(spark, plan) if kind == "classic" else server.whole_text(Relation())

    def first() -> None:
        ask()
        first_is_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(20)
    ask()
    thread.join(20)
    assert seen == ["100000", "100000"]
    assert conf[SETTING] == "25"
