"""The cases of `hatch run bench start`: from `start()` to the first row, where nothing is warm.

The floor is a source of Spark's own kind whose rows lie ready: each is measured in a process and session of its own,
in turn. The checkpoints that these runs leave, at the end of the stream, are then run once more in fresh sessions with
`Trigger.AvailableNow`, which has nothing to do. In the same sessions, once they are warm, runs of three seconds have to
leave more rows in the checkpoint than they found.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from benchmarks import _jobs as jobs
from benchmarks._harness import Case
from benchmarks.spark._floor import FloorSource
from benchmarks.spark._fresh import Source, in_fresh_session
from penstock.emulator.testing import EmulatorProcess, kinesis_client, start_emulator_process
from penstock.spark_plugin.testing import endpoint_options

_SHARDS = 4
_ROWS = 40
_SHORT_RUNS = 3
_SHORT_SECONDS = 3.0
_IDLE_AIM_SECONDS = 2.0
_PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.05


class _Rows:
    """What `foreachBatch` gets."""

    def __init__(self) -> None:
        self.first = threading.Event()
        self.batches: dict[int, int] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if rows := len(frame.select("data").collect()):
            self.batches[batch_id] = self.batches.get(batch_id, 0) + rows
            self.first.set()

    @property
    def number(self) -> int:
        """The number of all rows."""
        return sum(self.batches.values())


@dataclass(frozen=True)
class _Started:
    """Seconds of a query in a fresh session."""

    load: float
    """Of `load()`, before the query starts."""
    first_row: float
    """From `start()`."""
    phases: Mapping[str, int]
    """Spark's own milliseconds of the parts of the first micro-batch with rows."""


@dataclass(frozen=True)
class _Later:
    """What later runs of the same query gave, in a fresh session."""

    idle: float
    """Seconds of a run with `Trigger.AvailableNow` that has nothing to read."""
    progressed: list[bool]
    """Whether each run of three seconds left more in the checkpoint than it found."""


def _await(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if query.exception() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"rows do not come: {query.exception()}")
        time.sleep(_LOOK_SECONDS)


def _start(source: Source, checkpoint: str, _pipe: Connection) -> _Started:
    """Time a query's first row, and let it read all rows."""
    began = time.perf_counter()
    frame = source.load()
    loaded = time.perf_counter()
    rows = _Rows()
    query = frame.writeStream.foreachBatch(rows).option("checkpointLocation", checkpoint).start()
    try:
        if not rows.first.wait(_PATIENCE_SECONDS):
            raise RuntimeError(f"rows do not come: {query.exception()}")
        arrived = time.perf_counter()
        _await(query, lambda: sum(one["numInputRows"] for one in query.recentProgress) >= _ROWS)
        phases = next(dict(one["durationMs"]) for one in query.recentProgress if one["numInputRows"])
    finally:
        query.stop()
    return _Started(loaded - began, arrived - loaded, phases)


def _run_later(sources: list[Source], checkpoint: str, endpoint_url: str | None, _pipe: Connection) -> _Later:
    """Time a run that has nothing to read; then run by the other sources, once until rows came, then for seconds."""
    rows = _Rows()
    frame = sources[0].load()
    began = time.perf_counter()
    writer = frame.writeStream.foreachBatch(rows).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(int(_PATIENCE_SECONDS)):
        raise RuntimeError("the idle run does not end")
    idle = time.perf_counter() - began
    if rows.number:
        raise RuntimeError(f"the idle run had {rows.number} rows")
    progressed: list[bool] = []
    for source in sources[1:]:
        if endpoint_url is not None:
            put(endpoint_url, source.options["streamName"])
        # The first brings what a session makes once: workers, compiled code.
        progressed.append(_run_short(source, checkpoint, _SHORT_SECONDS if progressed else None))
    return _Later(idle, progressed[1:])


def _run_short(source: Source, checkpoint: str, seconds: float | None) -> bool:
    """Run for so long, or until rows are committed; whether the checkpoint then has more rows than before."""
    frame, rows, before = source.load(), _Rows(), _committed(checkpoint)

    def has_progressed() -> bool:
        return bool((_committed(checkpoint) - before) & rows.batches.keys())

    query = frame.writeStream.foreachBatch(rows).option("checkpointLocation", checkpoint).start()
    try:
        if seconds is None:
            _await(query, has_progressed)
        else:
            time.sleep(seconds)
    finally:
        query.stop()
    return has_progressed()


def _committed(checkpoint: str) -> set[int]:
    return {int(one.name) for one in (Path(checkpoint) / "commits").glob("[0-9]*")}


def put(endpoint_url: str, stream: str) -> None:
    """Put rows, a few to each shard."""
    keys = [str((2 * shard + 1) * 2**128 // (2 * _SHARDS)) for shard in range(_SHARDS)]
    entries = [{"Data": b"x" * 1000, "PartitionKey": "k", "ExplicitHashKey": key} for key in keys]
    answer = kinesis_client(endpoint_url).put_records(StreamName=stream, Records=entries * (_ROWS // _SHARDS))
    if answer["FailedRecordCount"]:
        raise RuntimeError("the emulator refused records")


@dataclass
class _Side:
    """One way of reading, and what it gave."""

    make: Callable[[int], tuple[list[Source], str | None]]
    """The sources of a round's first, idle and short runs, and where rows are written before the short run."""
    started: list[_Started]
    later: list[_Later]

    def measure(self, number: int) -> None:
        """A round."""
        checkpoint = str(jobs.fresh("checkpoint"))
        sources, endpoint_url = self.make(number)
        self.started.append(in_fresh_session(_start, sources[0], checkpoint))
        self.later.append(in_fresh_session(_run_later, sources[1:], checkpoint, endpoint_url))


def _floor(_number: int) -> tuple[list[Source], None]:
    first = Source(FloorSource.name(), {"rows": str(_ROWS)})
    more = [replace(first, options={**first.options, "rows": str((run + 2) * _ROWS)}) for run in range(1 + _SHORT_RUNS)]
    return [first, first, *more], None


def _kinesis(emulator: EmulatorProcess, publisher: str, number: int) -> tuple[list[Source], str]:
    stream = f"start-{publisher}-{number}"
    client = emulator.client()
    client.create_stream(StreamName=stream, ShardCount=_SHARDS)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    put(emulator.endpoint_url, stream)
    options = endpoint_options(
        emulator.tls_endpoint_url,
        stream,
        caBundle=str(emulator.ca_file),
        initialPosition="TRIM_HORIZON",
        recordPublisher=publisher,
    )
    if publisher == "efo":
        # As of a job that starts each day: its consumer is there, and is left there.
        arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
        made = client.register_stream_consumer(StreamARN=arn, ConsumerName="bench")["Consumer"]["ConsumerARN"]
        while client.describe_stream_consumer(ConsumerARN=made)["ConsumerDescription"]["ConsumerStatus"] != "ACTIVE":
            time.sleep(_LOOK_SECONDS)
        options |= {"efoConsumerName": "bench", "registryStore": str(jobs.fresh("registry"))}
    return [Source("kinesis", options)] * (3 + _SHORT_RUNS), emulator.endpoint_url


def run(rounds: int) -> Iterator[Case]:
    """The floor, polling and enhanced fan-out, in turn."""
    with ExitStack() as stack:
        emulator = stack.enter_context(start_emulator_process())
        sides = {
            "floor": _Side(_floor, [], []),
            "polling": _Side(lambda number: _kinesis(emulator, "polling", number), [], []),
            "efo": _Side(lambda number: _kinesis(emulator, "efo", number), [], []),
        }
        # What the machine's file cache has to hold.
        in_fresh_session(_start, _floor(0)[0][0], str(jobs.fresh("checkpoint")))
        for number in range(rounds):
            for name in sides if number % 2 == 0 else reversed(sides):
                sides[name].measure(number)
    _print_table(sides)
    floor = sides.pop("floor")
    for name, side in sides.items():
        yield Case(
            name=f"{name}-first-row",
            peer_name="ready-rows",
            unit="s",
            ours=[one.first_row for one in side.started],
            peers=[one.first_row for one in floor.started],
        )
        more = [ours.idle - peers.idle for ours, peers in zip(side.later, floor.later, strict=True)]
        yield Case(
            name=f"{name}-idle-run-more",
            peer_name="2-s-more-than-ready-rows",
            unit="s",
            ours=more,
            peers=[_IDLE_AIM_SECONDS] * rounds,
        )
        yield Case(
            name=f"{name}-three-second-runs",
            peer_name="all-progress",
            unit="runs",
            ours=[float(sum(one.progressed)) for one in side.later],
            peers=[float(_SHORT_RUNS)] * rounds,
        )


def _print_table(sides: Mapping[str, _Side]) -> None:
    phases = ("latestOffset", "queryPlanning", "addBatch", "triggerExecution")
    table = Table(title="seconds in fresh sessions; then milliseconds of the first micro-batch as Spark reports them")
    for column in ("", "load()", "first row", "rounds'", "idle run", "3 s runs that progress", *phases):
        table.add_column(column, justify="left" if not column else "right")
    for name, side in sides.items():
        table.add_row(
            name,
            f"{statistics.median(one.load for one in side.started):.2f}",
            f"{statistics.median(one.first_row for one in side.started):.2f}",
            ", ".join(f"{one.first_row:.2f}" for one in side.started),
            f"{statistics.median(one.idle for one in side.later):.2f}",
            ", ".join("".join("+" if one else "-" for one in later.progressed) for later in side.later),
            *(f"{statistics.median(one.phases.get(phase, 0) for one in side.started):.0f}" for phase in phases),
        )
    Console(width=160).print(table)
