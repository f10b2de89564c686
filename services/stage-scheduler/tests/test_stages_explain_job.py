"""`explain --job`: a job of a service as it stands."""

import io

import pytest

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    LocalStageScheduler,
    OperatorAttributes,
    StageFinished,
    StageReused,
    StageStarted,
    compile,
)
from penstock.operator_attributes.errors import SchedulingError
from penstock.operator_attributes.testing import running_stage_scheduler
from penstock.rpc import ClientSettings
from penstock.services.stage_scheduler.__main__ import _parser, main
from penstock.services.stage_scheduler._ask import ask
from penstock.services.stage_scheduler._serve import KIND
from penstock.services.stage_scheduler._show import render

BEGINNINGS = {"text": "", "mermaid": "flowchart", "dot": "digraph", "svg": "<svg", "html": "<!doctype html"}


def job() -> JobGraph:
    graph = JobGraph("join")
    graph.add_source("history", boundedness=Boundedness.BOUNDED, call_site="flights.py:12")
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("daily", "history", attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    graph.add_sink("joined", "live", "daily")
    return graph


async def asked(arguments: list[str], out: io.StringIO) -> int:
    parsed = _parser().parse_args(arguments)
    return await ask(parsed, ClientSettings.from_arguments(parsed, KIND.prefix), out)


async def explained(address: str, form: str) -> str:
    out = io.StringIO()
    arguments = ["explain", "--job", "flights", "--format", form, "--endpoint", address]
    assert await asked(arguments, out) == 0
    return out.getvalue()


@pytest.mark.parametrize("form", list(BEGINNINGS))
async def test_a_running_job_is_explained_in_all_formats(form: str) -> None:
    """With the states of its stages, and what has been counted so far."""
    async with running_stage_scheduler() as (server, client):
        await client.submit("flights", job())
        await client.report("flights", StageStarted(stage_id="stage-1"))
        before = await explained(server.address, form)
        await client.report("flights", StageFinished(stage_id="stage-1", rows=4321))
        after = await explained(server.address, form)
    assert before.lower().startswith(BEGINNINGS[form])
    assert "RUNNING" in before.upper()
    assert "FINISHED" in after.upper()
    assert form in ("mermaid", "dot") or "4,321" in after


@pytest.mark.parametrize("form", list(BEGINNINGS))
async def test_a_job_that_is_restarted_meanwhile_is_explained(form: str) -> None:
    """Its states are asked before its graph: that may be another one by then, with more stages."""
    async with LocalStageScheduler() as scheduler:
        graph = JobGraph("before")
        graph.add_source("history", boundedness=Boundedness.BOUNDED)
        graph.add_sink("table", "history")
        await scheduler.submit("flights", graph)
        before = await scheduler.report("flights", StageReused(stage_id="stage-1"))
    after = job()
    after.add_sink("averages", "daily")
    assert render(compile(after), form, before).lower().startswith(BEGINNINGS[form])


async def test_as_json_it_is_the_plan() -> None:
    """To be drawn by other programs."""
    async with running_stage_scheduler() as (server, client):
        await client.submit("flights", job())
        assert await explained(server.address, "json") == compile(job()).to_json()
        with pytest.raises(SchedulingError, match="UNKNOWN_JOB"):
            await asked(["explain", "--job", "x", "--endpoint", server.address], io.StringIO())


@pytest.mark.parametrize("arguments", [[], ["job.json", "--job", "flights"]])
def test_either_a_file_or_a_job_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Neither, or both, is wrong usage."""
    assert main(["explain", *arguments]) == 2
    assert "either a file or --job" in capsys.readouterr().err
