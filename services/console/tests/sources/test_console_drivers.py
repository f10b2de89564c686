"""Readers inside drivers: announced to a registry or in files, asked by the token that they gave, and shown."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from console_visits import browsing, page, shown
from console_world import HOSTILE, console, world

from penstock.efo_consumer import ReaderHost
from penstock.efo_consumer.testing import FakeKinesis
from penstock.registration import AnnouncedReader, AnnouncedShard, ReaderFiles
from penstock.services.console._values import Kind

GONE = "127.0.0.1:1"


@pytest.fixture
def host() -> Iterator[ReaderHost]:
    """A reader as it is in a driver, with a session on the two shards of a stream."""
    kinesis = FakeKinesis()
    for shard in kinesis.create_stream("flights", 2):
        kinesis.put("flights", shard, 15)
    with ReaderHost(backend=lambda: kinesis) as started:
        started.reader.open("delays/flights/", kinesis.trim_horizon("flights"))
        yield started


def announced(host: ReaderHost, **values: object) -> AnnouncedReader:
    given = {
        "job_id": "delays",
        "reader_id": "r1",
        "address": host.address,
        "view_token": host.view_token,
        "query": "delays",
        "owner": "host driver-7, process 12",
        "stream_names": ("flights",),
    }
    return AnnouncedReader(**given | values)  # type: ignore[arg-type]  # by their names


async def test_a_reader_in_a_driver_is_shown_with_its_shards(
    host: ReaderHost, caplog: pytest.LogCaptureFixture
) -> None:
    """As the sessions of a service are: on the pages of readers, streams and the stream; and no token is anywhere."""
    caplog.set_level(logging.DEBUG)
    async with world() as services:
        await services.drivers.announce(announced(host))
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            text = await shown(http, "readers", "driver-7")
            assert "1 of them in drivers" in text
            # The session has taken nothing of the 15 records of either shard.
            await shown(http, "readers", '>30<span class="soft">')
            assert host.address in text
            pages = [text]
            pages.append(await shown(http, "stream?name=flights", "delays/flights/"))
            assert ">no reader<" not in pages[-1]
            pages += [await page(http, path) for path in ("", "streams", "consumers")]
            assert 'href="/stream?name=flights"' in pages[3]
            await services.drivers.withdraw(announced(host))
            await shown(http, "readers", "No reader is running.")
    assert not any(host.view_token in text or host.token in text for text in [*pages, caplog.text])


async def test_a_driver_that_is_not_reached_is_shown_as_it_announced_itself() -> None:
    """With why there are no details; the others are asked all the same, and whatever it says is text."""
    gone = AnnouncedReader(
        job_id="lost",
        reader_id="r2",
        address=GONE,
        view_token="not-a-token-of-it-with-32-characters",
        query=HOSTILE,
        owner=HOSTILE,
        stream_names=("orders", HOSTILE),
        shards=4,
        troubled_shards=2,
        millis_behind_latest=90_000,
        condition="throttled since 12:00: too many calls",
    )
    async with world() as services:
        await services.drivers.announce(gone)
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            text = await shown(http, "readers", "too many calls")
            assert "nothing listens there" in text
            assert "2 in trouble" in text
            assert "90 s" in text or "2 min" in text
            assert "<script>alert" not in text
            assert 'href="/stream?name=orders"' in await page(http, "streams")


async def test_readers_on_executors_are_shown_by_what_their_driver_says(host: ReaderHost) -> None:
    """With address, shards and lag; shards in trouble first. Only their query can connect to them."""
    said = {"job_id": "nightly", "query": "nightly", "view_token": "", "stream_names": ("orders",)}
    met: list[object] = []
    async with world() as services, await asyncio.start_server(lambda *who: met.append(who), "127.0.0.1") as reader:
        address = f"127.0.0.1:{reader.sockets[0].getsockname()[1]}"
        lag = {"shards": 3, "millis_behind_latest": 1_500}
        well = announced(host, **said, **lag, reader_id="e1", address=address, condition="reading")
        ill = announced(host, **said, reader_id="e2", address=GONE, shards=5, troubled_shards=2, condition="throttled")
        for one in (announced(host), well, ill):
            await services.drivers.announce(one)
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            text = await shown(http, "readers", "throttled")
            assert "3 readers, 1 of them in drivers, 2 on executors" in text
            rows = re.findall(r"<tr>.*?</tr>", text.partition("<tbody>")[2], re.DOTALL)
            assert re.findall(r'data-head="Where">([^<]+)', text) == [GONE, address, host.address]
            assert ["on an executor" in row for row in rows] == [True, True, False]
            assert [">its driver<" in row for row in rows] == [True, True, False]
            assert "2 in trouble" in rows[0]
            assert ">1.5 s<" in rows[1]
            assert "no details" not in text
            assert 'href="/stream?name=orders"' in await page(http, "streams")
            assert "not known" not in await page(http, "stream?name=flights")
            lagging = AnnouncedShard(
                stream_name="orders",
                shard_id="shardId-000000000002",
                millis_behind_latest=12_000,
                records=1_234,
                losses=3,
                state="throttled",
                cause="too many calls",
            )
            await services.drivers.announce(replace(ill, stream_names=("orders",), worst_shards=(lagging,)))
            text = await shown(http, "stream?name=orders", "too many calls")
            (row,) = re.findall(r'<tr id="s-.*?</tr>', text, re.DOTALL)
            assert ">000000000002<" in row.replace('<span class="pre">shardId-</span>', ">")
            assert all(words in row for words in (">throttled<", ">12 s<", ">1,234<", ">3<", ">nightly<"))
            # Those that are not named are not as far behind as those that are, but may have losses of their own.
            text = await page(http, "streams")
            assert 'data-head="Largest lag" class="number">12 s<' in text
            assert 'data-head="Losses" class="number bad">at least 3<' in text
            # Of 3 and 5 that both follow, one is named.
            text = await page(http, "stream?name=orders")
            assert "At most 7 more shards of this stream are read without being listed here" in text
            assert re.search(
                r'href="/stream\?name=orders".*?data-head="Read" class="number">8<',
                await page(http, "streams"),
                re.DOTALL,
            )
            await services.drivers.announce(replace(well, condition="caught up"))
            await shown(http, "readers", "caught up")
    assert met == []


async def test_a_wrong_token_tells_nothing_of_a_reader(host: ReaderHost) -> None:
    async with world() as services:
        await services.drivers.announce(announced(host, view_token="another-token-of-16-with-32-characters"))
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            assert "bearer token is missing or wrong" in await shown(http, "readers", "no details")


async def test_readers_of_this_user_are_shown_without_any_service(
    host: ReaderHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In files of the state folder; a console leaves them out on request."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    await ReaderFiles().announce(announced(host))
    async with console(local_readers=True) as running, browsing(running.url) as http:
        await shown(http, "readers", "driver-7")
        await shown(http, "stream?name=flights", "shardId-000000000001")
    async with console() as running, browsing(running.url) as http:
        assert "driver-7" not in await page(http, "readers")


async def test_a_registry_that_lists_no_readers_is_named_with_why() -> None:
    """Such as one that is down: the page says so, and shows the others."""
    async with world() as services, console(services.endpoints()) as running, browsing(running.url) as http:
        await shown(http, "readers", "No reader is running.")
        for server in services.servers.values():
            await server.__aexit__(None, None, None)
        registry = next(one.address for one in services.endpoints() if one.kind is Kind.REGISTRY)
        await shown(http, "readers", f"Readers in drivers {registry}: down.")
