"""The pages over real sockets: what they show, also of services that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import trustme
from console_visits import browsing, fill, page, shown
from console_world import HOSTILE, console, session, shard_stats, submit, world

from penstock.operator_attributes import Boundedness, JobGraph, OperatorAttributes
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as sink
from penstock.rpc import ServerSecurity, ServerSettings
from penstock.services.console._values import Kind


async def test_pages_show_what_the_services_say() -> None:
    """Leases, lags, limits, dead letters and stages; what is wrong is on the first page."""
    async with world() as services:
        await fill(services)
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            text = await shown(http, "", "4 of 4 services answer.")
            text = await shown(http, "", "5 entries were given up; the latest: ValidationException: too long")
            assert "3 positions were lost" in text
            assert "an entry waits for 42 s, after 17 attempt(s): InternalFailure" in text
            text = await shown(http, "consumers", "job-1")
            assert "$0.060" in text
            assert "delays-job" in text
            assert "post" not in text
            text = await shown(http, "stream?name=flights", "shardId-000000000001")
            assert "1.5 s" in text
            assert '<polyline points="0.0,' in await shown(http, "stream?name=flights", "Largest lag over the last")
            for path in (
                "",
                "consumers",
                "readers",
                "streams",
                "stream?name=flights",
                "sinks",
                "jobs",
                "job?id=report",
            ):
                text = await page(http, path)
                assert text.count("<table") == text.count("<caption") > 0, path
                assert 'aria-label="Pages"' in text, path
            text = await shown(http, "sinks", "1,800 <small>of 2,500")
            assert "4 dead-lettered, 1 given up" in text
            assert "12 in all" in text
            assert "Latest failure of delays: ValidationException: too long" in text
            assert "1 of 2" in await shown(http, "jobs", "report as written")
            text = await shown(http, "job?id=report", "1,095")
            assert "running" in text
            async with http.get("/job/picture.svg?id=report") as picture:
                assert picture.content_type == "image/svg+xml"
                assert "script" not in picture.headers["Content-Security-Policy"].replace("sandbox", "")
                assert "daily" in await picture.text()
            for path in ("stream?name=other", "job?id=other", "job/picture.svg?id=other", "static/..%2f_serve.py", "x"):
                async with http.get(f"/{path}") as missing:
                    assert missing.status == 404, path
                    assert '<a href="/streams">Streams</a>' in await missing.text(), path


async def test_the_pages_work_without_any_service() -> None:
    """Each says what to start the console with; and where a service knows nothing yet, how something comes there."""
    ways = (
        ("consumers", Kind.REGISTRY, ".option(&#34;registryEndpoint&#34;, &#34;{}&#34;)"),
        ("streams", Kind.READER, ".option(&#34;readerEndpoint&#34;, &#34;{}&#34;)"),
        ("sinks", Kind.SINK, ".option(&#34;sinkEndpoint&#34;, &#34;{}&#34;)"),
        ("jobs", Kind.STAGES, "scheduler_endpoint=&#34;{}&#34;"),
    )
    async with console() as running, browsing(running.url) as http:
        assert "No service is set up." in await page(http, "")
        for path, kind, _ in ways:
            assert f"--{kind.value}-endpoint" in await page(http, path)
    async with world() as services, console(services.endpoints()) as running, browsing(running.url) as http:
        await shown(http, "", "4 of 4 services answer.")
        for path, kind, way in ways:
            text = (await page(http, path)).replace('"', "&#34;")
            assert way.format(services.servers[kind].address) in text, path


async def test_a_service_that_is_down_takes_its_own_numbers_with_it_and_comes_back() -> None:
    """The others continue; its last answer is shown as old."""
    async with world() as services:
        await fill(services)
        address = services.servers[Kind.READER].address
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            await shown(http, "stream?name=flights", "1.5 s")
            assert "nothing listens there" not in await page(http, "")
            await services.servers[Kind.READER].__aexit__(None, None, None)
            text = await shown(http, "stream?name=flights", "shown as it was")
            assert "1.5 s" in text
            text = await shown(http, "", "3 of 4 services answer")
            assert "down: Shard reader." in text
            # A call that was under way was cancelled; the next one finds no service.
            await shown(http, "", "nothing listens there (connection refused)")
            assert "job-1" in await page(http, "consumers")
            host, _, port = address.rpartition(":")
            async with world(server=ServerSettings(host=host, drain_seconds=0)) as others:
                from penstock.efo_consumer import SERVICE_NAME, ShardReaderServicer
                from penstock.rpc import GrpcServer

                again = ServerSettings(host=host, port=int(port), drain_seconds=0)
                reader: Any = others.reader  # by the method that the console calls
                register = [ShardReaderServicer(reader).add_to]
                async with GrpcServer(again, register=register, service_names=[SERVICE_NAME]):
                    await shown(http, "", "4 of 4 services answer.")


async def test_a_graph_that_cannot_be_had_is_no_broken_picture() -> None:
    """Without the scheduler the page says so; one that was drawn before is drawn on."""
    async with world() as services:
        await submit(services, "seen")
        await submit(services, "unseen")
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            await shown(http, "jobs", "unseen as written")
            async with http.get("/job/picture.svg?id=seen") as picture:
                assert picture.status == 200
            await services.servers.pop(Kind.STAGES).__aexit__(None, None, None)
            text = await shown(http, "job?id=unseen", "The graph is drawn when the stage scheduler answers again")
            assert "<img" not in text
            assert "<img" in await page(http, "job?id=seen")
            async with http.get("/job/picture.svg?id=seen") as picture:
                assert "daily" in await picture.text()


async def test_the_picture_is_that_of_the_newest_release() -> None:
    """A job that is submitted again may have the same stages, of other operators."""

    def graph(*cleaning: str) -> JobGraph:
        made = JobGraph("job")
        before = made.add_source("weather", boundedness=Boundedness.BOUNDED)
        for name in cleaning:
            before = made.add_operator(name, before)
        made.add_operator("daily", before, attributes=OperatorAttributes(output_only_after_end_of_stream=True))
        made.add_source("live", boundedness=Boundedness.UNBOUNDED)
        made.add_sink("out", "live", "daily")
        return made

    async with world() as services:
        await services.stages.submit("job", graph())
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            await shown(http, "job?id=job", "daily")
            async with http.get("/job/picture.svg?id=job") as picture:
                assert "daily" in await picture.text()
            await services.stages.submit("job", graph("deduplicated"), restart=True)
            await shown(http, "job?id=job", "deduplicated")
            async with http.get("/job/picture.svg?id=job") as picture:
                assert "deduplicated" in await picture.text()


async def test_names_are_text_whatever_is_in_them() -> None:
    """Markup in names of streams, jobs, stages, shards and failures is shown, not obeyed."""
    async with world(streams=[HOSTILE]) as services:
        await submit(services, HOSTILE, HOSTILE + "a", HOSTILE + "b", HOSTILE + "c")
        stats = shard_stats(HOSTILE, 0)
        object.__setattr__(stats, "shard_id", HOSTILE)
        services.reader.open_sessions = [session(HOSTILE, [stats])]
        failing = sink.DestinationStats(kind=HOSTILE, destination=HOSTILE, rejected=1, last_failure=HOSTILE)
        services.sink.destinations = [failing]
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            await shown(http, "sinks", "&lt;script&gt;")
            await shown(http, "jobs", "&lt;script&gt;")
            # The part behind the last slash is a stream's name, as of an ARN.
            name = HOSTILE.rpartition("/")[2]
            await shown(http, "streams", "script&gt;")
            for path in ("", "consumers", "streams", "sinks", "jobs", "job?" + urlencode({"id": HOSTILE})):
                text = await page(http, path)
                assert "<script>alert" not in text
                assert "<img src=x" not in text
            assert "<img src=x" not in await page(http, "stream?" + urlencode({"name": name}))
            async with http.get("/job/picture.svg", params={"id": HOSTILE}) as picture:
                assert "<script" not in await picture.text()
            async with http.get("/stream", params={"name": HOSTILE}) as refused:
                assert "<script>alert" not in await refused.text()


async def test_services_are_asked_with_token_and_tls(tmp_path: Path) -> None:
    """As other clients are; a wrong token is reported as such, and a changed file counts without a restart."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    leaf.private_key_pem.write_to_path(tmp_path / "server.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    token = tmp_path / "token"
    token.write_text("wrong" * 7)
    security = ServerSecurity(
        certificate_file=tmp_path / "server.pem",
        private_key_file=tmp_path / "server.key",
        token="a-right-token-of-tests-with-32-characters",
    )
    async with world(server=ServerSettings(security=security, drain_seconds=0)) as services:
        endpoints = services.endpoints(ca_file=tmp_path / "ca.pem", token_file=token)
        async with console(endpoints) as running, browsing(running.url) as http:
            text = await shown(http, "", "0 of 4 services answer")
            await shown(http, "", "the bearer token is missing or wrong")
            assert "right" not in text.replace("the bearer token", "")
            token.write_text("a-right-token-of-tests-with-32-characters\n")
            await shown(http, "", "4 of 4 services answer.")
