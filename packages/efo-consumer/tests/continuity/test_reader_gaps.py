"""Ranges of a shard with long times between its records: Kinesis leads over them by hundreds of empty answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from fleet_in_memory import SkippingLoop

from penstock.aws import AwsSession, JsonClient
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    KinesisBackend,
    LocalShardReader,
    RangeDeadlineError,
    ReaderConfig,
    RecordPublisherConfig,
    ShardPosition,
    ShardRange,
    StreamPositions,
    measure_lag,
)
from penstock.efo_consumer._publish.polling import PollingTools

START = ShardPosition.trim_horizon()


def answer(behind: int, number: int | None = None, arrived: float | None = None) -> dict[str, Any]:
    at = time.time() if arrived is None else arrived
    record = {"Data": "", "PartitionKey": "k", "SequenceNumber": str(number), "ApproximateArrivalTimestamp": at}
    return {"Records": [record] if number else [], "MillisBehindLatest": behind, "NextShardIterator": "next"}


class Gap:
    """A client that is answered with these."""

    def __init__(self, answers: Iterator[dict[str, Any]]) -> None:
        self._answers = answers

    async def call_raw(self, operation: str, body: bytes) -> bytes:
        return (
            b'{"ShardIterator":"first"}'
            if operation == "GetShardIterator"
            else json.dumps(next(self._answers)).encode()
        )

    async def close(self) -> None:
        pass


def over(answers: Iterator[dict[str, Any]], read: Callable[[KinesisBackend], Coroutine[Any, Any, None]]) -> float:
    """Read by a client that is answered so; give the seconds that it took, at five reads a second."""
    loop = SkippingLoop()

    async def run() -> float:
        backend = KinesisBackend(AwsSession(emulator_options("http://127.0.0.1:1")))
        backend._client = cast(JsonClient, Gap(answers))
        backend._polling_tools = PollingTools(clock=loop.time, sleep=asyncio.sleep)
        await read(backend)
        return loop.time()

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


async def read(backend: KinesisBackend, config: ReaderConfig | None = None) -> None:
    whole = ShardRange("s", "shard", START, ShardPosition.after("9"))
    async with LocalShardReader(backend, config) as reader:
        rows = [batch.column("sequenceNumber").to_pylist() async for batch in reader.read_range("q", [whole])]
    assert rows == [["7", "9"]]


def test_a_long_gap_is_read_over() -> None:
    """As long as each answer leads further, however many there are, before the first record and between two."""
    days = [answer(behind) for behind in range(10**9, 10**9 - 500, -1)]
    more = [answer(behind) for behind in range(10**6, 10**6 - 500, -1)]
    assert over(iter([*days, answer(2 * 10**6, 7), *more, answer(0, 9)]), read) > 180


def test_answers_that_lead_nowhere_are_given_up() -> None:
    """After the deadline: each of them is as far behind as the one before, or further."""
    with pytest.raises(RangeDeadlineError):
        over((answer(10**6 + step) for step in range(10**6)), read)


def test_the_lag_is_that_of_the_record_behind_a_gap() -> None:
    """Nor does an empty answer mean that nothing waits."""

    async def measure(backend: KinesisBackend) -> None:
        found = await measure_lag(backend, StreamPositions({"s": {"shard": START}}), 100.0)
        assert [shard.seconds for shard in found] == [99.0]

    over(iter([answer(500), answer(400), answer(300, 7, arrived=1.0)]), measure)


def test_an_interval_longer_than_the_deadline_of_a_range_is_no_standstill() -> None:
    """Where the shard is to be read every two minutes, its answers come two minutes apart."""
    config = RecordPublisherConfig(get_records_interval=timedelta(minutes=2))

    async def slowly(backend: KinesisBackend) -> None:
        backend._polling_tools = replace(backend._polling_tools, config=config)
        await read(backend, ReaderConfig(publisher=config))

    assert over(iter([answer(2 * 10**6, 7), answer(10**6), answer(0, 9)]), slowly) == 240
