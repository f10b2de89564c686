"""Runs that a stage scheduler service knows: watched live, over its death, and with results that got lost."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import (
    BlockingStageScheduler,
    OperatorAttributes,
    StageState,
    VertexKind,
    open_stage_scheduler,
)
from penstock.operator_attributes.errors import SchedulingError
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.spark_plugin import Pipeline, PipelineRun
from penstock.spark_plugin.errors import PipelineError, StageFailedError

pytest.importorskip("penstock.services.stage_scheduler")

MODULE = "penstock.services.stage_scheduler"
FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def nothing() -> None:
    """What happens between two stages, unless a test has something to do."""


def live(
    folder: Path, *, before_ranks: Callable[[], object] = nothing, before_last: Callable[[], object] = nothing
) -> Pipeline:
    """Totals of a file, ranks of them, the last of these, and a stream joined with the first and the last."""
    text = str(folder)
    pipeline = Pipeline("flights", store=folder / "store")

    @pipeline.source(bounded=True)
    def rates(spark: SparkSession) -> DataFrame:
        return spark.read.csv(f"{text}/rates.csv", schema="k int, v int", header=True)

    @pipeline.op(attributes=FULL_DAM)
    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy("k").agg(F.sum("v").alias("total"))

    def ranks(totals: DataFrame) -> DataFrame:
        before_ranks()
        return totals.sort("total")

    def last(ranks: DataFrame) -> DataFrame:
        before_last()
        return ranks.groupBy("k").agg(F.max("total").alias("last"))

    # What a test does in between is not part of the code.
    for function, name in ((ranks, "totals"), (last, "ranks")):
        pipeline.declare(
            function.__name__, VertexKind.OPERATOR, function, inputs=(name,), attributes=FULL_DAM, code="its own"
        )

    @pipeline.source(bounded=False)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()

    @pipeline.op()
    def joined(numbers: DataFrame, totals: DataFrame, last: DataFrame) -> DataFrame:
        return numbers.join(totals, numbers["value"] == totals["k"]).join(last, "k")

    @pipeline.sink()
    def out(joined: DataFrame) -> Any:
        return joined.writeStream.format("noop")

    return pipeline


BOUNDED = ("totals", "ranks", "last")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n1,2\n1,3\n")
    return tmp_path


@contextmanager
def scheduler(*arguments: str) -> Iterator[tuple[ServiceProcess, BlockingStageScheduler]]:
    with (
        service_process(MODULE, ["serve", *arguments]) as service,
        open_stage_scheduler(service.address) as client,
    ):
        yield service, client


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", MODULE, *arguments]


def stop_when_it_runs(run: PipelineRun, until: Callable[..., None]) -> None:
    """After a micro-batch: a checkpoint that is half made cannot be gone on with."""
    until(lambda: run.queries["out"].lastProgress is not None, "no micro-batch", query=run.queries["out"])
    run.stop()


def states(client: BlockingStageScheduler, job_id: str) -> dict[str, StageState]:
    return {stage.name: stage.progress.state for stage in client.get_job(job_id).stages}


def test_a_running_pipeline_is_watched_and_listed(
    spark: SparkSession, folder: Path, until: Callable[..., None]
) -> None:
    """Another process sees each stage as it goes, with its rows, and the live one to its end; a second run uses both
    results again under the same name."""
    with scheduler() as (service, client):
        run = live(folder).run(spark, scheduler_endpoint=service.address)
        watch = subprocess.Popen(
            command("watch", run.job_id, "--endpoint", service.address), stdout=subprocess.PIPE, text=True
        )
        assert watch.stdout is not None
        lines = [watch.stdout.readline().split("\t") for _ in range(4)]
        seen = {line[1]: (line[2], line[5]) for line in lines}
        assert seen == {**dict.fromkeys(BOUNDED, ("FINISHED", "2")), "out": ("RUNNING", "-")}
        listed = subprocess.run(
            command("ls", "--endpoint", service.address), capture_output=True, text=True, check=True, timeout=60
        )
        assert listed.stdout.startswith(f"{run.job_id}\tflights\tRUNNING\t3\t4")
        until(lambda: run.queries["out"].lastProgress is not None, "no micro-batch")
        # The run reports although no caller asks for its progress.
        run.queries["out"].stop()
        assert "FINISHED" in watch.stdout.readline()
        assert watch.wait(60) == 0
        watch.stdout.close()
        run.stop()
        again = live(folder).run(spark, scheduler_endpoint=service.address)
        assert again.job_id == run.job_id
        until(lambda: states(client, run.job_id)["out"] is StageState.RUNNING, "it is not told")
        assert states(client, run.job_id)["totals"] is StageState.REUSED
        again.stop()
        assert client.get_job(run.job_id).succeeded


def test_a_run_continues_when_its_scheduler_is_killed(
    spark: SparkSession, folder: Path, until: Callable[..., None]
) -> None:
    """With its own state; a scheduler that is started again without memory gets a report of everything."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with scheduler("--port", port) as (service, _):

        def kill() -> None:
            service.process.kill()
            service.process.wait()

        run = live(folder, before_ranks=kill).run(spark, scheduler_endpoint=service.address)
    assert run.states == {**dict.fromkeys(BOUNDED, StageState.FINISHED), "out": StageState.RUNNING}
    with scheduler("--port", port) as (_, client):

        def is_told() -> bool:
            try:
                return states(client, run.job_id)["out"] is StageState.RUNNING
            except SchedulingError:
                return False

        until(is_told, "the new scheduler is not told")
        assert all(stage.progress.state.committed for stage in client.get_job(run.job_id).stages if stage.bounded)
        run.stop()
        assert client.get_job(run.job_id).succeeded


def test_a_run_continues_while_its_scheduler_is_frozen(
    spark: SparkSession, folder: Path, until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """It warns once, asks for no claim meanwhile, and reports all of it when the scheduler continues."""
    caplog.set_level(logging.INFO, "penstock")
    with scheduler() as (service, client):
        process = service.process.pid
        run = live(folder, before_ranks=lambda: os.kill(process, signal.SIGSTOP)).run(
            spark, scheduler_endpoint=service.address
        )
        assert run.states == {**dict.fromkeys(BOUNDED, StageState.FINISHED), "out": StageState.RUNNING}
        assert messages(caplog, logging.WARNING, "stage scheduler", "claim") == 1
        os.kill(process, signal.SIGCONT)
        until(lambda: states(client, run.job_id)["out"] is StageState.RUNNING, "the scheduler is not told")
        assert all(stage.progress.state.committed for stage in client.get_job(run.job_id).stages if stage.bounded)
        stop_when_it_runs(run, until)
        assert client.get_job(run.job_id).succeeded
    assert messages(caplog, logging.WARNING, "stage scheduler", "claim") == 1
    assert messages(caplog, logging.INFO, "answers again") == 1


def test_a_run_that_ends_while_its_scheduler_is_frozen_is_repaired_by_the_next(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler shows the job as it was until then."""

    def ranks(a: DataFrame) -> DataFrame:
        if not seen:
            seen.append(process)
            os.kill(process, signal.SIGSTOP)
        return a.sort("id")

    seen: list[int] = []
    pipeline = Pipeline("batch", store=tmp_path / "store")
    pipeline.source(bounded=True, name="a")(lambda spark: spark.range(3))
    pipeline.declare("ranks", VertexKind.OPERATOR, ranks, inputs=("a",), attributes=FULL_DAM, code="its own")
    pipeline.sink(name="out", inputs=["ranks"])(lambda ranks: ranks.write.format("noop").mode("overwrite"))
    with scheduler() as (service, client):
        process = service.process.pid
        run = pipeline.run(spark, scheduler_endpoint=service.address)
        assert run.states == {"ranks": StageState.FINISHED, "out": StageState.FINISHED}
        assert messages(caplog, logging.WARNING, "stage scheduler", "claim") == 1
        os.kill(process, signal.SIGCONT)
        assert not client.get_job(run.job_id).ended
        again = pipeline.run(spark, scheduler_endpoint=service.address)
        assert again.job_id == run.job_id
        assert client.get_job(run.job_id).succeeded


def messages(caplog: pytest.LogCaptureFixture, level: int, *words: str) -> int:
    """How many lines of a level have one of the words."""
    texts = [one.getMessage() for one in caplog.records if one.levelno == level and one.name.startswith("penstock")]
    return sum(any(part in text for part in words) for text in texts)


def test_a_missing_scheduler_is_reported_before_anything_runs(spark: SparkSession, folder: Path) -> None:
    """With what to do; the store is free afterwards."""
    with pytest.raises(PipelineError, match="SCHEDULER_UNAVAILABLE") as caught:
        live(folder).run(spark, scheduler_endpoint="127.0.0.1:1")
    assert caught.value.facts["endpoint"] == "127.0.0.1:1"
    assert live(folder).clean_up() == 0


def test_a_scheduler_knows_the_deepest_cause_of_a_failure(spark: SparkSession, tmp_path: Path) -> None:
    """The same words as the error of the run."""
    (tmp_path / "rates.parquet").write_text("not Parquet")
    pipeline = Pipeline("rates", store=tmp_path / "store")
    pipeline.source(bounded=True, name="rates")(
        lambda spark: spark.read.schema("k int").parquet(str(tmp_path / "rates.parquet"))
    )
    pipeline.sink(name="out", inputs=["rates"])(lambda rates: rates.write.format("noop").mode("overwrite"))
    with scheduler() as (service, client):
        with pytest.raises(StageFailedError) as caught:
            pipeline.run(spark, scheduler_endpoint=service.address, max_attempts=1)
        (stage,) = client.get_job(caught.value.run.job_id).stages
    assert "[FAILED_READ_FILE" in stage.progress.error
    assert "; caused by: java.lang.RuntimeException: " in stage.progress.error
    assert stage.progress.error == caught.value.reason


def damaged(folder: Path, stage: str, how: str) -> None:
    (data,) = (folder / "store/stages" / stage).glob(f"*/*/{stage}")
    if how == "folder":
        shutil.rmtree(data)
        return
    file = max(data.glob("*.parquet"), key=lambda one: one.stat().st_size)
    if how == "file":
        file.unlink()
    else:
        file.write_bytes(b"\0" * file.stat().st_size)


@pytest.mark.parametrize("how", ["folder", "file", "bytes"])
def test_a_result_that_is_gone_is_lost_and_computed_again(
    spark: SparkSession, folder: Path, until: Callable[..., None], how: str
) -> None:
    """The marker alone is not a result; results of the other stages are reused."""
    stop_when_it_runs(live(folder).run(spark), until)
    damaged(folder, "last", how)
    run = live(folder).run(spark)
    progress = {stage.name: run.progress[stage.id] for stage in run.plan.stages}
    run.stop()
    assert [progress[name].state for name in BOUNDED] == [StageState.REUSED, StageState.REUSED, StageState.FINISHED]
    assert (progress["last"].rows, progress["last"].attempts) == (2, 1)


@pytest.mark.parametrize("reader", ["ranks", "live"])
def test_a_result_that_is_lost_during_the_run_is_computed_again(spark: SparkSession, folder: Path, reader: str) -> None:
    """A stage that fails for it, and a live one that is to be deployed, wait for it; the service hears of it."""
    lost: list[str] = []

    def lose() -> None:
        if not lost:
            lost.append("totals")
            damaged(folder, "totals", "folder")

    pipeline = live(folder, before_ranks=lose) if reader == "ranks" else live(folder, before_last=lose)
    with scheduler() as (service, client):
        run = pipeline.run(spark, scheduler_endpoint=service.address)
        job = client.get_job(run.job_id)
        run.stop()
    progress = {stage.name: stage.progress for stage in job.stages}
    assert lost
    assert all(progress[name].state is StageState.FINISHED for name in BOUNDED)
    attempts = {name: progress[name].attempts for name in BOUNDED}
    assert attempts == {"totals": 2, "ranks": 2 if reader == "ranks" else 1, "last": 1}
