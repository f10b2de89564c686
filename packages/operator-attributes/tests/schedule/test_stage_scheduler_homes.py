"""The calls of `StageSchedulerApi`, in this process and over a real socket: the same behaviour in both homes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.operator_attributes import (
    Boundedness,
    Claim,
    ClaimDecision,
    CyclicRegions,
    GlobalWindows,
    Input,
    JobGraph,
    JobStatus,
    LocalStageScheduler,
    OperatorAttributes,
    RemoteStageScheduler,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StageRestarted,
    StageReused,
    StageSchedulerApi,
    StageStarted,
    StageState,
    compile,
    explain,
)
from penstock.operator_attributes.errors import (
    ClaimLostError,
    CompileError,
    FullDamOverUnboundedError,
    InvalidOptionError,
    SchedulerAwayError,
    SchedulingError,
)
from penstock.operator_attributes.testing import FakeClock, running_stage_scheduler
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2_grpc as pb_grpc
from penstock.rpc import ClientSecurity, ServerSecurity, ServerSettings, open_aio_channel
from penstock.rpc._server import access

DEADLINE = 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture(params=["local", "remote"])
async def api(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[StageSchedulerApi]:
    scheduler = LocalStageScheduler(max_jobs=2, clock=clock)
    if request.param == "local":
        async with scheduler:
            yield scheduler
    else:
        async with running_stage_scheduler(scheduler) as (_, client):
            yield client


def flights_job(call_site: str = "job.py:1") -> JobGraph:
    graph = JobGraph("flights")
    graph.add_source("weather", boundedness=Boundedness.BOUNDED, call_site=call_site)
    graph.add_source("flights", boundedness=Boundedness.UNBOUNDED, call_site=call_site)
    graph.add_operator(
        "daily",
        Input("weather", keyed=True),
        window=GlobalWindows.create_with_end_of_stream_trigger(),
        call_site=call_site,
    )
    graph.add_operator("joined", "flights", "daily", call_site=call_site)
    graph.add_sink("delays", "joined", chained=True, parallelism=1, call_site=call_site)
    return graph


async def test_submit_gives_the_plan_and_what_may_be_deployed(api: StageSchedulerApi) -> None:
    """The stages are those that the driver gets by compiling the graph itself."""
    job = await api.submit("job", flights_job(), slots=4)
    plan = compile(flights_job())
    assert (job.job_id, job.name, job.version) == ("job", "flights", 1)
    assert [
        (stage.stage_id, stage.name, stage.vertices, stage.blocking_inputs, stage.bounded, stage.reason)
        for stage in job.stages
    ] == [
        (stage.id, stage.name, stage.vertices, stage.blocking_inputs, stage.bounded, stage.reason)
        for stage in plan.stages
    ]
    assert job.deployable == ("stage-1",)


async def test_reports_move_the_job_to_its_end(api: StageSchedulerApi, clock: FakeClock) -> None:
    """Each answer is the job after the event, with times by the scheduler's clock."""
    await api.submit("job", flights_job())
    job = await api.report("job", StageStarted(stage_id="stage-1"))
    assert job.stage("stage-1").progress.state is StageState.RUNNING
    assert job.deployable == ()
    clock.advance(2.5)
    job = await api.report("job", StageFinished(stage_id="stage-1", rows=1095, size_bytes=0))
    progress = job.stage("stage-1").progress
    assert (progress.state, progress.seconds) == (StageState.FINISHED, 2.5)
    assert (progress.rows, progress.size_bytes, progress.attempts) == (1095, 0, 1)
    assert job.deployable == ("stage-2",)
    await api.report("job", StageStarted(stage_id="stage-2"))
    job = await api.report("job", StageFinished(stage_id="stage-2"))
    assert job.ended
    assert job.succeeded
    assert job.stage("stage-2").progress.rows is None


async def test_failures_carry_their_words_and_whether_they_are_final(api: StageSchedulerApi) -> None:
    """A final failure is not tried again, and what waits for it is skipped."""
    await api.submit("job", flights_job(), max_attempts=5)
    await api.report("job", StageStarted(stage_id="stage-1"))
    job = await api.report("job", StageFailed(stage_id="stage-1", error="lost"))
    assert job.stage("stage-1").progress.error == "lost"
    assert job.deployable == ("stage-1",)
    await api.report("job", StageStarted(stage_id="stage-1"))
    job = await api.report("job", StageFailed(stage_id="stage-1", error="no such table", retryable=False))
    assert [stage.progress.state for stage in job.stages] == [StageState.FAILED, StageState.SKIPPED]
    assert job.ended
    assert not job.succeeded


async def test_reused_stages_need_not_run(api: StageSchedulerApi) -> None:
    """A restarted driver tells what it found committed."""
    await api.submit("job", flights_job())
    job = await api.report("job", StageReused(stage_id="stage-1", rows=3))
    assert job.stage("stage-1").progress.state is StageState.REUSED
    assert job.stage("stage-1").progress.rows == 3
    assert job.deployable == ("stage-2",)


async def test_submitting_again_gives_the_job_as_it_stands(api: StageSchedulerApi) -> None:
    """Also when lines moved in the user's file; another graph under the same id is refused."""
    await api.submit("job", flights_job())
    await api.report("job", StageStarted(stage_id="stage-1"))
    again = await api.submit("job", flights_job(call_site="job.py:99"))
    assert again.stage("stage-1").progress.state is StageState.RUNNING
    assert again.version == 2
    other = flights_job()
    other.add_sink("archive", "joined")
    with pytest.raises(SchedulingError, match="JOB_EXISTS"):
        await api.submit("job", other)


async def test_jobs_are_listed_by_id(api: StageSchedulerApi) -> None:
    """And each can be asked for."""
    await api.submit("b", flights_job())
    await api.submit("a", flights_job())
    assert [job.job_id for job in await api.list_jobs()] == ["a", "b"]
    assert (await api.get_job("a")).job_id == "a"


async def test_ended_jobs_are_forgotten_for_new_ones(api: StageSchedulerApi) -> None:
    """A job that has not ended is never forgotten."""
    for job_id in ("a", "b"):
        await api.submit(job_id, flights_job())
    with pytest.raises(SchedulingError, match="TOO_MANY_JOBS"):
        await api.submit("c", flights_job())
    for stage_id in ("stage-1", "stage-2"):
        await api.report("b", StageReused(stage_id=stage_id))
    await api.submit("c", flights_job())
    assert [job.job_id for job in await api.list_jobs()] == ["a", "c"]


async def test_a_watch_shows_the_job_and_each_change_until_its_end(api: StageSchedulerApi) -> None:
    """It begins with the current state, and ends with the job."""
    await api.submit("job", flights_job())
    seen: list[JobStatus] = []
    async with asyncio.timeout(DEADLINE), aclosing(api.watch("job")) as jobs:
        async for job in jobs:
            seen.append(job)
            if job.version == 1:
                await api.report("job", StageReused(stage_id="stage-1"))
            elif not job.ended:
                await api.report("job", StageReused(stage_id="stage-2"))
    assert [job.version for job in seen] == [1, 2, 3]
    assert seen[-1].succeeded


async def test_a_watch_of_an_ended_job_shows_it_once(api: StageSchedulerApi) -> None:
    """Nothing more will happen."""
    await api.submit("job", flights_job())
    for stage_id in ("stage-1", "stage-2"):
        await api.report("job", StageReused(stage_id=stage_id))
    async with asyncio.timeout(DEADLINE):
        assert [job.version async for job in api.watch("job")] == [3]


async def test_a_slow_watcher_never_misses_the_last_state(api: StageSchedulerApi) -> None:
    """States in between may be left out, their number growing all the same."""
    await api.submit("job", flights_job())
    async with asyncio.timeout(DEADLINE), aclosing(api.watch("job")) as jobs:
        first = await anext(jobs)
        for stage_id in ("stage-1", "stage-2"):
            await api.report("job", StageReused(stage_id=stage_id))
        rest = [job async for job in jobs]
    versions = [first.version, *(job.version for job in rest)]
    assert versions == sorted(set(versions))
    assert rest[-1].succeeded


async def test_wrong_requests_fail_with_the_same_typed_errors_in_both_homes(api: StageSchedulerApi) -> None:
    """Class and fields name the broken rule."""
    with pytest.raises(SchedulingError, match="UNKNOWN_JOB") as unknown_job:
        await api.get_job("nothing")
    assert unknown_job.value.facts == {"job_id": "nothing"}
    with pytest.raises(SchedulingError, match="UNKNOWN_JOB"):
        await api.report("nothing", StageStarted(stage_id="stage-1"))
    with pytest.raises(SchedulingError, match="UNKNOWN_JOB"):
        await anext(api.watch("nothing"))
    await api.submit("job", flights_job())
    with pytest.raises(SchedulingError, match="UNKNOWN_STAGE"):
        await api.report("job", StageStarted(stage_id="stage-9"))
    with pytest.raises(SchedulingError, match="ILLEGAL_EVENT") as illegal:
        await api.report("job", StageStarted(stage_id="stage-2"))
    assert illegal.value.facts == {"stage_id": "stage-2", "state": "waiting", "event": "StageStarted"}
    wide = JobGraph()
    wide.add_source("live", boundedness=Boundedness.UNBOUNDED, parallelism=3)
    with pytest.raises(SchedulingError, match="INSUFFICIENT_SLOTS"):
        await api.submit("wide", wide, slots=2)
    with pytest.raises(InvalidOptionError, match="slots"):
        await api.submit("none", flights_job(), slots=0)
    with pytest.raises(InvalidOptionError, match="max_attempts"):
        await api.submit("none", flights_job(), max_attempts=0)
    with pytest.raises(InvalidOptionError, match="job_id"):
        await api.submit("", flights_job())


async def test_starting_over_budget_is_refused(api: StageSchedulerApi) -> None:
    """Two drivers cannot take the same slot."""
    graph = JobGraph()
    for name in ("a", "b"):
        graph.add_source(name, boundedness=Boundedness.BOUNDED)
    job = await api.submit("job", graph, slots=1)
    assert job.deployable == ("stage-1",)
    await api.report("job", StageStarted(stage_id="stage-1"))
    with pytest.raises(SchedulingError, match="SLOT_BUDGET_EXCEEDED") as caught:
        await api.report("job", StageStarted(stage_id="stage-2"))
    assert caught.value.facts == {"stage_id": "stage-2", "needed": 1, "free": 0}


async def test_compile_errors_cross_with_their_facts(api: StageSchedulerApi) -> None:
    """A graph that cannot be compiled is refused with the operator, its call site and the source."""
    graph = JobGraph()
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator(
        "dam", "live", attributes=OperatorAttributes(output_only_after_end_of_stream=True), call_site="job.py:7"
    )
    with pytest.raises(FullDamOverUnboundedError) as caught:
        await api.submit("job", graph)
    assert (caught.value.operator, caught.value.call_site) == ("dam", "job.py:7")
    assert caught.value.unbounded_sources == ("live",)
    cyclic = JobGraph()
    cyclic.add_operator("a", "b")
    cyclic.add_operator("b", "a")
    with pytest.raises(CompileError, match="GRAPH_CYCLE") as cycle:
        await api.submit("job", cyclic)
    assert cycle.value.facts["cycle"] == ["a", "b", "a"]
    typo = JobGraph()
    typo.add_source("live", boundedness=Boundedness.UNBOUNDED)
    typo.add_sink("sink", "lvie")
    with pytest.raises(CompileError, match="UNKNOWN_INPUT") as unknown:
        await api.submit("job", typo)
    assert unknown.value.facts["nearest"] == "live"
    with pytest.raises(SchedulingError, match="UNKNOWN_JOB"):
        await api.get_job("job")


async def test_closing_the_scheduler_ends_watches_with_an_error() -> None:
    """Watchers can distinguish that from the end of the job, and look for another scheduler."""
    scheduler = LocalStageScheduler()
    async with asyncio.timeout(DEADLINE), running_stage_scheduler(scheduler) as (_, client):
        await scheduler.submit("job", flights_job())
        async with aclosing(client.watch("job")) as jobs:
            assert (await anext(jobs)).version == 1
            await scheduler.close()
            with pytest.raises(SchedulerAwayError, match="SCHEDULER_CLOSED"):
                await anext(jobs)
        with pytest.raises(SchedulerAwayError, match="SCHEDULER_CLOSED"):
            await client.list_jobs()


async def test_an_unreachable_service_is_reported_with_its_status() -> None:
    """Callers need not know gRPC's own errors."""
    async with running_stage_scheduler() as (server, _):
        address = server.address
    async with RemoteStageScheduler(address) as client:
        with pytest.raises(SchedulerAwayError) as caught:
            await client.list_jobs()
    assert caught.value.status == "UNAVAILABLE"


async def test_calls_without_the_token_are_refused() -> None:
    """A server with a token serves only those who know it."""
    settings = ServerSettings(
        security=ServerSecurity(token="a-long-secret-of-tests-with-32-characters"), drain_seconds=1.0
    )
    async with running_stage_scheduler(settings=settings) as (server, client):
        assert await client.list_jobs() == ()
        async with RemoteStageScheduler(server.address) as stranger:
            with pytest.raises(SchedulerAwayError) as caught:
                await stranger.list_jobs()
    assert caught.value.status == "UNAUTHENTICATED"


async def test_messages_that_are_no_graph_are_invalid_arguments() -> None:
    """Clients in other languages get a status code and words, whatever they send."""
    source = pb.Vertex(name="a", kind=pb.VERTEX_KIND_SOURCE, bounded=True, parallelism=1)
    wrong = [
        pb.JobGraph(name="job", vertices=[pb.Vertex(name="a", parallelism=1)]),
        pb.JobGraph(name="job", vertices=[source], edges=[pb.Edge(source="a", target="b")]),
        pb.JobGraph(name="job", vertices=[source, source]),
        pb.JobGraph(name="job", vertices=[pb.Vertex(name="a", kind=pb.VERTEX_KIND_SOURCE)]),
        pb.JobGraph(vertices=[source]),
    ]
    async with running_stage_scheduler() as (server, _):
        channel = open_aio_channel(server.address)
        stub = pb_grpc.StageSchedulerServiceStub(channel)
        for graph in wrong:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Submit(pb.SubmitRequest(job_id="job", graph=graph))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await stub.Submit(pb.SubmitRequest(job_id="job", graph=pb.JobGraph(name="job", vertices=[source])))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Report(pb.ReportRequest(job_id="job", stage_id="stage-1"))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await channel.close(None)


async def test_lost_and_interrupted_stages_are_shown_alike_in_both_homes(api: StageSchedulerApi) -> None:
    """What the state machine says of them crosses the wire."""
    await api.submit("job", flights_job())
    await api.report("job", StageStarted(stage_id="stage-1"))
    interrupted = await api.report("job", StageInterrupted(stage_id="stage-1"))
    assert interrupted.stage("stage-1").progress.state is StageState.INTERRUPTED
    assert interrupted.deployable == ("stage-1",)
    await api.report("job", StageReused(stage_id="stage-1", rows=3))
    lost = await api.report("job", StageLost(stage_id="stage-1", error="no such folder"))
    assert [stage.progress.state for stage in lost.stages] == [StageState.READY, StageState.WAITING]
    assert lost.stage("stage-1").progress.error == "no such folder"


async def test_a_restarted_live_stage_is_shown_alike_in_both_homes(api: StageSchedulerApi) -> None:
    """It runs on, in another attempt, with the reason; a batch stage cannot."""
    await api.submit("job", flights_job())
    await api.report("job", StageStarted(stage_id="stage-1"))
    with pytest.raises(SchedulingError, match="ILLEGAL_EVENT"):
        await api.report("job", StageRestarted(stage_id="stage-1"))
    await api.report("job", StageFinished(stage_id="stage-1"))
    await api.report("job", StageStarted(stage_id="stage-2"))
    job = await api.report("job", StageRestarted(stage_id="stage-2", error="no such table"))
    progress = job.stage("stage-2").progress
    assert (progress.state, progress.attempts, progress.error) == (StageState.RUNNING, 2, "no such table")
    plan = await api.get_plan("job")
    told = explain(plan, {"stage-2": replace(progress, seconds=3.0)})
    assert "state: RUNNING, attempt 2, 3.0 s, again after: no such table" in told


async def test_the_rule_for_circles_is_part_of_the_job(api: StageSchedulerApi) -> None:
    """Each gives its own stages; the same graph under another rule is another job."""
    graph = JobGraph("shared")
    graph.add_source("airports", boundedness=Boundedness.BOUNDED)
    graph.add_operator("count", "airports", attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    graph.add_sink("joined", "airports", "count")
    handed = await api.submit("job", graph, cyclic_regions=CyclicRegions.HAND_OVER)
    assert [stage.vertices for stage in handed.stages] == [("airports", "count"), ("joined",)]
    merged = await api.submit("other", graph, cyclic_regions=CyclicRegions.MERGE)
    assert len(merged.stages) == 1
    with pytest.raises(SchedulingError, match="JOB_EXISTS"):
        await api.submit("job", graph)


async def test_claims_are_decided_alike_in_both_homes(api: StageSchedulerApi, clock: FakeClock) -> None:
    """Grant, wait, expiry, loss, release, commit, reuse and forgetting, by the scheduler's clock."""
    mine = await api.claim("store", "abc", owner="one", lease_seconds=10)
    assert (mine.decision, mine.expires_seconds) == (ClaimDecision.COMPUTE, 10)
    clock.advance(9)
    renewed = await api.renew_claim(mine)
    assert (mine.renewals, renewed.renewals, renewed.expires_seconds) == (0, 1, 10)
    waiting = await api.claim("store", "abc", owner="two")
    assert (waiting.decision, waiting.owner, waiting.token) == (ClaimDecision.WAIT, "one", 0)
    assert waiting.renewals == 1
    clock.advance(10)
    theirs = await api.claim("store", "abc", owner="two", lease_seconds=10)
    assert theirs.decision is ClaimDecision.COMPUTE
    with pytest.raises(ClaimLostError) as caught:
        await api.renew_claim(mine)
    assert (caught.value.store, caught.value.fingerprint, caught.value.token) == ("store", "abc", mine.token)
    await api.release_claim(mine)
    await api.commit_claim(theirs, location="there", rows=0, size_bytes=90)
    reused = await api.claim("store", "abc", owner="one")
    assert (reused.decision, reused.location, reused.rows, reused.size_bytes) == (ClaimDecision.REUSE, "there", 0, 90)
    await api.release_claim(reused)
    assert (await api.claim("store", "abc", owner="one")).decision is ClaimDecision.REUSE
    await api.forget_claim(reused)
    assert (await api.claim("store", "abc", owner="one")).decision is ClaimDecision.COMPUTE
    for wrong in ({"lease_seconds": -1.0}, {"wait_seconds": -1.0}):
        with pytest.raises(InvalidOptionError):
            await api.claim("store", "abc", owner="one", **wrong)


OLD, NEW = (f"the-{age}-token-of-these-tests-with-32-characters" for age in ("old", "new"))


def put(file: Path, token: str) -> Path:
    """Replaces a file at once, as a mounted secret is replaced."""
    following = file.with_suffix(".new")
    following.write_text(token)
    return following.replace(file)


@asynccontextmanager
async def rotating(
    scheduler: LocalStageScheduler, folder: Path
) -> AsyncIterator[tuple[RemoteStageScheduler, Callable[[str], Path], Callable[[str], Path]]]:
    """A client and its server, and functions that replace the token of each."""
    server, client = put(folder / "server", OLD), put(folder / "client", OLD)
    security = ServerSecurity(token_file=server)
    settings = ServerSettings(security=security, drain_seconds=0, recheck_seconds=0.05)
    async with (
        running_stage_scheduler(scheduler, settings) as (running, _),
        RemoteStageScheduler(running.address, ClientSecurity(token_file=client)) as remote,
        asyncio.timeout(DEADLINE),
    ):
        yield remote, partial(put, client), partial(put, server)


async def test_a_watch_continues_with_the_new_token_of_its_file(tmp_path: Path) -> None:
    """It shows the job again as it stands. Without a new token it ends with UNAUTHENTICATED."""
    scheduler = LocalStageScheduler()
    await scheduler.submit("job", flights_job())
    async with (
        rotating(scheduler, tmp_path) as (remote, put_client, put_server),
        aclosing(remote.watch("job")) as watch,
    ):
        assert (await anext(watch)).version == 1
        put_client(NEW)
        put_server(NEW)
        assert (await anext(watch)).version == 1
        put_server(OLD)
        with pytest.raises(SchedulerAwayError) as caught:
            await anext(watch)
        assert caught.value.status == "UNAUTHENTICATED"


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_claim_whose_token_is_revoked_while_it_waits_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_granted: bool
) -> None:
    """Also if the claim was granted before the revocation was seen: the next driver computes at once."""
    scheduler = LocalStageScheduler()
    mine = await scheduler.claim("store", "abc", owner="one")
    granted, asked = scheduler.claim, asyncio.Event()
    if is_granted:
        monkeypatch.setattr(access, "_OUTDATED_SECONDS", 0.0)

    async def claim(*names: Any, **options: Any) -> Claim:
        asked.set()
        answer = await granted(*names, **options)
        put_server(NEW)
        return answer

    async with rotating(scheduler, tmp_path) as (remote, _, put_server):
        monkeypatch.setattr(scheduler, "claim", claim)
        waiting = asyncio.create_task(remote.claim("store", "abc", owner="two", wait_seconds=600))
        await asked.wait()
        if is_granted:
            await scheduler.release_claim(mine)
        else:
            put_server(NEW)
        with pytest.raises(SchedulerAwayError) as caught:
            await waiting
        assert caught.value.status == "UNAUTHENTICATED"
        if not is_granted:
            await scheduler.release_claim(mine)
        theirs = await granted("store", "abc", owner="three", wait_seconds=0.0 if not is_granted else 10.0)
        assert theirs.decision is ClaimDecision.COMPUTE
