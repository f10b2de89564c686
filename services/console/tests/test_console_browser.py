"""The pages in a real browser: how they look, how they are used without a pointer, and what is read aloud."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from console_browser import Page, browser_page, needs_browser
from console_world import HOSTILE, World, console, session, shard_stats, shot_folder, submit, world

from penstock.efo_consumer import ShardCondition, ShardState
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as sink
from penstock.rpc import ServerSecurity

pytestmark = needs_browser
TOKEN = "a-long-secret-of-the-console-with-32-characters"
PAGES = (
    "",
    "consumers",
    "readers",
    "streams",
    "stream?name=flights",
    "sinks",
    "jobs",
    "job?id=report",
)


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with browser_page() as opened:
        yield opened


@pytest.fixture
async def services() -> AsyncIterator[World]:
    async with world() as running:
        await running.acquire("flights", "delays-job", "job-1")
        await submit(running, "report")
        running.reader.open_sessions = [session("query-1", [shard_stats("flights", one) for one in range(3)])]
        limited = sink.DestinationStats(kind="kinesis", destination="delays", limit_messages=2_500, dead_lettered=4)
        running.sink.destinations = [limited]
        yield running


async def ready(page: Page, url: str, path: str, words: str) -> None:
    """Load a page until it has these words."""
    async with asyncio.timeout(30):
        while True:
            await page.go(url + path)
            if words in await page.eval("document.body.innerText"):
                return
            await asyncio.sleep(0.1)


def colours(png: bytes) -> set[str]:
    """The rows of an eight-bit picture whose filter is none, or sub."""
    width, _, _, kind = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[kind]
    packed, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(packed)
    found: set[str] = set()
    for start in range(0, len(raw), width * size + 1):
        if raw[start] == 0:
            row = raw[start + 1 : start + 1 + width * size]
            found |= {row[place : place + 3].hex() for place in range(0, len(row), size)}
        elif raw[start] == 1:
            found.add(raw[start + 1 : start + 4].hex())
    return found


async def test_pages_are_drawn_in_the_colours_that_are_preferred(page: Page, services: World, tmp_path: Path) -> None:
    """Light and dark, wide and as narrow as a telephone: no page scrolls sideways as a whole, no script fails."""
    async with console(services.endpoints()) as running:
        await ready(page, running.url, "sinks", "2,500")
        await ready(page, running.url, "jobs", "report as written")
        for scheme, ground in (("light", "f6f8fa"), ("dark", "0f161c")):
            for width in (1280, 390):
                await page.look(width=width, height=800, scheme=scheme)
                for path in PAGES:
                    await page.go(running.url + path)
                    assert await page.eval("document.documentElement.scrollWidth") <= width, path
                    assert await page.eval("getComputedStyle(document.body).color") != ""
                    name = (path.partition("?")[0] or "overview") + f"-{scheme}-{width}.png"
                    target = (shot_folder() or tmp_path) / name
                    await page.shot(target)
                    assert ground in colours(target.read_bytes()), name
        await page.go(running.url + "job?id=report")
        await page.until("document.images.length === 1 && document.images[0].naturalWidth > 300")
    assert page.violations == []


async def test_colours_can_be_chosen(page: Page, services: World, tmp_path: Path) -> None:
    """Whatever the system prefers; the next page has them too, until they are the system's again."""
    async with console(services.endpoints()) as running:
        await ready(page, running.url, "jobs", "report as written")
        ground = "getComputedStyle(document.body).backgroundColor"
        await page.look(scheme="light")
        assert await page.eval(ground) == "rgb(246, 248, 250)"
        await page.eval("document.getElementById('scheme').click()")
        assert await page.eval(ground) == "rgb(15, 22, 28)"
        await page.go(running.url + "job?id=report")
        assert await page.eval(ground) == "rgb(15, 22, 28)"
        # A picture is of the page's colours, not of the system's.
        await page.until("document.images.length === 1 && document.images[0].naturalWidth > 300")
        await page.shot(tmp_path / "dark.png")
        drawn = colours((tmp_path / "dark.png").read_bytes())
        assert not {"f6f8fa", "ffffff", "fdf4e3", "e6f2fb"} & drawn
        assert await page.eval("document.getElementById('scheme').textContent") == "Light colours"
        await page.eval("document.getElementById('scheme').click()")
        assert await page.eval(ground) == "rgb(246, 248, 250)"
        assert await page.eval("localStorage.getItem('scheme')") is None
        await page.look(scheme="dark")
        assert await page.eval(ground) == "rgb(15, 22, 28)"
        await page.until("document.getElementById('scheme').textContent === 'Light colours'")
    assert page.violations == []


async def test_all_can_be_done_with_the_keyboard(page: Page, services: World) -> None:
    """The order follows the text; focus can be seen; the link over the menu leads to the content."""
    async with console(services.endpoints()) as running:
        await ready(page, running.url, "consumers", "job-1")
        seen = []
        for _ in range(13):
            await page.press("Tab")
            seen.append(await page.eval("document.activeElement.textContent.trim().split('\\n')[0]"))
            assert await page.eval("getComputedStyle(document.activeElement).outlineStyle") == "solid", seen
        assert seen[:11] == [
            "Skip to content",
            "Penstock console",
            "Overview",
            "Consumers",
            "Readers",
            "Streams",
            "Sinks",
            "Jobs",
            "Refresh",
            "Pause updates",
            "Dark colours",
        ]
        # What scrolls sideways can be reached, then what is in it.
        assert seen[12] == "flights"
        await page.press("Enter")
        await page.until("document.title.startsWith('flights')")
        await page.go(running.url)
        await page.press("Tab")
        box = await page.eval("JSON.stringify(document.activeElement.getBoundingClientRect())")
        assert '"left":8' in box
        await page.press("Enter")
        await page.until("document.activeElement.id === 'main'")


async def test_a_screen_reader_is_told_everything(page: Page, services: World) -> None:
    """Landmarks, heads of columns and rows, names of pictures, links that say what they do; and one quiet region."""
    async with console(services.endpoints()) as running:
        await ready(page, running.url, "stream?name=flights", "shardId-000000000002")
        tree = await page.tree()
        for landmark in (("navigation", "Pages"), ("banner", ""), ("main", ""), ("region", "Shards")):
            assert landmark in tree, landmark
        assert ("heading", "flights") in tree
        assert ("rowheader", "shardId-000000000002") in tree
        assert [role for role, _ in tree].count("status") == 1
        await ready(page, running.url, "job?id=report", "1,095")
        tree = await page.tree()
        assert ("image", "Graph of 2 stages; the table below has the same facts as text.") in tree
        for path in PAGES:
            await page.go(running.url + path)
            nameless = [role for role, name in await page.tree() if role in ("link", "button", "image") and not name]
            assert nameless == [], path
            assert await page.eval("document.querySelectorAll('h1').length") == 1
            assert await page.eval("[...document.querySelectorAll('th')].every(one => one.scope)")
            assert await page.eval("document.documentElement.lang") == "en"


async def test_numbers_change_and_the_place_stays(page: Page, services: World) -> None:
    """Without a reload: focus, scrolling and selected text are not lost; and updates can be paused."""
    async with console(services.endpoints()) as running:
        await ready(page, running.url, "stream?name=flights", "shardId-000000000002")
        await page.eval("window.mark = 1; document.querySelector('.crumbs a').focus()")
        behind = shard_stats("flights", 1, millis_behind_latest=7_000)
        services.reader.open_sessions = [session("query-1", [behind, shard_stats("flights", 7)])]
        await page.until("document.body.innerText.includes('7.0 s')")
        await page.until("!!document.getElementById('s-shardId-000000000007')")
        assert await page.eval("document.getElementById('s-shardId-000000000000')") is None
        assert await page.eval("window.mark === 1 && document.activeElement.textContent === 'Streams'")
        await page.eval("document.getElementById('pause').click()")
        await asyncio.sleep(0.5)
        clock = await page.eval("document.getElementById('main').innerText")
        services.reader.open_sessions = []
        await asyncio.sleep(1.0)
        assert await page.eval("document.getElementById('main').innerText") == clock
        await page.eval("document.getElementById('pause').click()")
        # The line of lag still shows its highest value.
        await page.until("![...document.querySelectorAll('td')].some(cell => cell.innerText.includes('7.0 s'))")
    await page.until("document.getElementById('health').textContent.startsWith('The console does not answer')")


async def test_nothing_needs_scripts() -> None:
    """Pages are whole where scripts are off; the page refreshes automatically."""
    async with world() as services, browser_page(script=False) as page:
        await services.acquire("flights", "delays-job", "job-1")
        async with console(services.endpoints()) as running:
            await ready(page, running.url, "consumers", "job-1")
            assert await page.eval("!!document.querySelector('noscript').outerHTML.includes('refresh')")


async def test_the_token_is_the_browsers_password(page: Page, services: World) -> None:
    """The browser keeps it: for other pages, for updates, and for nothing that a script of the page can read."""
    async with console(services.endpoints(), server={"security": ServerSecurity(token=TOKEN)}) as running:
        await page.go(running.url.replace("//", f"//anybody:{TOKEN}@"))
        await ready(page, running.url, "consumers", "job-1")
        await page.eval("window.mark = 1")
        clock = await page.eval("document.getElementById('clock').textContent")
        await page.until(f"window.mark === 1 && document.getElementById('clock').textContent !== {clock!r}")
        seen = "JSON.stringify([location.href, document.referrer, document.cookie, document.body.outerHTML,"
        seen += " performance.getEntries().map(one => one.name), {...localStorage}, {...sessionStorage}])"
        assert TOKEN not in await page.eval(seen)


async def test_names_do_nothing_in_a_browser(page: Page) -> None:
    """Markup in names opens no dialog, loads nothing and is not run, also after an update of the page."""
    async with world() as services:
        stats = shard_stats("s" + HOSTILE.replace("/", ""), 0)
        object.__setattr__(stats, "shard_id", HOSTILE)
        services.reader.open_sessions = [session(HOSTILE, [stats])]
        await submit(services, HOSTILE, HOSTILE + "a", HOSTILE + "b", HOSTILE + "c")
        services.sink.destinations = [sink.DestinationStats(kind="k", destination=HOSTILE, last_failure=HOSTILE)]
        async with console(services.endpoints()) as running:
            await ready(page, running.url, "jobs", "<script>alert(1)</script>")
            stream = urlencode({"name": stats.stream_name})
            for path in ("", "streams", f"stream?{stream}", "sinks", "jobs", f"job?id={quote(HOSTILE, safe='')}"):
                await page.go(running.url + path)
                clock = await page.eval("document.getElementById('clock').textContent")
                await page.until(f"document.getElementById('clock').textContent !== {clock!r}")
                assert await page.eval("document.querySelectorAll('script').length") == 1
                assert await page.eval("document.querySelectorAll('img[onerror]').length") == 0
    assert page.violations == []


async def test_tables_are_cards_on_a_telephone(page: Page, services: World) -> None:
    """Nothing but shards and the graph scrolls sideways; headings are beside the cells, and are read aloud once."""
    async with console(services.endpoints()) as running:
        await ready(page, running.url, "sinks", "2,500")
        await page.look(width=390, height=800)
        for path in ("", "consumers", "streams", "sinks", "jobs", "job?id=report"):
            await page.go(running.url + path)
            wide = await page.eval(
                "[...document.querySelectorAll('.scroll:not(.picture)')]"
                ".filter(one => one.scrollWidth > one.clientWidth).length"
            )
            assert wide == 0, path
            shown = await page.eval(
                "[...document.querySelectorAll('.cards td[data-head]')].every(one =>"
                " getComputedStyle(one, '::before').content.startsWith(JSON.stringify(one.dataset.head)))"
            )
            assert shown, path
            tree = await page.tree()
            heads = await page.eval("[...document.querySelectorAll('.cards thead th')].map(one => one.textContent)")
            assert set(heads) == {name for role, name in tree if role == "columnheader"}, path
            assert any(role == "rowheader" for role, _ in tree), path
        await page.go(running.url + "sinks")
        cells = [name for role, name in await page.tree() if role in ("cell", "gridcell")]
        assert not any(name.startswith("Goodput") for name in cells)
        await page.go(running.url + "stream?name=flights")
        row = await page.eval("document.querySelector('.shards tbody th').textContent")
        assert row == "shardId-000000000000"
        # A shard's name, state, both lags and age can be seen without scrolling.
        reading = replace(shard_stats("flights", 0), condition=ShardCondition(ShardState.CAUGHT_UP, 1_767_268_800_000))
        services.reader.open_sessions = [session("query-1", [reading])]
        await page.until("document.querySelector('.shards .age') !== null")
        for width in (500, 390):
            await page.look(width=width, height=800)
            seen = await page.eval(
                "[...document.querySelectorAll('.shards tbody tr:first-child > *')]"
                ".filter(one => { const box = one.getBoundingClientRect();"
                " return box.width > 0 && box.right <= innerWidth && one.scrollWidth <= one.clientWidth + 1; })"
                ".map(one => one.dataset.head || 'Shard')"
            )
            assert seen == ["Shard", "Lag", "Reading", "Not taken", "State"]
            assert await page.eval("document.documentElement.scrollWidth <= innerWidth")
            assert await page.eval("document.querySelector('.shards .age').textContent.startsWith('for ')")
    assert page.violations == []


async def test_a_thousand_shards_are_no_trouble(page: Page) -> None:
    """The page comes at once and stays quick to use while it is updated; fewer are shown unless asked for."""
    async with world() as services:

        def behind(millis: int) -> None:
            shards = [shard_stats("flights", one, millis_behind_latest=millis + one) for one in range(1_000)]
            services.reader.open_sessions = [session("query-1", shards)]

        behind(0)
        async with console(services.endpoints()) as running:
            await ready(page, running.url, "stream?name=flights", "1,000 shards")
            assert await page.eval("document.querySelectorAll('.shards tbody tr').length") == 250
            await page.click("a[rel=next]")
            assert await page.eval("document.querySelector('.shards tbody th').textContent") == "shardId-000000000250"
            await page.go(running.url + "stream?name=flights&order=lag&size=1000")
            assert await page.eval("document.querySelectorAll('.shards tbody tr').length") == 1_000
            assert await page.eval("document.querySelector('.shards tbody th').textContent") == "shardId-000000000999"
            # The heads stay in sight over the last rows, and a link to a shard is not hidden below them.
            await page.eval(
                "[...document.querySelectorAll('.shards tbody tr')].at(-1).scrollIntoView({block: 'nearest'})"
            )
            assert await page.eval(
                "(() => { const box = document.querySelector('.long').getBoundingClientRect();"
                " const head = document.querySelector('.shards thead th').getBoundingClientRect();"
                " return Math.abs(head.top - box.top) < 3 && head.top >= 0; })()"
            )
            await page.eval("document.querySelectorAll('.shards tbody tr')[500].scrollIntoView()")
            assert await page.eval(
                "document.querySelectorAll('.shards tbody tr')[500].getBoundingClientRect().top"
                " >= document.querySelector('.shards thead th').getBoundingClientRect().bottom - 1"
            )
            assert await page.eval("document.getElementsByTagName('*').length") < 20_000
            await page.eval(
                "window.long = []; new PerformanceObserver(found => long.push(...found.getEntries()"
                ".map(one => one.duration))).observe({type: 'longtask'})"
            )
            behind(60_000)
            await page.until("[...document.querySelectorAll('.shards tbody tr')].at(-1).innerText.includes('60 s')")
            # What one update keeps keys waiting for, beside what this browser needs to build such a page here and now.
            built = await page.eval(
                "Math.max(...[1, 2, 3].map(() => {"
                " const began = performance.now(), all = document.createElement('div');"
                " all.innerHTML = document.querySelector('main').outerHTML; document.body.append(all);"
                " all.getBoundingClientRect(); all.remove(); document.body.getBoundingClientRect();"
                " return performance.now() - began; }))"
            )
            longest = await page.eval("Math.max(0, ...window.long)")
            assert longest < 5 * built
