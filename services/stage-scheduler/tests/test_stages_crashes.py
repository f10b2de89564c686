"""What the service keeps when it is killed, and how drivers share the results of one store."""

import asyncio
from pathlib import Path

import pytest

from penstock.operator_attributes import (
    Boundedness,
    ClaimDecision,
    JobGraph,
    OperatorAttributes,
    RemoteStageScheduler,
    StageInterrupted,
    StageStarted,
    StageState,
)
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.services.stage_scheduler.__main__ import main

MODULE = "penstock.services.stage_scheduler"
DEADLINE = 60


def job() -> JobGraph:
    graph = JobGraph("join")
    graph.add_source("history", boundedness=Boundedness.BOUNDED)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("daily", "history", attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    graph.add_sink("joined", "live", "daily")
    return graph


def kill(service: ServiceProcess) -> None:
    service.process.kill()
    service.process.wait(20)


def serve(store: Path) -> list[str]:
    return ["serve", "--store", str(store)]


async def test_every_report_that_was_answered_is_kept_however_often_the_service_is_killed(tmp_path: Path) -> None:
    """Three kills in the middle of reports lose none that the driver got an answer to, and double none."""
    store = tmp_path / "stages.db"
    answered = 0
    for round_number in range(3):
        with service_process(MODULE, serve(store)) as service:
            async with asyncio.timeout(DEADLINE), RemoteStageScheduler(service.address) as driver:
                seen = await driver.submit("job", job())
                assert seen.version in (answered + 1, answered + 2)
                answered = seen.version - 1
                if seen.stage("stage-1").progress.state is StageState.RUNNING:
                    await driver.report("job", StageInterrupted(stage_id="stage-1"))
                    answered += 1
                for _ in range(5 + round_number):
                    await driver.report("job", StageStarted(stage_id="stage-1"))
                    await driver.report("job", StageInterrupted(stage_id="stage-1"))
                    answered += 2
                unanswered = asyncio.create_task(driver.report("job", StageStarted(stage_id="stage-1")), name="report")
                await asyncio.sleep(0)
                kill(service)
                await asyncio.gather(unanswered, return_exceptions=True)
                if unanswered.exception() is None:
                    answered += 1


async def test_claims_survive_kill_9_and_tokens_are_not_given_twice(tmp_path: Path) -> None:
    """Results that were committed are reused, held claims are awaited, and fencing tokens keep growing."""
    store = tmp_path / "stages.db"
    with service_process(MODULE, serve(store)) as service:
        async with RemoteStageScheduler(service.address) as driver:
            done = await driver.claim("s3://results", "done", owner="one")
            await driver.commit_claim(done, location="s3://results/done", rows=7)
            held = await driver.claim("s3://results", "held", owner="one", lease_seconds=300)
            await driver.renew_claim(held)
            released = await driver.claim("s3://results", "released", owner="one")
            await driver.release_claim(released)
        kill(service)
    with service_process(MODULE, serve(store)) as service:
        async with asyncio.timeout(DEADLINE), RemoteStageScheduler(service.address) as driver:
            reused = await driver.claim("s3://results", "done", owner="two")
            assert (reused.decision, reused.location, reused.rows) == (ClaimDecision.REUSE, "s3://results/done", 7)
            waiting = await driver.claim("s3://results", "held", owner="two")
            assert (waiting.decision, waiting.owner, waiting.renewals) == (ClaimDecision.WAIT, "one", 1)
            assert 0 < waiting.expires_seconds <= 300
            fresh = await driver.claim("s3://results", "released", owner="two")
            assert fresh.token > released.token
            await driver.commit_claim(held, location="here")


def test_a_second_service_on_the_same_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would not see what the first one answers."""
    store = tmp_path / "stages.db"
    with service_process(MODULE, serve(store)):
        code = main(serve(store))
    assert code == 2
    assert "another scheduler uses it" in capsys.readouterr().err
