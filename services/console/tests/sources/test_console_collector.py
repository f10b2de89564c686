"""Asking services again and again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.services.console._sources import collector as collector_module
from penstock.services.console._sources.collector import Collector
from penstock.services.console._values import Kind, State


class Broken:
    """A source that fails, and whose connection cannot be closed, at first."""

    kind = Kind.SINK
    address = "a:1"
    left_out = 0
    asked = 0

    def __init__(self) -> None:
        self.answered = asyncio.Event()

    async def fetch(self) -> tuple[Any, ...]:
        self.asked += 1
        if self.asked == 1:
            raise OSError("gone")
        self.answered.set()
        return ()

    async def close(self) -> None:
        if self.asked == 1:
            raise RuntimeError("the channel is in a bad way")


async def test_a_connection_that_cannot_be_closed_does_not_end_the_asking() -> None:
    """The next question finds the service up again."""

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    source = Broken()
    async with Collector([(source, 1.0)], sleep=at_once) as collector, asyncio.timeout(10):
        await source.answered.wait()
        assert collector.snapshot().sinks[0].state is State.UP


class Listing:
    """Lists the shards of many streams, which takes longer than an answer of a service may."""

    kind = Kind.KINESIS
    address = "eu-west-1"
    left_out = 0

    def __init__(self) -> None:
        self.answered = asyncio.Event()

    async def fetch(self) -> dict[str, tuple[Any, ...]]:
        await asyncio.sleep(0.3)
        self.answered.set()
        return {"flights": ()}

    async def close(self) -> None: ...


async def test_a_listing_of_many_streams_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are asked at once, the others after them: until it is due again."""
    monkeypatch.setattr(collector_module, "_ANSWER_SECONDS", 0.05)
    source = Listing()
    async with Collector([(source, 60.0)]) as collector, asyncio.timeout(5):
        await source.answered.wait()
        await asyncio.sleep(0)
        kinesis = collector.snapshot().kinesis
    assert kinesis is not None
    assert (kinesis.state, kinesis.value) == (State.UP, {"flights": ()})
