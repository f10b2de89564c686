"""The cases of `hatch run bench spark-idle`: the processor time of a query without records.

The peer is a source that never has a row and waits as long as our source does, with the same session, trigger and sink.
It shows the JVM's own activity. `PENSTOCK_BENCH_IDLE_SECONDS` sets how long each query is measured in a round.
"""

import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

from benchmarks import _jobs as jobs
from benchmarks._harness import Case
from benchmarks._processes import processor_seconds, seconds_between
from benchmarks.spark._ceiling import CeilingSource
from penstock.emulator.testing import start_emulator_process
from penstock.spark_plugin.testing import endpoint_options

_SHARDS = 64
_SETTLE_SECONDS = 10.0
"""After the first micro-batch: what is compiled and freed then."""
_PATIENCE_SECONDS = 120.0
_PARTS = ("driver", "source", "workers", "jvm")


class _Calls:
    """A sink that counts."""

    def __init__(self) -> None:
        self.number = 0
        self.begun = threading.Event()

    def __call__(self, _frame: DataFrame, _batch_id: int) -> None:
        self.number += 1
        self.begun.set()


def _watch(frame: DataFrame | None, seconds: float) -> tuple[dict[str, float], int]:
    """Percent of a core by part while a query on the frame is idle, and its micro-batches meanwhile."""
    query, calls = None, _Calls()
    if frame is not None:
        writer = frame.writeStream.foreachBatch(calls)
        query = writer.option("checkpointLocation", str(jobs.fresh("checkpoint"))).start()
    try:
        # Spark runs a query's first micro-batch with rows or without.
        if query is not None and not calls.begun.wait(_PATIENCE_SECONDS):
            raise RuntimeError(f"the query does not begin: {query.exception()}")
        time.sleep(_SETTLE_SECONDS)
        number, before, began = calls.number, processor_seconds(), time.perf_counter()
        time.sleep(seconds)
        after, taken = processor_seconds(), time.perf_counter() - began
        if query is not None and query.exception() is not None:
            raise RuntimeError(f"the query failed: {query.exception()}")
        percent = {part: 100 * spent / taken for part, spent in seconds_between(before, after).items()}
        return percent, calls.number - number
    finally:
        if query is not None:
            query.stop()


def run(rounds: int) -> Iterator[Case]:
    """A session without a query, the ceiling's query and ours, in turn."""
    seconds = float(os.environ.get("PENSTOCK_BENCH_IDLE_SECONDS", "60"))
    spark = jobs.session()
    spark.dataSource.register(CeilingSource)
    with ExitStack() as stack:
        emulator = stack.enter_context(start_emulator_process())
        client = emulator.client()
        client.create_stream(StreamName="idle", ShardCount=_SHARDS)
        client.get_waiter("stream_exists").wait(StreamName="idle", WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        options = endpoint_options(
            emulator.tls_endpoint_url,
            "idle",
            caBundle=str(emulator.ca_file),
            recordPublisher="efo",
            efoConsumerName="bench",
            registryStore=str(jobs.fresh("registry")),
        )
        sides = {
            "no query": lambda: _watch(None, seconds),
            "ceiling": lambda: _watch(
                spark.readStream.format(CeilingSource.name()).option("seed", "0").load(), seconds
            ),
            "penstock": lambda: _watch(spark.readStream.format("kinesis").options(**options).load(), seconds),
        }
        found: dict[str, list[tuple[dict[str, float], int]]] = {name: [] for name in sides}
        for number in range(rounds):
            for name in sides if number % 2 == 0 else reversed(sides):
                found[name].append(sides[name]())
    _print_table(found)
    ours, peers, nothing = ([one for one, _ in found[name]] for name in ("penstock", "ceiling", "no query"))
    python = ("driver", "source", "workers")
    yield Case(
        name="python-percent-of-core",
        peer_name="5-percent",
        unit="%",
        ours=[sum(one[part] for part in python) for one in ours],
        peers=[5.0] * rounds,
    )
    yield Case(
        name="all-percent-of-core",
        peer_name="5-percent",
        unit="%",
        ours=[sum(one.values()) - sum(none.values()) for one, none in zip(ours, nothing, strict=True)],
        peers=[5.0] * rounds,
    )
    yield Case(
        name="all-over-ceiling",
        peer_name="idle-ceiling",
        unit="%",
        ours=[sum(one.values()) for one in ours],
        peers=[sum(one.values()) for one in peers],
    )


def _print_table(found: dict[str, list[tuple[dict[str, float], int]]]) -> None:
    table = Table(title=f"percent of a core, idle; {_SHARDS} shards")
    for column in ("", *_PARTS, "sum", "micro-batches"):
        table.add_column(column, justify="left" if not column else "right")
    for name, rounds in found.items():
        parts = [statistics.median(percent[part] for percent, _ in rounds) for part in _PARTS]
        batches = sum(number for _, number in rounds)
        table.add_row(name, *(f"{part:.2f}" for part in parts), f"{sum(parts):.2f}", str(batches))
    Console().print(table)
