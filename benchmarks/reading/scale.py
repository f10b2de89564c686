"""What a driver does for a micro-batch of 8 to 8,000 shards, what is logged of it, and what 8,000 subscriptions take.

For a micro-batch a twentieth of the shards is busy, and Kinesis is in memory, so that the reader's own work is seen
alone: the next positions, the offset as JSON and back, the ranges between two offsets, and the commit. Spark's work
beside it hardly depends on the number of shards, but for the bytes of the offset, which it writes to its log and hands
from process to process. The subscriptions are real ones, over HTTP/2, to a server in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks._harness import Case
from benchmarks.reading.shards import read_by_process
from penstock.efo_consumer import (
    LocalShardReader,
    OpenRequest,
    PositionType,
    RecordPublisherType,
    ShardPosition,
    StreamPositions,
    ranges_between,
)
from penstock.efo_consumer.testing import FakeKinesis

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS = (8, 100, 1_000, 8_000)
_BATCHES = 5
_BUSY = 20
_STEPS = ("positions", "log", "parse", "ranges", "commit")
_AIM_BYTES = 40.0
_AIM_BEGIN_SECONDS = 10.0
_AIM_KILOBYTES = 20.0
_NOW_MILLIS = 1_790_000_000_000


async def _micro_batches(shards: int) -> list[dict[str, float]]:
    """Milliseconds of the processor of each step, for each of some micro-batches."""
    kinesis = FakeKinesis()
    ids = kinesis.create_stream("flights", shards)
    position = kinesis.trim_horizon("flights")
    found = []
    async with LocalShardReader(kinesis) as reader:
        request = OpenRequest(session_id="bench", positions=position, record_publisher=RecordPublisherType.POLLING)
        epoch = await reader.open(request)
        for number in range(_BATCHES + 1):
            for shard_id in random.sample(ids, max(1, shards // _BUSY)):
                kinesis.put("flights", shard_id)
            await _settle(kinesis)
            marks = [time.process_time()]
            snapshot = await reader.positions("bench", epoch, position, wait_seconds=60)
            marks.append(time.process_time())
            logged = json.dumps(snapshot.positions.to_json())
            marks.append(time.process_time())
            parsed = StreamPositions.from_json(json.loads(logged))
            marks.append(time.process_time())
            ranges_between(position, parsed)
            marks.append(time.process_time())
            await reader.commit("bench", epoch, position)
            marks.append(time.process_time())
            position = snapshot.positions
            if number:
                taken = [1000 * (after - before) for before, after in pairwise(marks)]
                found.append(dict(zip(_STEPS, taken, strict=True)))
    return found


async def _settle(kinesis: FakeKinesis) -> None:
    """Let the shards process their events. Each has one, as each shard of Kinesis has every few seconds."""
    taken = -1
    while taken != kinesis.events_taken:
        taken = kinesis.events_taken
        await asyncio.sleep(0.05)


def _offset_bytes(shards: int) -> float:
    """Bytes of the offset a shard, where each had its last record at some time within the last day.

    The numbers have the apparent format of Kinesis: a counter and a time above the index of the shard.
    """
    draw = random.Random(shards)
    positions = {}
    for index in range(shards):
        record = (49 << 180) + (draw.randrange(10**6) << 85) + ((1_790_000_000 - draw.randrange(86_400)) << 36) + index
        positions[f"shardId-{index:012d}"] = ShardPosition(
            PositionType.AFTER_SEQUENCE_NUMBER,
            sequence_number=str(record + (draw.randrange(1, 20) << 85)),
            record=str(record),
            arrived_millis=_NOW_MILLIS - draw.randrange(86_400_000),
            caught_up_millis=_NOW_MILLIS - draw.randrange(10_000),
        )
    return len(json.dumps(StreamPositions({"flights": positions}).to_json())) / shards


def _print_table(figures: dict[int, list[dict[str, float]]]) -> None:
    table = Table(title="processor time of a micro-batch in the driver's source, in milliseconds; 5 % of shards busy")
    for column in ("shards", *_STEPS, "sum", "bytes of offset a shard"):
        table.add_column(column, justify="right")
    for shards, batches in figures.items():
        medians = [statistics.median(batch[step] for batch in batches) for step in _STEPS]
        row = [f"{one:.2f}" for one in (*medians, sum(medians))]
        table.add_row(f"{shards:,}", *row, f"{_offset_bytes(shards):.0f}")
    Console().print(table)


def run(rounds: int) -> Iterator[Case]:
    """Absolute figures for all numbers of shards, then what 8,000 cost over 1,000, their offset and subscriptions."""
    figures: dict[int, list[dict[str, float]]] = {shards: [] for shards in SHARDS}
    for number in range(rounds):
        for shards in SHARDS if number % 2 == 0 else reversed(SHARDS):
            figures[shards] += asyncio.run(_micro_batches(shards))
    _print_table(figures)
    sums = {shards: [sum(batch.values()) for batch in batches] for shards, batches in figures.items()}
    yield Case(
        name="micro-batch-8000-over-1000", peer_name="1000-shards", unit="ms", ours=sums[8_000], peers=sums[1_000]
    )
    yield Case(
        name="offset-idle-shard", peer_name="40-bytes", unit="B", ours=[_offset_bytes(8_000)], peers=[_AIM_BYTES]
    )
    idle = read_by_process(SHARDS[-1], 0.0)
    begun, kilobytes = idle["begin_seconds"], idle["bytes_per_shard"] / 1000
    yield Case(name="subscribe-8000", peer_name="10-seconds", unit="s", ours=[begun], peers=[_AIM_BEGIN_SECONDS])
    yield Case(name="shard-memory", peer_name="20-kB", unit="kB", ours=[kilobytes], peers=[_AIM_KILOBYTES])
    yield Case(name="idle-8000-cores", peer_name="1-core", unit="cores", ours=[idle["cores"]], peers=[1.0])
