"""The cases of `hatch run bench spark-scale`: a query on 8 to 8,000 shards by enhanced fan-out, 5 % of them busy.

Emulator, driver, source and JVM are processes of this machine. Twice a second a record is put to each of another 5 % of
the shards, so that each micro-batch, every two seconds, finds its rows ready: what it takes then is its overhead. In
the end all shards are merged in pairs at once. `PENSTOCK_BENCH_SCALE_SHARDS` sets other numbers of shards.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import threading
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import _jobs as jobs
from benchmarks._harness import Case
from benchmarks._processes import processor_seconds
from penstock.emulator.testing import EmulatorProcess, start_emulator_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SHARDS = (8, 100, 1_000, 8_000)
_BUSY = 20
_BATCHES = 10
_PUT_RECORDS = 500
_PATIENCE_SECONDS = 180.0
_PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "triggerExecution")
_STREAM = "scale"
_AIM_FIRST_SECONDS = 10.0


@dataclass(frozen=True)
class _Found:
    """What one number of shards gave."""

    first_row_seconds: float
    """From `start()`."""
    batches: list[dict[str, float]]
    """Milliseconds of the parts of micro-batches with rows, as Spark says."""
    offset_bytes: int
    source_bytes: int
    """Resident, of the source's process."""
    calls: dict[str, int]
    """Calls to the service from `start()` to the last micro-batch. Subscriptions are renewed every five minutes."""
    reshard_seconds: float
    """From the call that merges all shards until each of those that follow gave a record; inf for too late."""


class _Rows:
    """What `foreachBatch` gets."""

    def __init__(self) -> None:
        self.data: set[bytes] = set()
        self.changed = threading.Condition()

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        data = {bytes(row["data"]) for row in frame.select("data").collect()}
        with self.changed:
            self.data |= data
            self.changed.notify_all()

    def wait_for(self, wanted: set[bytes] | None = None) -> float:
        """The time by `perf_counter` when all of these are there; any, if none are named."""
        with self.changed:
            there = self.changed.wait_for(
                lambda: bool(self.data) if wanted is None else wanted <= self.data, _PATIENCE_SECONDS
            )
            if not there:
                raise RuntimeError(f"{len((wanted or {b''}) - self.data)} records did not come")
            return time.perf_counter()


class _Producer:
    """Puts a record to some shards, given by their place among the hash keys."""

    def __init__(self, emulator: EmulatorProcess) -> None:
        self._client = emulator.client()
        self._turns = itertools.count()

    def put(self, shards: int, chosen: list[int]) -> set[bytes]:
        """A record to each of these, of that many shards of equal size."""
        turn = next(self._turns)
        made = {shard: f"{turn}-{shard}".encode() for shard in chosen}
        entries = [
            {"Data": data, "PartitionKey": "k", "ExplicitHashKey": str((2 * shard + 1) * 2**128 // (2 * shards))}
            for shard, data in made.items()
        ]
        for first in range(0, len(entries), _PUT_RECORDS):
            self._client.put_records(StreamName=_STREAM, Records=entries[first : first + _PUT_RECORDS])
        return set(made.values())

    @contextmanager
    def keeps_busy(self, shards: int) -> Iterator[None]:
        """Put to a twentieth of the shards twice a second, to others each time."""
        stop = threading.Event()
        count = max(1, shards // _BUSY)

        def put() -> None:
            first = 0
            while not stop.wait(0.5):
                self.put(shards, [(first + one) % shards for one in range(count)])
                first += count

        thread = threading.Thread(target=put, name="bench producer")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _calls(emulator: EmulatorProcess) -> Counter[str]:
    with urllib.request.urlopen(f"{emulator.endpoint_url}/_emulator/stats", timeout=60) as answer:
        return Counter(json.loads(answer.read())["calls"])


def _measure(shards: int) -> _Found:
    with ExitStack() as stack:
        emulator = stack.enter_context(start_emulator_process("--no-enforce-limits"))
        client = emulator.client()
        client.create_stream(StreamName=_STREAM, ShardCount=shards)
        client.get_waiter("stream_exists").wait(StreamName=_STREAM, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        options = jobs.fan_out_options(emulator, _STREAM)
        producer, rows, checkpoint = _Producer(emulator), _Rows(), jobs.fresh("checkpoint")
        everything = list(range(shards))
        producer.put(shards, everything)
        frame = jobs.session().readStream.format("kinesis").options(**options).load()
        writer = frame.writeStream.foreachBatch(rows).option("checkpointLocation", str(checkpoint))
        began, before = time.perf_counter(), _calls(emulator)
        query = writer.trigger(processingTime="2 seconds").start()
        stack.callback(query.stop)
        first = rows.wait_for() - began
        rows.wait_for(producer.put(shards, everything))
        with producer.keeps_busy(shards):
            begun_at, batch = time.monotonic(), _newest_batch(query)
            while _newest_batch(query) < batch + _BATCHES:
                if query.exception() is not None or time.monotonic() > begun_at + _PATIENCE_SECONDS:
                    raise RuntimeError(f"micro-batches do not come: {query.exception()}")
                time.sleep(0.2)
            calls = _calls(emulator) - before
            batches = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]][-_BATCHES:]
            source = _source_bytes()
        client.update_shard_count(StreamName=_STREAM, TargetShardCount=shards // 2, ScalingType="UNIFORM_SCALING")
        resharded = time.perf_counter()
        while (
            client.describe_stream_summary(StreamName=_STREAM)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE"
        ):
            time.sleep(0.1)
        put = producer.put(shards // 2, list(range(shards // 2)))
        try:
            settled = rows.wait_for(put)
        except RuntimeError:  # It is a figure, too.
            settled = math.inf
        return _Found(
            first_row_seconds=first,
            batches=batches,
            offset_bytes=_offset_bytes(checkpoint),
            source_bytes=source,
            calls={name: count for name, count in calls.items() if name != "PutRecords"},
            reshard_seconds=settled - resharded,
        )


def _newest_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def _offset_bytes(checkpoint: Path) -> int:
    newest = max(
        (one for one in (checkpoint / "offsets").iterdir() if one.name.isdigit()), key=lambda one: int(one.name)
    )
    return newest.stat().st_size


def _source_bytes() -> int:
    sources = [pid for part, pid in processor_seconds() if part == "source"]
    return max(int(psutil.Process(pid).memory_info().rss) for pid in sources)


def run(rounds: int) -> Iterator[Case]:
    """A micro-batch of the most shards over one of the fewest, and the first row."""
    numbers = [int(one) for one in os.environ.get("PENSTOCK_BENCH_SCALE_SHARDS", "").split(",") if one] or SHARDS
    found: dict[int, list[_Found]] = {shards: [] for shards in numbers}
    _measure(numbers[0])
    for _ in range(rounds):
        for shards in numbers:
            found[shards].append(_measure(shards))
    _print_tables(found)
    fewest, most = min(numbers), max(numbers)
    whole = {shards: [_median(one, "triggerExecution") for one in found[shards]] for shards in (fewest, most)}
    yield Case(
        name=f"micro-batch-{most}-over-{fewest}",
        peer_name=f"{fewest}-shards",
        unit="ms",
        ours=whole[most],
        peers=whole[fewest],
    )
    yield Case(
        name=f"first-row-{most}",
        peer_name="10-seconds",
        unit="s",
        ours=[one.first_row_seconds for one in found[most]],
        peers=[_AIM_FIRST_SECONDS] * rounds,
    )


def _median(found: _Found, part: str) -> float:
    return statistics.median(one.get(part, 0.0) for one in found.batches)


def _print_tables(found: dict[int, list[_Found]]) -> None:
    table = Table(title="milliseconds of a micro-batch, 5 % of the shards busy")
    for column in ("shards", *_PARTS):
        table.add_column(column, justify="right")
    for shards, measured in found.items():
        table.add_row(
            f"{shards:,}", *(f"{statistics.median(_median(one, part) for one in measured):.0f}" for part in _PARTS)
        )
    Console().print(table)
    table = Table(title="the query")
    for column in ("shards", "first row", "offset a shard", "source resident", "all shards merged", "calls"):
        table.add_column(column, justify="right")
    for shards, measured in found.items():
        one = measured[-1]
        calls = ", ".join(f"{name} {count:,}" for name, count in sorted(one.calls.items()))
        table.add_row(
            f"{shards:,}",
            f"{one.first_row_seconds:.1f} s",
            f"{one.offset_bytes / shards:.0f} B",
            f"{one.source_bytes / 2**20:.0f} MiB",
            f"{one.reshard_seconds:.1f} s" if one.reshard_seconds < math.inf else f"over {_PATIENCE_SECONDS:g} s",
            calls,
        )
    Console().print(table)
