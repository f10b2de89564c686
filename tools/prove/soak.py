"""Queries run for hours under resharding, kills and an unkind service: nothing is lost, and nothing grows.

Two queries of one Spark driver, one whose reader is its own and one that reads through a service, read what is put all
the time. Every so often the number of shards changes and something is killed: the reader service, the registry, the
driver, in turn. What each process holds is sampled meanwhile. At the end each record was read once, and a line is
fitted through what was held in the longest life of each process, its first quarter left out. Where it rises, but two
levels explain what was held far better, as where a caller came, it is a step, and not what grows.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from penstock.efo_consumer._buffer.owned_folder import MEMORY, READER_PREFIX
from penstock.emulator import Behaviour
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin.testing import endpoint_options
from tools.prove.processes import Driver, Log, Service, read_rows

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SUMMARY = "queries run for hours under resharding and kills; nothing is lost, and nothing that they hold grows"

STREAM = "soak"
SHARD_COUNTS = (4, 6)
SAMPLE_SECONDS = 5.0
SETTLE_SECONDS = 180.0
FEWEST_SAMPLES = 60
"""Samples after the first quarter of a run that a fit needs: five minutes."""
BLOCKS = 12
"""Means of so many parts of a life are fitted: neighbouring samples are alike, and would make the error too small."""
GROWTH = 0.05
"""Growth per hour of what is held: less counts as flat, whatever the error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--hours", type=float, default=2.0, help="how long; default: 2")
    parser.add_argument("--rate", type=int, default=500, help="records a second; default: 500")
    parser.add_argument("--reshard-minutes", type=float, default=5.0, help="between two changes; default: 5")
    parser.add_argument("--kill-minutes", type=float, default=10.0, help="between two kills; default: 10")
    parser.add_argument("--seed", type=int, help="of the emulator's profile; default: random")
    parser.add_argument("--profile", choices=["kind", "hostile"], default="hostile", help="of the emulator")
    parser.add_argument("--log", type=Path, help="file for what all processes say")
    parser.add_argument("--report", type=Path, help="file for all samples, as JSON; its picture goes beside it, as SVG")


def run(arguments: argparse.Namespace) -> bool:
    """Let queries run, reshard and kill, and report."""
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, profile {arguments.profile}, {arguments.hours:g} h, {arguments.rate} records/s", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, _world(Path(folder), arguments, seed) as world:
        samples = Samples(world)
        _live(world, samples, arguments)
        faults = world.finish()
    lines = list(samples.lines())
    for line in lines:
        print(line)
    if arguments.report is not None:
        _report(arguments.report, samples, lines, world)
    grown = [line.name for line in lines if line.grows]
    for fault in [*faults, *(f"{name} grows" for name in grown)]:
        print(fault)
    print("the soak holds" if not (faults or grown) else f"the soak does not hold: --seed {seed}", flush=True)
    return not (faults or grown)


def _live(world: World, samples: Samples, arguments: argparse.Namespace) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while not all(map(world.driver.has_rows, world.queries)):
        if time.monotonic() > deadline or not world.driver.is_alive():
            raise RuntimeError("\n".join(["a query gives no rows", *world.log.last(60)]))
        time.sleep(1)
    began = time.monotonic()
    end = began + arguments.hours * 3600
    reshard_at, kill_at = began + arguments.reshard_minutes * 60, began + arguments.kill_minutes * 60
    counts, victims = itertools.cycle(reversed(SHARD_COUNTS)), itertools.cycle(VICTIMS)
    while (now := time.monotonic()) < end:
        samples.take(now - began)
        if now >= reshard_at:
            reshard_at += arguments.reshard_minutes * 60
            world.reshard(next(counts))
        if now >= kill_at:
            kill_at += arguments.kill_minutes * 60
            world.kill(next(victims))
        if not world.driver.is_alive():
            print("\n".join(["the driver ended:", *world.log.last(60)]))
            return
        time.sleep(SAMPLE_SECONDS)


@dataclass
class World:
    """Kinesis, two services, the driver, and what was put.

    Attributes:
        folder: of the driver's tables and checkpoints.
        keys: shard and sequence number of each record that was put.
        events: what was done, and when: seconds of the monotonic clock.
    """

    emulator: RunningEmulator
    registry: Service
    reader: Service
    log: Log
    folder: Path
    queries: dict[str, dict[str, str]]
    driver: Driver
    rate: int
    keys: list[tuple[str, str]] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    others: frozenset[Path] = frozenset()
    """Folders in shared memory that are not of this soak."""
    _stop: threading.Event = field(default_factory=threading.Event)

    def put(self) -> None:
        """Put records until the end."""
        client: Any = self.emulator.client()
        for number in itertools.count():
            if self._stop.wait(1.0):
                return
            entries = [{"Data": os.urandom(200), "PartitionKey": f"{number}-{n}"} for n in range(self.rate)]
            for some in (entries[n : n + 500] for n in range(0, len(entries), 500)):
                for one in client.put_records(StreamName=STREAM, Records=some)["Records"]:
                    if "SequenceNumber" in one:
                        self.keys.append((one["ShardId"], one["SequenceNumber"]))

    def reshard(self, shards: int) -> None:
        """Change the number of shards."""
        client: Any = self.emulator.client()
        with suppress(client.exceptions.ResourceInUseException):
            client.update_shard_count(StreamName=STREAM, TargetShardCount=shards, ScalingType="UNIFORM_SCALING")
            self._happened(f"{shards} shards")

    def kill(self, victim: str) -> None:
        """End something at once, and see that it comes back."""
        self._happened(f"kill -9 of the {victim}")
        if victim == "driver":
            self.driver.kill()
            self.driver = Driver("driver", self.folder, self.queries, self.log)
        else:
            service = self.reader if victim == "reader service" else self.registry
            with service.away():
                pass

    def processes(self) -> dict[str, list[psutil.Process]]:
        """What runs, by group."""
        groups: dict[str, list[psutil.Process]] = {"driver, JVM": [], "driver, Python": []}
        for pid in self.driver.pids():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                groups["driver, JVM" if process.name().startswith("java") else "driver, Python"].append(process)
        for name, service in (("reader service", self.reader), ("registry", self.registry)):
            if service.running is not None:
                groups[name] = [psutil.Process(service.running.process.pid)]
        return groups

    def finish(self) -> list[str]:
        """End the puts, wait for all rows, and say what is wrong with them."""
        self._stop.set()
        time.sleep(2)
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and self.driver.is_alive():
            if all(set(read_rows(self.folder, query)) >= set(self.keys) for query in self.queries):
                break
            time.sleep(2)
        faults = [] if self.driver.is_alive() else ["the driver ended"]
        put = Counter(self.keys)
        for query in self.queries:
            rows = Counter(read_rows(self.folder, query))
            missing, more = put - rows, rows - put
            print(f"{query}: {len(self.keys)} put, {rows.total()} read, {missing.total()} missing, {more.total()} more")
            if missing or more:
                faults.append(f"{query}: missing {list(missing)[:3]}, more {list(more)[:3]}")
        return faults

    def _happened(self, what: str) -> None:
        self.events.append((time.monotonic(), what))
        self.log.add(f"soak: {what}")
        print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


VICTIMS = ("reader service", "registry", "driver")


@dataclass(frozen=True)
class Line:
    """How something grows: the line through the longest life of what holds it."""

    name: str
    hours: float
    mean: float
    slope: float
    """An hour."""
    error: float
    """The slope's standard error."""
    is_step: bool
    """Whether a level that changes once leaves less than half of the squares that the line leaves."""

    @property
    def rises(self) -> bool:
        """Whether the line does, by more than the error and by more than is worth a word."""
        return self.slope > 2 * self.error and self.slope > GROWTH * max(self.mean, 1.0)

    @property
    def grows(self) -> bool:
        """Whether it does time and again."""
        return self.rises and not self.is_step

    def __str__(self) -> str:
        verdict = "GROWS" if self.grows else "a step" if self.rises else "flat"
        slope = f"{self.slope:+.2f} ± {self.error:.2f} an hour"
        return f"{self.name:36} {self.mean:10.1f} {slope:>28} over {self.hours:.2f} h: {verdict}"


class Samples:
    """What is held, by name: lists of (seconds, life, value)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.values: dict[str, list[tuple[float, float, float]]] = defaultdict(list)

    def take(self, seconds: float) -> None:
        """Take a sample of all."""
        for group, processes in self._world.processes().items():
            sums: Counter[str] = Counter()
            for process in processes:
                # It may end meanwhile.
                with suppress(psutil.NoSuchProcess), process.oneshot():
                    sums["MiB resident"] += process.memory_info().rss / 2**20
                    sums["file descriptors"] += process.num_fds()
                    sums["threads"] += process.num_threads()
            # A life ends where the process that was there first is another: workers come and go.
            life = min((process.create_time() for process in processes if process.is_running()), default=0.0)
            for what, value in sums.items():
                self.values[f"{group}: {what}"].append((seconds, life, float(value)))
        folder = self._world.folder
        places = {
            "checkpoints: MiB": [folder / "checkpoint"],
            "/dev/shm: MiB": _readers_folders() - self._world.others,
        }
        for name, folders in places.items():
            self.values[name].append((seconds, 0.0, sum(map(_bytes_below, folders)) / 2**20))

    def lines(self) -> Iterator[Line]:
        """A line through each, where there are enough values."""
        for name, values in self.values.items():
            lives = [list(some) for _, some in itertools.groupby(values, key=lambda one: one[1])]
            longest = max(lives, key=len)
            kept = longest[len(longest) // 4 :]
            if len(kept) >= FEWEST_SAMPLES:
                yield fit(name, [(seconds / 3600, value) for seconds, _, value in kept])


def fit(name: str, points: list[tuple[float, float]]) -> Line:
    """The line through values at hours, by the means of parts of the time."""
    size = len(points) / BLOCKS
    blocks = [points[round(n * size) : round((n + 1) * size)] for n in range(BLOCKS)]
    xs = [statistics.fmean(x for x, _ in block) for block in blocks]
    ys = [statistics.fmean(y for _, y in block) for block in blocks]
    slope, level = statistics.linear_regression(xs, ys)
    rest = sum((y - level - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    rest_of_step = min(_squares(ys[:n]) + _squares(ys[n:]) for n in range(1, BLOCKS))
    error = (rest / (BLOCKS - 2) / _squares(xs)) ** 0.5
    hours = points[-1][0] - points[0][0]
    return Line(name, hours, statistics.fmean(ys), slope, error, is_step=rest_of_step < rest / 2)


def _squares(values: list[float]) -> float:
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values)


def _readers_folders() -> frozenset[Path]:
    return frozenset(MEMORY.glob(f"{READER_PREFIX}*"))


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            # It may go meanwhile.
            with suppress(OSError):
                total += os.stat(os.path.join(place, file)).st_size
    return total


def _report(file: Path, samples: Samples, lines: list[Line], world: World) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    document = {
        "lines": [{**vars(line), "grows": line.grows} for line in lines],
        "events": world.events,
        "samples": samples.values,
    }
    file.write_text(json.dumps(document))
    shown = [name for name in samples.values if name.endswith(("MiB resident", ": MiB"))]
    figure, axes = plt.subplots(len(shown), 1, sharex=True, figsize=(9, 1.6 * len(shown)), layout="constrained")
    for axis, name in zip(axes, shown, strict=True):
        values = samples.values[name]
        axis.plot([seconds / 60 for seconds, _, _ in values], [value for _, _, value in values], linewidth=1)
        axis.set_ylim(bottom=0)
        axis.set_title(name, fontsize=9, loc="left")
    axes[-1].set_xlabel("minutes")
    figure.savefig(file.with_suffix(".svg"))
    plt.close(figure)


@contextmanager
def _world(folder: Path, arguments: argparse.Namespace, seed: int) -> Iterator[World]:
    log, others = Log(arguments.log), _readers_folders()
    with ExitStack() as stack:
        behaviour = Behaviour.profile(arguments.profile, seed=seed)
        emulator = stack.enter_context(running_emulator(behaviour=behaviour, enforce_limits=False))
        client: Any = emulator.client()
        client.create_stream(StreamName=STREAM, ShardCount=SHARD_COUNTS[0])
        endpoint = emulator.endpoint_url
        common = ["serve", "--region", "us-east-1", "--endpoint-url", endpoint]
        registry = Service(
            "penstock.services.consumer_registry", [*common, "--store", f"sqlite:///{folder / 'leases.db'}"], log
        )
        reader = Service("penstock.services.shard_reader", common, log)
        for service in (registry, reader):
            service.start()
            stack.callback(service.kill)
        queries = {
            name: endpoint_options(
                endpoint,
                STREAM,
                initialPosition="TRIM_HORIZON",
                recordPublisher="efo",
                efoConsumerName=name,
                jobId=name,
                registryEndpoint=registry.address,
                **more,
            )
            for name, more in {"own-reader": {}, "reader-service": {"readerEndpoint": reader.address}}.items()
        }
        driver = Driver("driver", folder, queries, log)
        world = World(emulator, registry, reader, log, folder, queries, driver, arguments.rate, others=others)
        stack.callback(lambda: world.driver.kill())
        threading.Thread(target=world.put, name="put", daemon=True).start()
        yield world
