"""What can be done by the console, over real sockets: nothing without leave, and then what was agreed to."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlencode

import pytest
from console_visits import TOKEN, browsing, fields_of, fill, page, send, shown
from console_world import console, world

from penstock.operator_attributes import StageState
from penstock.rpc import ServerSecurity


async def test_nothing_can_be_done_without_leave() -> None:
    """The routes answer 403, forms too."""
    async with world() as services:
        await fill(services)
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            await shown(http, "consumers", "job-1")
            for path in ("/actions/release?stream=flights&consumer=delays-job", "/actions/resume?job=report"):
                async with http.get(path) as answer:
                    assert answer.status == 403
                assert await send(http, path.partition("?")[0], {"stream": "flights", "consumer": "delays-job"}) == 403
        (consumer,) = await services.registry.list_consumers()
        assert consumer.lease is not None


async def test_a_lease_is_released_after_a_question(caplog: pytest.LogCaptureFixture) -> None:
    """By the form of the page that asked, from this browser; the log says who did it."""
    caplog.set_level(logging.INFO, "penstock.services.console")
    async with world() as services:
        await fill(services)
        async with console(services.endpoints(), allow_actions=True) as running, browsing(running.url) as http:
            await shown(http, "consumers", "Release…")
            path, query = "/actions/release", {"stream": "flights", "consumer": "delays-job"}
            form = fields_of(await page(http, f"actions/release?{urlencode(query)}"))
            assert await send(http, path, query) == 403
            assert await send(http, path, {**form, "form_token": "0" * 64}) == 403
            assert await send(http, path, form, **{"Sec-Fetch-Site": "cross-site"}) == 403
            assert await send(http, path, form, Origin="null") == 403
            async with browsing(running.url) as other:
                assert await send(other, path, form) == 403
            (consumer,) = await services.registry.list_consumers()
            assert consumer.lease is not None
            assert await send(http, path, form) == 303
            assert all(one.lease is None for one in await services.registry.list_consumers())
            text = await page(http, "consumers")
            assert "the lease of job job-1 is ended" in text
            assert "Release…" not in text
            async with http.get(path, params=query) as answer:
                assert answer.status == 404
    said = [one.getMessage() for one in caplog.records if one.name.endswith("._actions")]
    assert len(said) == 1
    assert "at 127.0.0.1: 'release consumer delays-job of stream flights': 'the lease of job job-1 is ended'" in said[0]
    assert form["form_token"] not in caplog.text


async def test_a_stage_is_resumed_by_a_program_with_the_token() -> None:
    """It needs no form, for no page can make a browser send the header; a stage that does not run cannot be resumed."""
    async with world() as services:
        await fill(services)
        options: dict[str, Any] = {"server": {"security": ServerSecurity(token=TOKEN)}, "allow_actions": True}
        async with console(services.endpoints(), **options) as running, browsing(running.url) as http:
            headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "*/*"}
            form = {"job": "report", "stage": "stage-2"}
            assert await send(http, "/actions/resume", form) == 401
            for stage, state in (("stage-1", StageState.RUNNING), ("stage-2", StageState.INTERRUPTED)):
                async with http.post(
                    "/actions/resume", data={**form, "stage": stage}, headers=headers, allow_redirects=False
                ) as answer:
                    assert answer.status == 303
                job = await services.stages.get_job("report")
                assert job.stage("stage-2").progress.state is state
            async with http.get("/job?id=report", headers=headers) as answer:
                text = await answer.text()
            assert "the stage is interrupted" in text
            assert "failed: " in text
