"""What can be resumed: running stages whose driver is gone, failed ones, and why no others."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
from console_world import END, console, world

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    JobStatus,
    LocalStageScheduler,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageStarted,
    StageState,
)
from penstock.services.console._sources.resume import How, resumption
from penstock.services.console._sources.services import StagesSource
from penstock.services.console.errors import NotResumableError
from penstock.services.console.testing import Kind


def diamond() -> JobGraph:
    """Two batch stages, `weather` and `airports`; `names` waits for both, and the live `alerts` for that."""
    graph = JobGraph("delays")
    for name in ("weather", "airports"):
        graph.add_source(f"{name}.csv", boundedness=Boundedness.BOUNDED)
        graph.add_operator(name, f"{name}.csv", keyed=True, window=END)
    graph.add_operator("names", "weather", "airports", keyed=True, window=END)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("joined", "live", "names")
    graph.add_sink("alerts", "joined")
    return graph


async def submitted(scheduler: LocalStageScheduler, job_id: str = "job") -> tuple[JobStatus, dict[str, str]]:
    """The job, and the ids of its stages by the last of their vertices."""
    job = await scheduler.submit(job_id, diamond(), slots=4)
    return job, {stage.vertices[-1]: stage.stage_id for stage in job.stages}


async def failed(scheduler: LocalStageScheduler, job_id: str = "job") -> dict[str, str]:
    """`weather` is committed, `airports` has failed for the last time."""
    _, ids = await submitted(scheduler, job_id)
    await scheduler.report(job_id, StageStarted(stage_id=ids["weather"]))
    await scheduler.report(job_id, StageFinished(stage_id=ids["weather"], rows=7, size_bytes=70))
    await scheduler.report(job_id, StageStarted(stage_id=ids["airports"]))
    await scheduler.report(job_id, StageFailed(stage_id=ids["airports"], error="no such file", retryable=False))
    return ids


def states(job: JobStatus) -> dict[str, StageState]:
    return {stage.vertices[-1]: stage.progress.state for stage in job.stages}


def words(job: JobStatus, ids: dict[str, str], name: str) -> tuple[How | None, str]:
    what = resumption(job, job.stage(ids[name]))
    return what.how, what.words


async def test_each_state_has_its_words() -> None:
    """They say what resuming does, or why it cannot be done and what does help."""
    async with LocalStageScheduler() as scheduler:
        job, ids = await submitted(scheduler)
        assert words(job, ids, "weather") == (
            None,
            "It may be deployed: its driver does so as soon as there are slots.",
        )
        how, text = words(job, ids, "names")
        assert how is None
        assert set(re.findall("weather|airports", text)) == {"weather", "airports"}
        job = await scheduler.report("job", StageStarted(stage_id=ids["weather"]))
        how, text = words(job, ids, "weather")
        assert how is How.INTERRUPT
        assert "If its driver is alive, the stage may run twice." in text
        job = await scheduler.report("job", StageInterrupted(stage_id=ids["weather"]))
        assert words(job, ids, "weather") == (None, "It may be deployed again already: start its driver.")
        ids = await failed(scheduler, "other")
        job = await scheduler.get_job("other")
        assert words(job, ids, "weather")[1].startswith("It is committed.")
        how, text = words(job, ids, "airports")
        assert how is How.RETRY
        assert "keeps the one that is committed," in text
        for name in ("names", "alerts"):
            how, text = words(job, ids, name)
            assert how is None
            assert text == "Skipped, because airports failed: resume that, and this one waits again."


async def test_a_failed_stage_waits_while_others_run() -> None:
    """Whoever runs them would find another job under its name."""
    async with LocalStageScheduler() as scheduler:
        _, ids = await submitted(scheduler)
        for name in ("weather", "airports"):
            await scheduler.report("job", StageStarted(stage_id=ids[name]))
        job = await scheduler.report("job", StageFailed(stage_id=ids["airports"], error="x", retryable=False))
        how, text = words(job, ids, "airports")
        assert how is None
        assert "nothing of the job runs: weather does" in text


async def test_a_failed_stage_is_tried_again_with_what_is_committed() -> None:
    """Its result is used with its numbers; what was skipped waits; a driver may go on from there to the end."""
    async with world() as services:
        ids = await failed(services.stages)
        source = StagesSource(next(one for one in services.endpoints() if one.kind is Kind.STAGES))
        try:
            job = await source.resume("job", ids["airports"], how="retry")
            assert states(job) == {
                "weather": StageState.REUSED,
                "airports": StageState.READY,
                "names": StageState.WAITING,
                "alerts": StageState.WAITING,
            }
            assert job.stage(ids["weather"]).progress.rows == 7
            assert job.stage(ids["weather"]).progress.size_bytes == 70
            assert job.slots == 4
            assert job.deployable == (ids["airports"],)
            for name in ("airports", "names", "alerts"):
                await services.stages.report("job", StageStarted(stage_id=ids[name]))
                job = await services.stages.report("job", StageFinished(stage_id=ids[name]))
            assert job.succeeded
            with pytest.raises(NotResumableError, match="It is committed"):
                await source.resume("job", ids["airports"])
        finally:
            await source.close()


async def test_what_was_agreed_to_is_done_or_nothing() -> None:
    """A stage that ran when somebody was asked, and has failed since, makes no job begin anew."""
    async with world() as services:
        ids = await failed(services.stages)
        source = StagesSource(next(one for one in services.endpoints() if one.kind is Kind.STAGES))
        try:
            with pytest.raises(NotResumableError, match="look again"):
                await source.resume("job", ids["airports"], how="interrupt")
        finally:
            await source.close()
        assert states(await services.stages.get_job("job"))["airports"] is StageState.FAILED


async def text_of(http: aiohttp.ClientSession, path: str, status: int = 200) -> str:
    async with http.get(path) as answer:
        assert answer.status == status, await answer.text()
        return await answer.text()


async def known(http: aiohttp.ClientSession, job_id: str) -> None:
    """Wait until the console knows a job."""
    async with asyncio.timeout(20):
        while True:
            if f"id={job_id}" in await text_of(http, "/jobs"):
                return
            await asyncio.sleep(0.05)


async def test_a_failed_stage_is_resumed_from_its_page() -> None:
    """After a question, by its form alone; the others say why they cannot be; what was done is on the page."""
    async with world() as services:
        ids = await failed(services.stages)
        jar = aiohttp.CookieJar(unsafe=True)
        options: dict[str, Any] = {
            "cookie_jar": jar,
            "headers": {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"},
        }
        async with (
            console(services.endpoints(), allow_actions=True) as running,
            aiohttp.ClientSession(running.url, **options) as http,
        ):
            await known(http, "job")
            page = await text_of(http, "/job?id=job")
            assert page.count("Resume…") == 1
            assert page.count("Skipped, because airports failed: resume that") == 2
            query = urlencode({"job": "job", "stage": ids["names"]})
            assert "cannot be resumed. Skipped, because airports failed" in await text_of(
                http, f"/actions/resume?{query}", 409
            )
            await text_of(http, "/actions/resume?" + urlencode({"job": "job", "stage": "none"}), 404)
            form = await text_of(http, "/actions/resume?" + urlencode({"job": "job", "stage": ids["airports"]}))
            assert "keeps the one that is committed" in form
            fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
            assert fields["how"] == "retry"
            for wrong in ({**fields, "form_token": "0" * 64}, {"job": "job", "stage": ids["airports"]}):
                async with http.post("/actions/resume", data=wrong) as answer:
                    assert answer.status == 403
            assert states(await services.stages.get_job("job"))["airports"] is StageState.FAILED
            async with http.post("/actions/resume", data=fields) as answer:
                assert answer.status == 200
                assert "the stage is ready" in await answer.text()
            assert states(await services.stages.get_job("job"))["airports"] is StageState.READY
            # The same form again: the stage stands otherwise now.
            async with http.post("/actions/resume", data=fields) as answer:
                assert "failed: It may be deployed" in await answer.text()
