"""The cases of `hatch run bench spark-latency`: from a put to its row in `foreachBatch`.

The ceiling is a source that invents its row at the moment when another would be put: the same session, trigger and
number of partitions, and rows at the same random moments. Emulator and producer are a process each; the producer writes
the time into each record before it calls, so that the put itself counts, and Kinesis' part of the way with it.
"""

import itertools
import math
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

from benchmarks import _jobs as jobs
from benchmarks._harness import Case
from benchmarks._processes import Spent, processor_seconds, seconds_between
from benchmarks.spark._ceiling import CeilingSource, pauses
from benchmarks.spark._floor import RECORD_BYTES, STAMP
from penstock.emulator.testing import EmulatorProcess, kinesis_client, start_emulator_process
from penstock.spark_plugin.testing import endpoint_options

SHARDS = (4, 64)
_WARM_UP_NANOS = 2_000_000_000
_ROWS = 25
_PATIENCE_SECONDS = 120.0
_PHASES = ("walCommit", "queryPlanning", "addBatch", "commitOffsets", "commitBatch", "triggerExecution")
_PROCESSES = ("driver", "source", "workers", "jvm")


def _produce(endpoint_url: str, stream: str, shards: int, seed: int, pipe: Connection) -> None:
    """Put a record to one shard after the other, until something is sent."""
    client = kinesis_client(endpoint_url)
    keys = itertools.cycle([str((2 * shard + 1) * 2**128 // (2 * shards)) for shard in range(shards)])
    client.list_streams()
    for pause in pauses(seed):
        if pipe.poll(pause):
            return
        data = STAMP.pack(time.monotonic_ns()).ljust(RECORD_BYTES, b".")
        client.put_record(StreamName=stream, Data=data, PartitionKey="k", ExplicitHashKey=next(keys))


@contextmanager
def _producer(emulator: EmulatorProcess, shards: int, seed: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    arguments = (emulator.endpoint_url, _stream(shards), shards, seed, other)
    process = context.Process(target=_produce, args=arguments, name="bench producer")
    process.start()
    try:
        yield
    finally:
        pipe.send(None)
        process.join(10)
        if process.is_alive():
            process.kill()


def _stream(shards: int) -> str:
    return f"latency-{shards}"


class _Rows:
    """What `foreachBatch` gets: milliseconds of each row, from its stamp to here."""

    def __init__(self) -> None:
        self.millis: list[float] = []
        self.complete = threading.Event()
        self.before: Spent = {}
        self.after: Spent = {}
        self._counts_from: int | None = None

    def __call__(self, frame: DataFrame, _: int) -> None:
        rows = frame.select("data").collect()
        arrived = time.monotonic_ns()
        # What waited for the query's start says nothing.
        self._counts_from = self._counts_from or arrived + _WARM_UP_NANOS
        stamps = [STAMP.unpack_from(row["data"])[0] for row in rows]
        counted = [(arrived - stamp) / 1e6 for stamp in stamps if stamp > self._counts_from]
        if counted and not self.millis:
            self.before = processor_seconds()
        self.millis += counted
        if len(self.millis) >= _ROWS and not self.complete.is_set():
            self.after = processor_seconds()
            self.complete.set()


@dataclass(frozen=True)
class Measured:
    """One query's round."""

    millis: list[float]
    """From the making of a row to `foreachBatch`."""
    phases: dict[str, float]
    """Spark's own median milliseconds of the parts of a micro-batch."""
    spent: dict[str, float]
    """Milliseconds of the processor a row, by process."""


def measure(frame: DataFrame) -> Measured:
    """Follow rows that come one by one."""
    rows = _Rows()
    writer = frame.writeStream.foreachBatch(rows).option("checkpointLocation", str(jobs.fresh("checkpoint")))
    query = writer.start()
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not rows.complete.wait(0.5):
            if query.exception() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"rows do not come: {query.exception()}")
        batches = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]][-_ROWS:]
    finally:
        query.stop()
    phases = {name: statistics.median(one.get(name, 0) for one in batches) for name in _PHASES}
    spent = {part: 1000 * s / _ROWS for part, s in seconds_between(rows.before, rows.after).items()}
    return Measured(rows.millis, phases, spent)


def _ceiling(seed: int) -> Measured:
    return measure(jobs.session().readStream.format(CeilingSource.name()).option("seed", str(seed)).load())


def _kinesis(emulator: EmulatorProcess, shards: int, seed: int, **options: str) -> Measured:
    common = endpoint_options(emulator.tls_endpoint_url, _stream(shards), caBundle=str(emulator.ca_file))
    frame = jobs.session().readStream.format("kinesis").options(**common, **options).load()
    with _producer(emulator, shards, seed):
        return measure(frame)


def percentile(values: list[float], share: float) -> float:
    """The nearest rank."""
    return sorted(values)[min(len(values), math.ceil(share * len(values))) - 1]


def run(rounds: int) -> Iterator[Case]:
    """Two numbers of shards by enhanced fan-out, the few also by polling."""
    jobs.session().dataSource.register(CeilingSource)
    with ExitStack() as stack:
        emulator = stack.enter_context(start_emulator_process())
        efo = {"recordPublisher": "efo", "efoConsumerName": "bench", "registryStore": str(jobs.fresh("registry"))}
        sides: dict[str, Callable[[int], Measured]] = {"ceiling": _ceiling}
        for shards in SHARDS:
            emulator.client().create_stream(StreamName=_stream(shards), ShardCount=shards)
            emulator.client().get_waiter("stream_exists").wait(
                StreamName=_stream(shards), WaiterConfig={"Delay": 1, "MaxAttempts": 60}
            )
            sides[f"efo-{shards}"] = lambda seed, shards=shards: _kinesis(emulator, shards, seed, **efo)  # type: ignore[misc]  # a lambda
        sides["polling-4"] = lambda seed: _kinesis(emulator, SHARDS[0], seed, recordPublisher="polling")
        # The JVM compiles what it runs often.
        sides["ceiling"](1), sides[f"efo-{SHARDS[0]}"](1)
        found = _interleaved(sides, rounds)
    _print_table(found)
    yield from _cases(found)


def _interleaved(sides: dict[str, Callable[[int], Measured]], rounds: int) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sides if number % 2 == 0 else reversed(sides):
            found[name].append(sides[name](number + 1))
    return found


def _cases(found: dict[str, list[Measured]]) -> Iterator[Case]:
    def p50(name: str) -> list[float]:
        return [statistics.median(one.millis) for one in found[name]]

    for shards in SHARDS:
        yield Case(
            name=f"p50-over-ceiling-{shards}",
            peer_name="invented-rows",
            unit="ms",
            ours=p50(f"efo-{shards}"),
            peers=p50("ceiling"),
        )
    yield Case(name="polling-over-efo", peer_name="efo", unit="ms", ours=p50("polling-4"), peers=p50("efo-4"))


def _print_table(found: dict[str, list[Measured]]) -> None:
    table = Table(
        title=f"put to foreachBatch, ms; {_ROWS} rows a round; then the parts of a micro-batch as Spark tells"
    )
    for column in ("", "p50", "p99", "rounds' p50", *_PHASES):
        table.add_column(column, justify="left" if not column else "right")
    for name, rounds in found.items():
        every = [millis for one in rounds for millis in one.millis]
        middles = ", ".join(f"{statistics.median(one.millis):.0f}" for one in rounds)
        parts = [f"{statistics.median(one.phases[phase] for one in rounds):.0f}" for phase in _PHASES]
        parts += [f"{statistics.median(one.spent[process] for one in rounds):.0f}" for process in _PROCESSES]
        table.add_row(name, f"{percentile(every, 0.5):.1f}", f"{percentile(every, 0.99):.1f}", middles, *parts)
    Console(width=180).print(table)
