"""A day of all lines: what is kept over a restart, for how long, and what a damaged or full file does."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest
from console_visits import browsing, page, shown
from console_world import console, session, shard_stats, world

from penstock.services.console._sources.day import SLOT_SECONDS, SLOTS, DayHistory
from penstock.services.console.errors import ConsoleOptionError

LAG = ("stream-lag", "reader:1", "flights")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0 * SLOT_SECONDS

    def __call__(self) -> float:
        return self.now


async def test_a_line_of_yesterday_is_there_after_a_restart(tmp_path: Path) -> None:
    """On the page, when it is asked for; other lengths stay as they are."""
    async with world() as services:
        for millis in (75_000, 0):
            late = shard_stats("flights", 0, millis_behind_latest=millis)
            services.reader.open_sessions = [session("query-1", [late])]
            async with (
                console(services.endpoints(), history_file=tmp_path / "history.db") as running,
                browsing(running.url) as http,
            ):
                await shown(http, "streams", f"now {millis // 1000} s")
                text = await page(http, "streams?span=day")
                assert "last 24 hours: now" in text
                assert "at most 75 s" in text
                assert ("at most 75 s" in await page(http, "streams")) is (millis > 0)
                one = await page(http, "stream?name=flights&span=day")
                assert "order=lag&amp;size=250&amp;span=day" in one
                assert "last 24 hours" in one
        async with console(services.endpoints()) as running, browsing(running.url) as http:
            assert "Lines over" not in await page(http, "streams")
    assert stat.S_IMODE((tmp_path / "history.db").stat().st_mode) == 0o600


async def test_five_minutes_keep_their_largest_value_for_a_day(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "history.db"
    async with DayHistory(file, wall_clock=clock, sleep=_never) as day:
        day.add({LAG: 3.0})
        day.add({LAG: 7.0})
        day.add({LAG: 5.0})
        day.add({LAG: None})
        assert day.values(LAG)[-1] == 7.0
        clock.now += SLOT_SECONDS
        await day.write()
        day.add({LAG: 1.0})
        assert day.values(LAG)[-2:] == [7.0, 1.0]
    async with DayHistory(file, wall_clock=clock, sleep=_never) as day:
        # The same five minutes, in two lives of the console.
        day.add({LAG: 0.5})
        await day.write()
        assert day.values(LAG)[-3:] == [None, 7.0, 1.0]
        assert day.values(("other",)) == []
        clock.now += (SLOTS - 1) * SLOT_SECONDS
        assert day.values(LAG) == [1.0, *[None] * (SLOTS - 1)]
        clock.now += SLOT_SECONDS
        assert day.values(LAG) == []
        day.add({("other",): 1.0})
        await day.write()
        await day.write()
    with sqlite3.connect(file) as left:
        assert left.execute("SELECT name FROM series").fetchall() == [('["other"]',)]


async def test_it_is_written_every_five_minutes(tmp_path: Path) -> None:
    clock = Clock()
    clock.now += 100
    waits: asyncio.Queue[float] = asyncio.Queue()
    go_on = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        clock.now += seconds
        waits.put_nowait(seconds)
        await go_on.acquire()

    async with DayHistory(tmp_path / "history.db", wall_clock=clock, sleep=sleep) as day, asyncio.timeout(10):
        assert await waits.get() == SLOT_SECONDS - 100
        day.add({LAG: 3.0})
        go_on.release()
        assert await waits.get() == SLOT_SECONDS
        with sqlite3.connect(tmp_path / "history.db") as other:
            assert other.execute("SELECT value FROM points").fetchall() == [(3.0,)]


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("milk, bread, and a good deal more than the head of a database\n" * 30)
    with pytest.raises(ConsoleOptionError, match="notes cannot be used: file is not a database"):
        DayHistory(tmp_path / "notes")
    assert (tmp_path / "notes").read_text().startswith("milk")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConsoleOptionError, match=r"history_file: .*link cannot be used: Too many levels"):
        DayHistory(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


async def test_a_file_that_breaks_meanwhile_stops_no_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "history.db"
    async with DayHistory(file, wall_clock=Clock(), sleep=_never) as day:
        with sqlite3.connect(file) as other:
            other.execute("DROP TABLE points")
        day.add({LAG: 3.0})
        assert day.values(LAG)[-1] == 3.0
        await day.write()
        assert day.values(LAG) == []
    assert "five minutes of the history are not kept: no such table: points" in caplog.text


async def _never(seconds: float) -> None:
    await asyncio.Event().wait()
