"""The cases of `hatch run bench restart`: a driver killed at full load, to the first new row of the next one.

Seconds from the new process' start: its Python and its JVM, the session, the query, and rows that the former one had
not given. The floor is a source of Spark's own kind that has as many rows a second, whether a query runs or not, with a
checkpoint of the same kind. Emulator and producer run beside it all the same.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as everybody writes it
from rich.console import Console
from rich.table import Table

from benchmarks import _jobs as jobs
from benchmarks._harness import Case
from benchmarks.spark._floor import RECORD_BYTES, STAMP, FloorSource
from benchmarks.spark._fresh import Source, driver
from penstock.emulator.testing import EmulatorProcess, kinesis_client, start_emulator_process
from penstock.spark_plugin.testing import endpoint_options

_SHARDS = 4
_STREAM = "restart"
_SHARD_RECORDS_PER_SECOND = 900
"""Of 1 kB: nearly what a shard takes."""
_CALLS_PER_SECOND = 4
_BATCHES = 10
_LOAD_SECONDS = 6.0
"""For which a driver reads at least before it is killed: longer than what Kinesis keeps between two subscriptions."""
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class _Batch:
    """A micro-batch, as the driver sends it."""

    newest: int
    """The largest of its stamps."""
    rows: int
    arrived: float
    """`time.monotonic()`, which all processes of a machine share."""


def _drive(source: Source, checkpoint: str, pipe: Connection) -> None:
    """Run a query until this process is killed."""

    def on_batch(frame: DataFrame, _: int) -> None:
        rows = frame.select(F.substring("data", 1, STAMP.size).alias("stamp")).collect()
        stamps = []
        for row in rows:
            # Rows of the floor that lie ready have none.
            if row["stamp"] != b"x" * STAMP.size:
                stamps.append(STAMP.unpack(row["stamp"])[0])
        if stamps:
            pipe.send(_Batch(max(stamps), len(rows), time.monotonic()))

    writer = source.load().writeStream.foreachBatch(on_batch).option("checkpointLocation", checkpoint)
    writer.start().awaitTermination()


def _produce(endpoint_url: str, pipe: Connection) -> None:
    """Put nearly as much as the shards take, until something is sent."""
    client = kinesis_client(endpoint_url)
    keys = [str((2 * shard + 1) * 2**128 // (2 * _SHARDS)) for shard in range(_SHARDS)]
    number = _SHARD_RECORDS_PER_SECOND // _CALLS_PER_SECOND
    due = time.monotonic()
    while not pipe.poll(max(0.0, due - time.monotonic())):
        due = max(due, time.monotonic() - 1) + 1 / _CALLS_PER_SECOND
        for key in keys:
            data = STAMP.pack(time.monotonic_ns()).ljust(RECORD_BYTES, b".")
            entries = [{"Data": data, "PartitionKey": "k", "ExplicitHashKey": key}] * number
            client.put_records(StreamName=_STREAM, Records=entries)


@contextmanager
def _producer(emulator: EmulatorProcess) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_produce, args=(emulator.endpoint_url, other), name="bench producer")
    process.start()
    try:
        yield
    finally:
        pipe.send(None)
        process.join(10)
        if process.is_alive():
            process.kill()


@dataclass(frozen=True)
class _Restarted:
    """A driver that was killed, and its successor."""

    first_new_row: float
    """Seconds from the start of the new process."""
    session: float
    """Seconds of them until the session was there."""
    rows_per_second: float
    """The rate of the former driver before it was killed."""


def _restart(source: Source) -> _Restarted:
    checkpoint = str(jobs.fresh("checkpoint"))
    with driver(_drive, source, checkpoint) as first:
        batches: list[_Batch] = []
        while len(batches) < _BATCHES or batches[-1].arrived - batches[0].arrived < _LOAD_SECONDS:
            batches.append(first.next(_PATIENCE_SECONDS))
        batches += first.kill()
    newest = max(one.newest for one in batches)
    rate = sum(one.rows for one in batches[1:]) / (batches[-1].arrived - batches[0].arrived)
    began = time.monotonic()
    with driver(_drive, source, checkpoint) as second:
        ready = time.monotonic()
        while (batch := second.next(_PATIENCE_SECONDS)).newest <= newest:
            pass
        second.kill()
    return _Restarted(batch.arrived - began, ready - began, rate)


@dataclass
class _Side:
    """One way of reading, and what it gave."""

    make: Callable[[int], Source]
    found: list[_Restarted] = field(default_factory=list)


def _kinesis(emulator: EmulatorProcess, publisher: str, number: int) -> Source:
    options = endpoint_options(
        emulator.tls_endpoint_url,
        _STREAM,
        caBundle=str(emulator.ca_file),
        recordPublisher=publisher,
        jobId=f"restart-{publisher}-{number}",
    )
    if publisher == "efo":
        # The consumer that a killed driver leaves is the same job's.
        options |= {"efoConsumerName": f"bench-{number}", "registryStore": str(jobs.fresh("registry"))}
    return Source("kinesis", options)


def run(rounds: int) -> Iterator[Case]:
    """The floor, polling and enhanced fan-out, in turn."""
    rate = str(_SHARDS * _SHARD_RECORDS_PER_SECOND)
    with ExitStack() as stack:
        emulator = stack.enter_context(start_emulator_process())
        client = emulator.client()
        client.create_stream(StreamName=_STREAM, ShardCount=_SHARDS)
        client.get_waiter("stream_exists").wait(StreamName=_STREAM, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        stack.enter_context(_producer(emulator))
        sides = {
            "floor": _Side(lambda _: Source(FloorSource.name(), {"rate": rate})),
            "polling": _Side(lambda number: _kinesis(emulator, "polling", number)),
            "efo": _Side(lambda number: _kinesis(emulator, "efo", number)),
        }
        for number in range(rounds):
            for name in sides if number % 2 == 0 else reversed(sides):
                sides[name].found.append(_restart(sides[name].make(number)))
    _print_table(sides)
    floor = [one.first_new_row for one in sides.pop("floor").found]
    for name, side in sides.items():
        ours = [one.first_new_row for one in side.found]
        yield Case(name=f"{name}-first-new-row", peer_name="rows-by-rate", unit="s", ours=ours, peers=floor)


def _print_table(sides: Mapping[str, _Side]) -> None:
    table = Table(title="a driver killed at full load: seconds from the start of the next process")
    for column in ("", "first new row", "rounds'", "of them: session", "rows/s before"):
        table.add_column(column, justify="left" if not column else "right")
    for name, side in sides.items():
        table.add_row(
            name,
            f"{statistics.median(one.first_new_row for one in side.found):.2f}",
            ", ".join(f"{one.first_new_row:.2f}" for one in side.found),
            f"{statistics.median(one.session for one in side.found):.2f}",
            f"{statistics.median(one.rows_per_second for one in side.found):,.0f}",
        )
    Console(width=120).print(table)
