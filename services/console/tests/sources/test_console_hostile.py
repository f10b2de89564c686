"""Services that answer too late, too much, or with what they have no right to say: the console is not held up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
from console_visits import browsing, page, shown
from console_world import console, session, shard_stats, world

from penstock.efo_consumer import SERVICE_NAME as READER
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as stages_pb
from penstock.registration import AnnouncedReader
from penstock.rpc import ServerSettings
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._sources.bounded import MOST, MOST_CHARACTERS, MOST_NESTED, BoundedReader, cut
from penstock.services.console._values import Answer, DriverReader, Kind, Snapshot, TakenAt
from penstock.services.console._views.streams import known_streams, stream_rows
from penstock.services.console._views.view import View, at_least

ARN = "arn:aws:kinesis:eu-west-1:666666666666:stream/flights"
TOKEN = "a-view-token-of-these-tests-with-32-characters"


@asynccontextmanager
async def reader_that_says(answer: Callable[[], pb.ListSessionsResponse] | None) -> AsyncIterator[str]:
    """A reader at an address; it never answers where it has nothing to say."""

    async def list_sessions(_request: bytes, _context: Any) -> bytes:
        if answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        return answer().SerializeToString()

    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    handler = grpc.unary_unary_rpc_method_handler(list_sessions)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(READER, {"ListSessions": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def sessions(count: int) -> Callable[[], pb.ListSessionsResponse]:
    """That many sessions, as small as can be."""
    answer = pb.ListSessionsResponse()
    answer.sessions.extend([pb.Session()] * count)
    return lambda: answer


def announced(job_id: str, address: str, **values: Any) -> AnnouncedReader:
    given = {"job_id": job_id, "reader_id": "r", "address": address, "view_token": TOKEN, "query": job_id}
    return AnnouncedReader(**given | {"stream_names": ("flights",)} | values)


def rows(text: str) -> dict[str, str]:
    """The rows of the page of readers, by query."""
    return {one[1]: one[0] for one in re.findall(r'(<tr>\s*<th scope="row">([^<]+).*?</tr>)', text, re.DOTALL)}


async def test_readers_that_answer_too_much_or_not_at_all_delay_no_other() -> None:
    """Each is shown with the reason; another one is shown with its shards, and sums say that they are too small."""
    honest = pb.ListSessionsResponse()
    honest.sessions.add(session_id="honest/flights", shard_count=1).shards.add(stream_name="flights", shard_id="s-7")
    async with (
        world() as services,
        reader_that_says(sessions(600_000)) as large,
        reader_that_says(sessions(500_000)) as many,
        reader_that_says(None) as silent,
        reader_that_says(lambda: honest) as good,
    ):
        for job_id, address in (("large", large), ("many", many), ("silent", silent), ("zhonest", good)):
            await services.drivers.announce(announced(job_id, address))
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            assert await page(http, "healthz") == "ok\n"
            found = rows(await shown(http, "readers", "its answer is larger than 1 MiB"))
            assert "no answer in 2 s" in found["silent"]
            assert "the reader<" in found["zhonest"]
            text = await page(http, "readers")
            # Four were announced, and all are shown; of one not all sessions were looked at.
            assert '<p class="lead">4 readers' in text
            assert "the largest lag is at least" in text
            assert "s-7" in await page(http, "stream?name=flights")
            assert "at least of" in await page(http, "")


def test_an_answer_is_cut_to_its_bounds() -> None:
    """Sessions, shards and texts are; a job whose stages do not all fit is left out, as its state would be wrong."""
    answer = pb.ListSessionsResponse()
    full = pb.Session(session_id="x" * 9_999, shard_count=7)
    full.shards.extend([pb.ShardStats(shard_id="s")] * (MOST + 1))
    answer.sessions.extend([full] * 6)
    answer.sessions.extend([pb.Session()] * MOST)
    assert cut(answer) == 6
    assert len(answer.sessions) == MOST
    assert [len(one.shards) for one in answer.sessions[:6]] == [MOST] * (MOST_NESTED // MOST) + [0]
    assert answer.sessions[0].shard_count == MOST + 1
    assert len(answer.sessions[0].session_id) == MOST_CHARACTERS + 1
    jobs = stages_pb.ListJobsResponse()
    for job_id, stages in (("small", 3), ("large", MOST + 1), ("last", 1)):
        jobs.jobs.add(job_id=job_id).stages.extend([stages_pb.Stage(vertices=["v" * 9_999])] * stages)
    assert cut(jobs) == 1
    assert [one.job_id for one in jobs.jobs] == ["small", "last"]
    assert len(jobs.jobs[0].stages[0].vertices[0]) == MOST_CHARACTERS + 1


async def test_lists_in_pages_are_read_up_to_a_bound() -> None:
    """Of a list without an end a thousand entries are shown; a job that may continue on the next page is left out."""
    asked = 0

    def pages() -> pb.ListSessionsResponse:
        nonlocal asked
        asked += 1
        answer = pb.ListSessionsResponse(next_page_token="more")
        answer.sessions.extend(pb.Session(session_id=f"{asked}-{number}") for number in range(300))
        return answer

    async with reader_that_says(pages) as address:
        reader = BoundedReader(address)
        assert len(await reader.sessions(with_shards=True)) == MOST
        assert asked == MOST // 300 + 1
        assert reader.left_out == 1 + asked * 300 - MOST
        await reader.aclose()
    jobs = stages_pb.ListJobsResponse(next_page_token="more")
    for job_id in ("whole", "partial"):
        jobs.jobs.add(job_id=job_id).stages.add(stage_id="stage-1")
    assert cut(jobs) == 2
    assert [one.job_id for one in jobs.jobs] == ["whole"]


async def test_a_reader_is_shown_for_the_streams_that_it_announced_alone() -> None:
    """Another stream, or its ARN, is shown nowhere."""
    answer = pb.ListSessionsResponse()
    asked = answer.sessions.add(session_id="asked", shard_count=3)
    asked.shards.add(stream_name="flights", shard_id="shardId-000000000001", millis_behind_latest=86_400_000)
    asked.shards.add(stream_name="orders", shard_id="shardId-000000000002")
    asked.shards.add(stream_name=ARN, shard_id="shardId-000000000003", losses=9)
    async with world() as services, reader_that_says(lambda: answer) as address:
        services.reader.open_sessions = [session("query-1", [shard_stats("flights", 0)])]
        await services.drivers.announce(announced("asked", address, stream_names=("orders",)))
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            await shown(http, "stream?name=orders", "shardId-</span>000000000002")
            found = rows(await shown(http, "readers", "query-1"))
            assert "2 shards of streams that it did not announce" in found["asked"]
            text = await page(http, "stream?name=flights")
            assert re.findall(r'id="s-([^"]+)"', text) == ["shardId-000000000000"]
            for path in ("", "streams", "readers", "stream?name=flights"):
                assert "666666666666" not in await page(http, path), path
            assert "did not announce" in await page(http, "")


def test_sums_over_what_was_cut_are_at_least_what_they_say() -> None:
    """Each where entries of its own services were left out, or shards of a session."""
    sink = Answer[Any](kind=Kind.SINK, endpoint="s:1", value=(), left_out=1)
    whole, part = session("whole", [shard_stats("a", 0)]), session("part", [shard_stats("b", 0)])
    reader = Answer(kind=Kind.READER, endpoint="r:1", value=(whole, replace(part, shard_count=2)))
    seen = View(
        snapshot=Snapshot(sinks=(sink,), readers=(reader,)), settings=ConsoleSettings(server=ServerSettings()), now=0.0
    )
    assert {name for name, words in at_least(seen).items() if words} == {"sinks", "streams", "lag", "untaken"}
    assert [(row.name, row.is_lag_partial, row.are_losses_partial) for row in stream_rows(seen)] == [
        ("a", False, False),
        ("b", True, True),
    ]


def test_an_announced_arn_stands_in_for_no_stream_that_a_service_names() -> None:
    """Its shards would be listed in place of the stream's own; where no service names the stream, the ARN is used."""
    driver = DriverReader(
        job_id="evil",
        address="a:1",
        query="",
        owner="",
        stream_names=(ARN,),
        shards=0,
        troubled_shards=0,
        millis_behind_latest=-1,
        condition="",
        age_seconds=1.0,
        silent_seconds=1.0,
    )
    drivers = Answer(kind=Kind.DRIVERS, endpoint="d:1", value=(driver,))
    reader = Answer(kind=Kind.READER, endpoint="r:1", value=(session("q", [shard_stats("flights", 0)]),))
    assert known_streams(Snapshot(drivers=(drivers,), readers=(reader,))) == {"flights": "flights"}
    assert known_streams(Snapshot(drivers=(drivers,))) == {"flights": ARN}


async def test_a_time_that_is_no_date_breaks_no_page() -> None:
    """A page would fail for everybody, for what one reader says."""
    answer = pb.ListSessionsResponse()
    one = answer.sessions.add(session_id="q", shard_count=1, idle_seconds=float("inf"))
    refused = pb.ShardCondition(state=pb.SHARD_STATE_REFUSED, since_millis=2**62, cause="no right")
    one.shards.add(stream_name="flights", shard_id="shardId-000000000001", condition=refused)
    async with world() as services, reader_that_says(lambda: answer) as address:
        await services.drivers.announce(announced("asked", address))
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            await shown(http, "readers", "refused: no right")
            for path in ("", "streams", "stream?name=flights"):
                assert await page(http, path)


def test_a_query_that_takes_nothing_is_told_by_its_buffers() -> None:
    """Calls that keep a session alive are no sign; what it takes is, and so are buffers that are empty."""
    taken = TakenAt()
    for now, size, waiting in (
        (10.0, 300, 260),
        (20.0, 300, 260),
        (30.0, 500, 460),
        (40.0, 500, 400),
        (50.0, 500, 400),
    ):
        stats = [shard_stats("flights", 0, bytes=size, buffered_bytes=waiting)]
        taken.take("reader", [("a:1", [session("q", stats)])], now)
        expected = 10.0 if now < 40.0 else 40.0
        assert taken.times() == {("a:1", "q"): expected}
    taken.take("reader", [("a:1", [session("q", [shard_stats("flights", 0, bytes=500)])])], 60.0)
    assert taken.times() == {("a:1", "q"): 60.0}
