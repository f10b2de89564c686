"""Live consumers over any reader get each step, also a step that only adds facts to their positions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from fleet_in_memory import SkippingLoop

from penstock.efo_consumer import (
    FleetShardReader,
    OpenRequest,
    PositionsSnapshot,
    ShardPosition,
    ShardReader,
    StreamPositions,
)

IDLE = StreamPositions({"s": {"shard": ShardPosition.after("7")}})


def caught_up(millis: int) -> StreamPositions:
    return StreamPositions({"s": {"shard": replace(ShardPosition.after("7"), caught_up_millis=millis)}}, {"s": 3})


class Idle:
    """A reader of a shard that brings no records; what is known of it grows by the given answers, one after another."""

    deaggregates = True
    follow = ShardReader.follow
    is_draining = False

    def __init__(self, *answers: StreamPositions) -> None:
        self.answers = list(answers)
        self.asked: list[StreamPositions] = []

    async def open(self, _: OpenRequest) -> int:
        return 1

    async def positions(self, _: str, __: int, start: StreamPositions, **___: Any) -> PositionsSnapshot:
        self.asked.append(start)
        found = self.answers.pop(0) if self.answers else start
        self.is_draining = not self.answers
        return PositionsSnapshot(found, 0, 0, 0)

    async def read_range(self, *_: Any, **__: Any) -> AsyncGenerator[pa.RecordBatch, None]:
        raise AssertionError("no position moved")
        yield

    async def stats(self, _: str) -> list[Any]:
        return []

    async def aclose(self) -> None:
        """Nothing is open."""


async def test_a_live_consumer_is_told_what_is_learnt_of_an_idle_shard() -> None:
    """Once, though its position stands still; the next step begins with it."""
    reader = Idle(IDLE, caught_up(5), caught_up(5), caught_up(9))
    async with aclosing(reader.follow("q", 1, IDLE)) as steps:  # type: ignore[misc]  # by its methods
        told = [step async for step in steps]
    assert [step.records for step in told] == [None, None]
    assert [step.reached.positions.to_json() for step in told if step.reached] == [
        caught_up(5).to_json(),
        caught_up(9).to_json(),
    ]
    assert [start.to_json() for start in reader.asked[2:]] == [caught_up(5).to_json()] * 2


def test_a_fleet_tells_what_its_readers_learn_of_an_idle_shard() -> None:
    """Before the time is over for which its caller waits, as a reader alone does; and as the reader gave it."""
    loop = SkippingLoop()
    reader = Idle(IDLE, caught_up(5))

    async def run() -> None:
        fleet = FleetShardReader(["a:1"], clock=loop.time, connect=lambda *_: reader)  # type: ignore[arg-type]  # by its methods
        epoch = await fleet.open(OpenRequest(session_id="q", positions=IDLE))
        found = await fleet.positions("q", epoch, IDLE, wait_seconds=60)
        await fleet.aclose()
        assert found.positions == IDLE
        assert found.positions.to_json() == caught_up(5).to_json()

    try:
        loop.run_until_complete(run())
        assert loop.time() < 60
    finally:
        loop.close()
