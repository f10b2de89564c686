"""`penstock stages resume`, against a scheduler that runs as a process."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from penstock.operator_attributes import (
    Boundedness,
    GlobalWindows,
    JobGraph,
    JobStatus,
    RemoteStageScheduler,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageStarted,
    StageState,
)
from penstock.rpc.testing import service_process
from penstock.services.stage_scheduler.__main__ import main

T = TypeVar("T")
END = GlobalWindows.create_with_end_of_stream_trigger()
WAITING, READY, REUSED = StageState.WAITING, StageState.READY, StageState.REUSED


def diamond() -> JobGraph:
    """Two batch stages, `weather` and `airports`; `names` waits for both, and the live `alerts` for `names`."""
    graph = JobGraph("delays")
    for name in ("weather", "airports"):
        graph.add_source(f"{name}.csv", boundedness=Boundedness.BOUNDED)
        graph.add_operator(name, f"{name}.csv", keyed=True, window=END)
    graph.add_operator("names", "weather", "airports", keyed=True, window=END)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("joined", "live", "names")
    graph.add_sink("alerts", "joined")
    return graph


class Driver:
    """What a driver tells the scheduler, and the ids of the stages of `diamond` by the name of their last vertex."""

    def __init__(self, address: str) -> None:
        self.address = address
        job = self.ask(lambda scheduler: scheduler.submit("delays", diamond(), slots=4))
        self.ids = {stage.vertices[-1]: stage.stage_id for stage in job.stages}

    def ask(self, call: Callable[[RemoteStageScheduler], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            async with RemoteStageScheduler(self.address) as scheduler:
                return await call(scheduler)

        return asyncio.run(asked())

    def report(self, kind: type[Any], name: str, **values: object) -> JobStatus:
        return self.ask(lambda scheduler: scheduler.report("delays", kind(stage_id=self.ids[name], **values)))

    def job(self) -> JobStatus:
        return self.ask(lambda scheduler: scheduler.get_job("delays"))

    def states(self) -> dict[str, StageState]:
        return {stage.vertices[-1]: stage.progress.state for stage in self.job().stages}

    def resume(self, name: str, *flags: str) -> int:
        """The exit code of the command."""
        return main(["resume", "delays", self.ids.get(name, name), "--endpoint", self.address, *flags])

    def fail_airports(self) -> None:
        """`weather` is committed, `airports` has failed for the last time."""
        self.report(StageStarted, "weather")
        self.report(StageFinished, "weather", rows=7, size_bytes=70)
        self.report(StageStarted, "airports")
        self.report(StageFailed, "airports", error="no such file", retryable=False)


@pytest.fixture
def driver() -> Iterator[Driver]:
    with service_process("penstock.services.stage_scheduler", ["serve"]) as service:
        yield Driver(service.address)


def test_a_failed_stage_is_resumed_with_what_is_committed(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    """The committed result is kept with its numbers, skipped stages wait again, and the job can reach its end."""
    driver.fail_airports()
    assert driver.resume("airports") == 0
    stage_id = driver.ids["airports"]
    assert capsys.readouterr().out.split("\t")[::2][:2] == [stage_id, "READY"]
    assert driver.states() == {"weather": REUSED, "airports": READY, "names": WAITING, "alerts": WAITING}
    job = driver.job()
    kept = job.stage(driver.ids["weather"]).progress
    assert (kept.rows, kept.size_bytes, job.slots, job.deployable) == (7, 70, 4, (stage_id,))
    for name in ("airports", "names", "alerts"):
        driver.report(StageStarted, name)
        job = driver.report(StageFinished, name)
    assert job.succeeded


def test_a_running_stage_is_resumed_with_force_only(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    """Its driver may still run it."""
    driver.report(StageStarted, "weather")
    assert driver.resume("weather") == 2
    assert capsys.readouterr().err.startswith("penstock stages: --force: ")
    assert driver.states()["weather"] is StageState.RUNNING
    assert driver.resume("weather", "--force", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    states = {stage["stage_id"]: stage["progress"]["state"] for stage in document["stages"]}
    assert (document["job_id"], states[driver.ids["weather"]]) == ("delays", "interrupted")
    assert driver.states()["weather"] is StageState.INTERRUPTED
    assert driver.ids["weather"] in driver.job().deployable


def test_a_failed_stage_is_not_resumed_while_another_stage_runs(
    driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job would begin again under a driver that runs it."""
    for name in ("weather", "airports"):
        driver.report(StageStarted, name)
    driver.report(StageFailed, "airports", error="no such file", retryable=False)
    assert driver.resume("airports", "--force") == 1
    assert driver.ids["weather"] in capsys.readouterr().err
    assert driver.states()["weather"] is StageState.RUNNING
    assert driver.resume("weather", "--force") == driver.resume("airports") == 0
    assert driver.states()["airports"] is READY


def test_other_stages_cannot_be_resumed_and_say_what_helps(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing changes, and the exit code is 1."""
    before = driver.states()
    for name in ("weather", "names"):
        assert driver.resume(name) == 1
    assert driver.states() == before
    driver.report(StageStarted, "weather")
    driver.report(StageInterrupted, "weather")
    assert driver.resume("weather") == 1
    driver.fail_airports()
    before = driver.states()
    capsys.readouterr()
    for name, word in (("weather", "resume=False"), ("names", driver.ids["airports"]), ("alerts", "airports")):
        assert driver.resume(name, "--force") == 1
        assert word in capsys.readouterr().err
    assert driver.states() == before


def test_stages_and_services_that_are_not_there_are_reported(
    driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 1 for a stage, and 3 for a service."""
    assert driver.resume("stage-99") == 1
    assert "'stage-99'" in capsys.readouterr().err
    assert main(["resume", "delays", "stage-1", "--endpoint", "127.0.0.1:1"]) == 3
