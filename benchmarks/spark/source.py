"""The cases of `hatch run bench spark-source`: MB/s of records of 1 kB from a source into a sink that does nothing.

The ceiling is a source that yields ready Arrow batches from memory, in micro-batches of the same size, with the same
session, trigger and number of partitions. `over-ceiling` and `over-ceiling-processor-time` read what a shard reader in
another process holds in its buffers: an emulator that sent it meanwhile would take more of the two cores than the
query does. `end-to-end-over-ceiling` has that too: an emulator sends, the query's own reader subscribes and decodes.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from benchmarks import _jobs as jobs
from benchmarks._harness import Case
from benchmarks._processes import Spent, own_seconds, processor_seconds, seconds_between
from benchmarks.spark._ceiling import CeilingSource
from benchmarks.spark._floor import RECORD_BYTES
from benchmarks.spark._reader import EVENT_RECORDS, SHARDS, STREAM, prefilled_reader
from penstock.emulator.testing import EmulatorProcess, start_emulator_process
from penstock.spark_plugin.testing import endpoint_options

_BATCH_RECORDS = 16 * SHARDS * EVENT_RECORDS
_BATCHES = 7
_RECORDS = _BATCHES * _BATCH_RECORDS
_WARM_UP_BATCHES = 2
_EMULATED_RECORDS = 128_000
_PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.05

Progress = Any
"""The progress of one micro-batch with Spark's names: a dictionary, or an object that can be read as one."""


@dataclass(frozen=True)
class Rate:
    """The rate of one query."""

    by_clock: float
    """MB/s."""
    by_processor: float
    """MB per second of the processor, of all processes that took part."""
    cores: dict[str, float]
    """Processor cores by part of the query. `server` is the server that it reads."""
    millis: dict[str, float]
    """Processor milliseconds per MB, by part of the query."""


def measure(frame: DataFrame, records: int, warm_up_batches: int, server: int | None = None) -> Rate:
    """Run a query until it has given so many records; its first micro-batches do not count.

    Times come from Spark's progress. Processor time is read when the warm-up and when the last records have been seen.
    """

    def spent_until_now() -> Spent:
        return processor_seconds() | (own_seconds(server) if server else {})

    writer = frame.writeStream.format("noop").option("checkpointLocation", str(jobs.fresh("checkpoint")))
    query = writer.start()
    try:
        _await(query, lambda batches: len(batches) >= warm_up_batches)
        warm, before, began = (
            sum(one["numInputRows"] for one in _batches(query)),
            spent_until_now(),
            time.perf_counter(),
        )
        _await(query, lambda batches: sum(one["numInputRows"] for one in batches) >= records)
        after, taken = spent_until_now(), time.perf_counter() - began
        counted = _batches(query)[warm_up_batches:]
    finally:
        query.stop()
    end = _began(counted[-1]) + counted[-1]["durationMs"]["triggerExecution"] / 1000
    megabytes = sum(one["numInputRows"] for one in counted) * RECORD_BYTES / 1e6
    spent = seconds_between(before, after)
    read = (records - warm) * RECORD_BYTES / 1e6
    return Rate(
        megabytes / (end - _began(counted[0])),
        read / sum(spent.values()),
        {part: spent[part] / taken for part in sorted(spent)},
        {part: 1000 * spent[part] / read for part in sorted(spent)},
    )


def _await(query: StreamingQuery, condition: Callable[[list[Progress]], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition(_batches(query)):
        if query.exception() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"rows do not come: {query.exception()}")
        time.sleep(_LOOK_SECONDS)


def _batches(query: StreamingQuery) -> list[Progress]:
    return [one for one in query.recentProgress if one["numInputRows"]]


def _began(progress: Progress) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


def _source(name: str, **options: str) -> DataFrame:
    return jobs.session().readStream.format(name).options(**options).load()


def _ceiling() -> Rate:
    frame = _source(CeilingSource.name(), rows=str(_RECORDS), batchRows=str(_BATCH_RECORDS))
    return measure(frame, _RECORDS, _WARM_UP_BATCHES)


def _buffered(emulator: EmulatorProcess, reader: dict[str, str], pid: int) -> Rate:
    options = endpoint_options(
        emulator.endpoint_url,
        STREAM,
        initialPosition="TRIM_HORIZON",
        **reader,
        maxRecordsPerBatch=str(_BATCH_RECORDS),
    )
    return measure(_source("kinesis", **options), _RECORDS, _WARM_UP_BATCHES, pid)


def _end_to_end(emulator: EmulatorProcess) -> Rate:
    options = endpoint_options(
        emulator.tls_endpoint_url,
        "full",
        caBundle=str(emulator.ca_file),
        initialPosition="TRIM_HORIZON",
        recordPublisher="efo",
        efoConsumerName="bench",
        registryStore=str(jobs.fresh("registry")),
    )
    return measure(_source("kinesis", **options), _EMULATED_RECORDS, 1, emulator.pid)


def fill(emulator: EmulatorProcess, records: int, *names: str) -> None:
    """Make streams, and put so many records into the last one."""
    client = emulator.client()
    for name in names:
        client.create_stream(StreamName=name, ShardCount=SHARDS)
        client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    data = b"x" * RECORD_BYTES
    for first in range(0, records, 500):
        entries = [{"Data": data, "PartitionKey": f"key-{number}"} for number in range(first, first + 500)]
        answer = client.put_records(StreamName=names[-1], Records=entries)
        if answer["FailedRecordCount"]:
            raise RuntimeError("the emulator refused records")


def run(rounds: int) -> Iterator[Case]:
    """What is buffered, by the clock and by the processor; then what has to be sent first."""
    jobs.session().dataSource.register(CeilingSource)
    with ExitStack() as stack:
        emulator = stack.enter_context(start_emulator_process("--no-enforce-limits"))
        fill(emulator, _EMULATED_RECORDS, STREAM, "full")
        reader, pid = stack.enter_context(prefilled_reader(_RECORDS))
        sides: dict[str, Callable[[], Rate]] = {
            "ceiling": _ceiling,
            "buffered": lambda: _buffered(emulator, reader, pid),
            "end-to-end": lambda: _end_to_end(emulator),
        }
        for side in sides.values():
            side()
        found: dict[str, list[Rate]] = {name: [] for name in sides}
        for number in range(rounds):
            for name in sides if number % 2 == 0 else reversed(sides):
                found[name].append(sides[name]())
    _print_table(found)
    ceiling = found["ceiling"]
    for case, ours in (("over-ceiling", "buffered"), ("end-to-end-over-ceiling", "end-to-end")):
        yield Case(
            name=case,
            peer_name="arrow-from-memory",
            unit="MB/s",
            ours=[one.by_clock for one in found[ours]],
            peers=[one.by_clock for one in ceiling],
        )
    yield Case(
        name="over-ceiling-processor-time",
        peer_name="arrow-from-memory",
        unit="MB/s",
        ours=[one.by_processor for one in found["buffered"]],
        peers=[one.by_processor for one in ceiling],
    )


def _print_table(found: dict[str, list[Rate]]) -> None:
    parts = sorted({part for rates in found.values() for rate in rates for part in rate.cores})
    table = Table(title="MB/s by the clock, MB a second of the processor, and cores by part")
    for column in ("", "clock", "processor", *parts):
        table.add_column(column, justify="left" if not column else "right")
    for name, rates in found.items():
        cores = [statistics.median(rate.cores.get(part, 0.0) for rate in rates) for part in parts]
        figures = [
            statistics.median(values) for values in zip(*((r.by_clock, r.by_processor) for r in rates), strict=True)
        ]
        table.add_row(name, *(f"{figure:.0f}" for figure in figures), *(f"{core:.2f}" for core in cores))
    Console().print(table)
