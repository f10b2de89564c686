"""`ls` and `watch`: on a terminal, in a pipe, as JSON, and over a service that goes away and comes back."""

import asyncio
import io
import json
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from penstock.operator_attributes import (
    Boundedness,
    JobGraph,
    JobStatus,
    LocalStageScheduler,
    OperatorAttributes,
    RemoteStageScheduler,
    StageFailed,
    StageFinished,
    StageReused,
    StageStarted,
)
from penstock.operator_attributes.errors import SchedulerAwayError, SchedulingError
from penstock.operator_attributes.testing import running_stage_scheduler
from penstock.rpc import ClientSettings, ServerSettings
from penstock.rpc.testing import service_process
from penstock.services.stage_scheduler.__main__ import _parser, main
from penstock.services.stage_scheduler._ask import _Printer, _watch, ask
from penstock.services.stage_scheduler._serve import KIND
from penstock.terminal import Screen

DEADLINE = 60


class Pipe(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def write(self, text: str, /) -> int:
        self.written.set()
        return super().write(text)


class Terminal(Pipe):
    def isatty(self) -> bool:
        return True


def job(name: str = "join") -> JobGraph:
    graph = JobGraph(name)
    graph.add_source("history", boundedness=Boundedness.BOUNDED)
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("daily", "history", attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    graph.add_sink("joined", "live", "daily")
    return graph


async def run(out: Pipe, *arguments: str) -> int:
    parsed = _parser().parse_args(list(arguments))
    return await ask(parsed, ClientSettings.from_arguments(parsed, KIND.prefix), out)


async def until(out: Pipe, text: str) -> None:
    async with asyncio.timeout(DEADLINE):
        while text not in out.getvalue():
            out.written.clear()
            await out.written.wait()


async def finish(client: RemoteStageScheduler) -> None:
    await client.report("job", StageStarted(stage_id="stage-1"))
    await client.report("job", StageFinished(stage_id="stage-1", rows=1_095, size_bytes=20_480))
    await client.report("job", StageReused(stage_id="stage-2"))


async def test_ls_prints_plain_lines_into_a_pipe() -> None:
    """One line a job, cells separated by tabs, nothing else: for cut, grep and awk."""
    async with running_stage_scheduler() as (server, client):
        await client.submit("a", job())
        await client.submit("b", job("other"))
        await client.report("b", StageStarted(stage_id="stage-1"))
        out = Pipe()
        assert await run(out, "ls", "--endpoint", server.address) == 0
    assert out.getvalue() == "a\tjoin\tREADY\t0\t2\nb\tother\tRUNNING\t0\t2\n"


async def test_ls_prints_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With headings, aligned; without colours for those who do not want them."""
    monkeypatch.setenv("NO_COLOR", "1")
    async with running_stage_scheduler() as (server, client):
        await client.submit("nightly", job())
        out = Terminal()
        await run(out, "ls", "--endpoint", server.address)
    headings, _, row = out.getvalue().splitlines()
    assert headings.split() == ["JOB", "NAME", "STATE", "COMMITTED", "STAGES"]
    assert row.split() == ["nightly", "join", "READY", "0/2", "1", "waiting,", "1", "ready"]
    assert headings.index("STAGES") == row.index("1 waiting")
    assert "\x1b" not in out.getvalue()


async def test_ls_prints_json_for_programs() -> None:
    """All fields, one job a line, terminal or not."""
    async with running_stage_scheduler() as (server, client):
        await client.submit("job", job())
        out = Terminal()
        await run(out, "ls", "--json", "--endpoint", server.address)
    (line,) = out.getvalue().splitlines()
    seen = json.loads(line)
    assert (seen["job_id"], seen["state"], seen["stages"][0]["progress"]["state"]) == ("job", "READY", "ready")


async def test_watch_prints_each_change_into_a_pipe_and_ends_with_the_job() -> None:
    """A line for each stage that changed; exit code 0 when all is committed."""
    async with asyncio.timeout(DEADLINE), running_stage_scheduler() as (server, client):
        await client.submit("job", job())
        out = Pipe()
        watching = asyncio.create_task(run(out, "watch", "job", "--endpoint", server.address), name="watch")
        await until(out, "stage-2")
        await finish(client)
        assert await watching == 0
    lines = [line.split("\t") for line in out.getvalue().splitlines()]
    assert [line[:3] for line in lines[:2]] == [["stage-1", "daily", "READY"], ["stage-2", "joined", "WAITING"]]
    assert lines[-1][:3] == ["stage-2", "joined", "REUSED"]
    assert any(line[0] == "stage-1" and line[2] == "FINISHED" and line[5:7] == ["1095", "20480"] for line in lines)


async def test_watch_redraws_its_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table is written over the one before, with the states in colour."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    async with asyncio.timeout(DEADLINE), running_stage_scheduler() as (server, client):
        await client.submit("job", job())
        out = Terminal()
        watching = asyncio.create_task(run(out, "watch", "job", "--endpoint", server.address), name="watch")
        await until(out, "WAITING")
        await finish(client)
        assert await watching == 0
    text = out.getvalue()
    assert "\x1b[1A\x1b[2K" in text
    assert "\x1b[32mFINISHED" in text
    assert "job: SUCCEEDED, 2/2 committed" in text


async def test_watch_of_a_job_that_fails_ends_with_code_1() -> None:
    """Scripts can tell it from a service that cannot be asked; the words of the failure are shown."""
    async with asyncio.timeout(DEADLINE), running_stage_scheduler() as (server, client):
        await client.submit("job", job(), max_attempts=1)
        await client.report("job", StageStarted(stage_id="stage-1"))
        await client.report("job", StageFailed(stage_id="stage-1", error="no\tspace\x1b[2J left"))
        out = Pipe()
        assert await run(out, "watch", "job", "--endpoint", server.address) == 1
    assert "no space [2J left" in out.getvalue()
    assert "\x1b" not in out.getvalue()


async def test_watch_finds_a_service_that_comes_back(tmp_path: Path) -> None:
    """Killed and started again on its file, it continues with the same job, and nothing is shown twice."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    arguments = ["serve", "--store", str(tmp_path / "stages.db"), "--port", port]
    out = Pipe()
    async with asyncio.timeout(DEADLINE):
        with service_process("penstock.services.stage_scheduler", arguments) as service:
            async with RemoteStageScheduler(service.address) as client:
                await client.submit("job", job())
            watching = asyncio.create_task(run(out, "watch", "job", "--endpoint", service.address), name="watch")
            await until(out, "stage-2")
            service.process.kill()
        with service_process("penstock.services.stage_scheduler", arguments) as service:
            async with RemoteStageScheduler(service.address) as client:
                await finish(client)
                assert await watching == 0
    assert out.getvalue().count("stage-1\tdaily\tREADY") == 1


class Restarted:
    """A service that is killed and started again without its jobs; a driver submits its own again after some looks."""

    def __init__(self, looks: int) -> None:
        self._local = LocalStageScheduler()
        self._looks = looks
        self._is_new = True

    async def watch(self, job_id: str) -> AsyncGenerator[JobStatus, None]:
        if self._is_new:
            self._is_new = False
            yield await self._local.submit(job_id, job())
            raise SchedulerAwayError.of("SCHEDULER_CALL_FAILED", status="UNAVAILABLE", details="it is killed")
        self._looks -= 1
        if self._looks >= 0:
            raise SchedulingError.of("UNKNOWN_JOB", job_id=job_id)
        for number in (1, 2):
            yield await self._local.report(job_id, StageReused(stage_id=f"stage-{number}"))


async def test_watch_waits_for_a_driver_that_submits_its_job_again() -> None:
    """To a service that came back without its memory; for as long as it waits for the service itself."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def watched(service: Any, patience: float) -> int:
        with _Printer(Screen(Pipe(), as_json=False)) as printer:
            return await _watch(service, "job", printer, patience=patience, sleep=sleep)

    assert await watched(Restarted(looks=4), 30.0) == 0
    assert len(slept) == 5
    with pytest.raises(SchedulingError, match="UNKNOWN_JOB"):
        await watched(Restarted(looks=9), 2.0)


async def test_a_missing_job_or_service_is_reported_at_once() -> None:
    """An unknown job, and a service that does not run."""
    async with running_stage_scheduler(settings=ServerSettings()) as (server, _):
        with pytest.raises(SchedulingError, match="UNKNOWN_JOB"):
            await run(Pipe(), "watch", "nothing", "--endpoint", server.address)
        address = server.address
    with pytest.raises(SchedulerAwayError):
        await run(Pipe(), "watch", "job", "--endpoint", address)


def test_a_service_that_cannot_be_asked_is_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    """And one line that says why."""
    with socket.socket() as taken:
        # Bound, but no server listens.
        taken.bind(("127.0.0.1", 0))
        assert main(["ls", "--endpoint", f"127.0.0.1:{taken.getsockname()[1]}"]) == 3
    said = capsys.readouterr().err
    assert "no server listens" in said
    assert "penstock stages serve" in said
