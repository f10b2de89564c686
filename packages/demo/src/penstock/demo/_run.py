"""The main job, from start to end."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from opentelemetry import trace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from penstock.demo._children import Child
from penstock.demo._data import expected_delays, read_flights
from penstock.demo._meter import read_counts
from penstock.demo._report import Report, StageTime, compare, plot_latency, read_stream
from penstock.demo._settings import DemoSettings, Job
from penstock.demo._telemetry import merge_spans
from penstock.demo._world import World, open_world
from penstock.demo.errors import DemoError

_READY_SECONDS = 300.0
_LOOK_EVERY_SECONDS = 0.25
_MAX_STARTS = 4


class DriverKeeper:
    """Keeps one Spark driver running."""

    def __init__(self, world: World, job_file: Path, settings: DemoSettings, say: Callable[[str], object]) -> None:
        self._world = world
        self._job_file = job_file
        self._settings = settings
        self._say = say
        self._live_at = time.monotonic()
        self.starts = 0
        """How often it was started."""
        self.child = self._start()

    def _start(self) -> Child:
        self.starts += 1
        return self._world.start("spark-driver", "penstock.demo.driver", str(self._job_file))

    def check(self) -> None:
        """Start it again when it was killed.

        Raises:
            DemoError: it is gone and must not be, or was gone too often.
        """
        code = self.child.poll()
        if code is None:
            return
        self.child.end()
        # A driver that was not killed and has ended met an error, and would meet it again.
        was_killed = code < 0
        if not was_killed or not self._settings.restarts_driver or self.starts >= _MAX_STARTS:
            raise self.child.ended_early()
        self._say(f"the Spark driver was killed by signal {-code}: starting it again from its checkpoint")
        self.child = self._start()

    def await_live(self) -> list[StageTime]:
        """Wait until the live stage is deployed. Gives the stages before it.

        Raises:
            DemoError: it ended before, or takes too long.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while "live" not in self.child.latest:
            if time.monotonic() > deadline:
                raise DemoError(f"the live stage did not start; see {self.child.log}")
            self.check()
            time.sleep(_LOOK_EVERY_SECONDS)
        self._live_at = time.monotonic()
        return [StageTime(**stage) for stage in self.child.latest["stages"] if stage["state"] != "running"]

    def live_seconds(self) -> float:
        """Seconds since the live stage was first deployed."""
        return time.monotonic() - self._live_at


_LINE_EVERY_SECONDS = 5.0


class Progress:
    """Shows how many rows were accepted by Kinesis and read by Spark; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Bars | None = None
        self._line_at = 0.0
        if console.is_terminal:
            columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Bars(*columns, console=console)
            self._put = self._bars.add_task("put into flights", total=None)
            self._read = self._bars.add_task("read by Spark", total=None)

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Print a line, above the bars if there are any."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def update(self, total: int, accepted: int, read: int) -> None:
        """Show how far it is."""
        if self._bars is not None:
            self._bars.update(self._put, total=total, completed=accepted)
            self._bars.update(self._read, total=total, completed=read)
        elif time.monotonic() - self._line_at >= _LINE_EVERY_SECONDS:
            self._line_at = time.monotonic()
            self.say(f"put {accepted:,} of {total:,}, read {read:,}")


_TOTAL_SECONDS = 120.0
_STALLED_SECONDS = 180.0
_SPLIT_AT = 0.4
_KILL_AT = 0.5
_WARM_UP_BATCHES = 6

_tracer = trace.get_tracer("penstock.demo")


@dataclass
class _Happened:
    """What was done to the job while it ran."""

    split_shard: str | None = None
    split_at: float | None = None
    warm: bool = False
    killed: bool = False
    change: tuple[int, int] = (-1, -1)
    changed_at: float = field(default_factory=time.monotonic)


def _write_job(world: World, settings: DemoSettings) -> Path:
    folders = world.folders
    job = Job(
        flights_stream=world.flights_stream,
        delays_stream=world.delays_stream,
        consumer_name="penstock-demo",
        aws_options=world.aws_options,
        polling=settings.polling,
        reader_endpoint=world.reader_endpoint,
        registry_endpoint=world.registry_endpoint,
        store=str(folders.store),
        counts=str(folders.counts),
        plan=str(folders.results / "plan.mmd"),
    )
    file = folders.run / "job.json"
    job.write(file)
    return file


def _start_producer(world: World, settings: DemoSettings) -> Child:
    arguments = [f"--stream={world.flights_stream}", f"--region={world.aws_options['region']}"]
    optional = {
        "--endpoint-url": world.aws_options.get("endpointUrl"),
        "--ca-bundle": world.aws_options.get("caBundle"),
        "--rows": settings.rows,
        "--rate": settings.rate,
    }
    arguments += [f"{flag}={value}" for flag, value in optional.items() if value is not None]
    return world.start("producer", "penstock.demo.producer", *arguments)


def _stream(world: World, settings: DemoSettings, driver: DriverKeeper, progress: Progress) -> tuple[Child, _Happened]:
    """Produce, split, perhaps kill, until every accepted row has gone through a committed micro-batch."""
    producer = _start_producer(world, settings)
    total = int(producer.wait_for("total", _TOTAL_SECONDS))
    happened = _Happened()
    while True:
        driver.check()
        code = producer.poll()
        if code not in (None, 0):
            raise producer.ended_early()
        accepted = int(producer.latest.get("accepted", 0))
        counts = read_counts(world.folders.counts)
        read = sum(count.rows for count in counts)
        progress.update(total, accepted, read)
        if not happened.warm and len(counts) >= _WARM_UP_BATCHES and world.folders.is_committed(counts[-1].batch_id):
            happened.warm = True
            producer.go_on()
        if happened.split_shard is None and accepted >= total * _SPLIT_AT:
            happened.split_shard, happened.split_at = world.split_a_shard(), time.time()
            progress.say(f"split {happened.split_shard} after {accepted:,} rows")
        if settings.kill_driver and not happened.killed and read >= total * _KILL_AT:
            happened.killed = True
            progress.say(f"kill -9 of the Spark driver after {read:,} rows")
            driver.child.kill()
            # It has to come back, also where its last micro-batch had read the rest.
            continue
        if producer.latest.get("done") and read >= accepted and world.folders.is_committed(counts[-1].batch_id):
            return producer, happened
        if happened.change != (accepted, read):
            happened.change, happened.changed_at = (accepted, read), time.monotonic()
        if time.monotonic() - happened.changed_at > _STALLED_SECONDS:
            raise DemoError(f"nothing moved for {_STALLED_SECONDS:.0f} s; see {driver.child.log}")
        time.sleep(_LOOK_EVERY_SECONDS)


def run_demo(settings: DemoSettings, console: Console) -> Report:
    """Run the main job and leave its results in the folder.

    Raises:
        DemoError: a process ended too early, or nothing moved for minutes. The error names a log file.
    """
    started = time.monotonic()
    with open_world(settings) as world:
        with _tracer.start_as_current_span("demo") as span:
            world.join_trace()
            driver = DriverKeeper(world, _write_job(world, settings), settings, console.print)
            console.print("Spark starts; the weather of each day comes first", highlight=False)
            stages = driver.await_live()
            for stage in stages:
                console.print(f"stage {stage.name}: {stage.state}, {stage.seconds:.1f} s", highlight=False)
            with Progress(console) as progress:
                producer, happened = _stream(world, settings, driver, progress)
            live_seconds = driver.live_seconds()
            driver.child.end()
            console.print("comparing with the same join by pandas", highlight=False)
            delays = read_stream(world.kinesis, world.delays_stream)
            comparison = compare(delays, expected_delays(read_flights(settings.rows)))
        counts = read_counts(world.folders.counts)
        results = world.folders.results
        plot_latency(counts, happened.split_at, results / "latency.png")
        report = Report(
            accepted=int(producer.latest["accepted"]),
            read=sum(count.rows for count in counts),
            comparison=comparison,
            counts=counts,
            stages=[*stages, StageTime("delays_stream", "live", live_seconds)],
            split_shard=happened.split_shard,
            throttled=int(producer.latest.get("throttled", 0)),
            driver_starts=driver.starts,
            trace_id=trace.format_trace_id(span.get_span_context().trace_id),
            spans=merge_spans(world.folders.spans, results / "spans.jsonl"),
            seconds=time.monotonic() - started,
        )
        report.write(results / "report.json")
    return report
