"""A query lives through every trouble that passes, and says meanwhile what it has.

Two queries, one by enhanced fan-out through services and one that polls from its own driver, read a stream into which
records are put all the time. One trouble after the other comes and goes. At the end each record was read once, and of
each trouble the log had said within 35 seconds that it was there.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.aws.testing import Sts, running_sts
from penstock.efo_consumer import EfoConsumerError, RemoteShardReader
from penstock.emulator import Behaviour
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin.testing import endpoint_options
from tools.prove.processes import Driver, Log, Service, read_rows

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

SUMMARY = "queries live through outages of a minute each, read every record once, and say what troubles them"

STREAM = "outages"
SHARDS = 3
RECORDS_PER_SECOND = 30
NAMED_SECONDS = 35.0
"""Within which the log says what the trouble is."""
CALM_SECONDS = 25.0
"""After a trouble, for the queries to come on again."""
SETTLE_SECONDS = 180.0
_READING = ("SubscribeToShard", "GetRecords", "GetShardIterator", "ListShards", "DescribeStreamSummary")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--minutes", type=float, default=30.0, help="how long troubles come; default: 30")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each of them lasts; default: 60")
    parser.add_argument("--seed", type=int, help="of the schedule, as a run names it; default: random")
    parser.add_argument("--profile", choices=["kind", "hostile"], default="hostile", help="of the emulator")
    parser.add_argument("--log", type=Path, help="file for what all processes say, and each change of a condition")
    parser.add_argument("--only", choices=sorted(TROUBLES), action="append", help="these troubles; default: all")


def run(arguments: argparse.Namespace) -> bool:
    """Let troubles come and go, and count the records."""
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, profile {arguments.profile}", flush=True)
    chance = random.Random(seed)
    names = arguments.only or list(TROUBLES)
    unnamed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="outages-") as folder, _world(Path(folder), arguments, seed) as world:
        world.wait_for_rows(lambda: all(map(world.driver.has_rows, world.driver.queries)), "no query gives rows")
        deadline = time.monotonic() + arguments.minutes * 60
        schedule: list[str] = []
        while time.monotonic() < deadline and world.is_alive():
            if not schedule:
                schedule = chance.sample(names, len(names))
            name = schedule.pop()
            world.log.add(f"trouble: {name}")
            said = _suffer(world, name, arguments.seconds)
            world.log.add(f"trouble: {name} is over")
            print(f"{name:12} {said or 'NOT NAMED'}", flush=True)
            if said is None:
                unnamed.append(name)
            world.sleep(CALM_SECONDS)
        faults = world.finish()
    for fault in faults:
        print(fault)
    if unnamed:
        print(f"nothing named within {NAMED_SECONDS:.0f} s: {', '.join(unnamed)}")
    holds = not faults and not unnamed
    print("outages are lived through" if holds else f"outages are not lived through: --seed {seed}", flush=True)
    return holds


@dataclass(frozen=True)
class Trouble:
    """What goes wrong.

    Attributes:
        begin: brings it about, and takes it back as its context ends.
        signs: what the log says of it.
    """

    begin: Callable[[World], AbstractContextManager[None]]
    signs: str


def _suffer(world: World, name: str, seconds: float) -> str | None:
    """Let a trouble come and go. Gives what named it, and when."""
    trouble = TROUBLES[name]
    mark = world.log.mark()
    said: str | None = None
    with trouble.begin(world):
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds and world.is_alive():
            if said is None and (line := world.log.find(trouble.signs, mark)) is not None:
                said = f"named after {passed:4.1f} s: {line}"
                if passed > NAMED_SECONDS:
                    return None
            world.sleep(0.5)
    return said


class Gate:
    """The way to Kinesis, which can be shut and made silent."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        threading.Thread(target=self._loop.run_forever, name="gate", daemon=True).start()
        self._call(self._listen())
        self._loop.call_soon_threadsafe(self._open.set)

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        ways = [
            asyncio.create_task(self._copy(reader, there_writer)),
            asyncio.create_task(self._copy(there_reader, writer)),
        ]
        self._tasks.update(ways)
        await asyncio.gather(*ways, return_exceptions=True)
        self._tasks.difference_update(ways)
        for one in (writer, there_writer):
            one.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        with suppress(OSError):
            sink.write_eof()

    async def _cut(self) -> None:
        for task in self._tasks:
            task.cancel()

    def cut(self) -> None:
        """End every connection."""
        self._call(self._cut())

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Refuse new connections, and end those that there are."""
        if self._server is not None:
            self._loop.call_soon_threadsafe(self._server.close)
        self.cut()
        try:
            yield
        finally:
            self._call(self._listen())

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let nothing pass; the connections stay."""
        self._loop.call_soon_threadsafe(self._open.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._open.set)


@dataclass
class World:
    """Kinesis, the services, the driver, and what was put.

    Attributes:
        folder: of the driver's tables.
        keys: shard and sequence number of each record that was put.
    """

    emulator: RunningEmulator
    gate: Gate
    sts: Sts
    registry: Service
    reader: Service
    log: Log
    folder: Path
    driver: Driver
    keys: list[tuple[str, str]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _is_done: threading.Event = field(default_factory=threading.Event)

    def is_alive(self) -> bool:
        """Whether the queries run."""
        return self.driver.is_alive()

    def sleep(self, seconds: float) -> None:
        """Wait, unless the queries end."""
        deadline = time.monotonic() + seconds
        while self.is_alive() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))

    def put(self) -> None:
        """Put records until the end, to Kinesis itself."""
        client: Any = self.emulator.client()
        number = 0
        while not self._stop.wait(1.0):
            # Now and then more than buffers hold.
            size = 60_000 if number % 120 < 60 else 200
            entries = [{"Data": os.urandom(size), "PartitionKey": f"{number}-{n}"} for n in range(RECORDS_PER_SECOND)]
            for one in client.put_records(StreamName=STREAM, Records=entries)["Records"]:
                if "SequenceNumber" in one:
                    self.keys.append((one["ShardId"], one["SequenceNumber"]))
            number += 1

    def watch(self) -> None:
        """Log each change of the condition of a shard that the reader service has."""
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        known: dict[tuple[str, str], str] = {}
        while not self._is_done.is_set():
            # While the reader is away there is nothing to tell.
            with suppress(EfoConsumerError, TimeoutError):
                async with asyncio.timeout(5), aclosing(RemoteShardReader(self.reader.address)) as reader:
                    for session in await reader.sessions(with_shards=True):
                        for shard in session.shards:
                            key, condition = (session.session_id, shard.shard_id), str(shard.condition)
                            if known.get(key) != condition:
                                known[key] = condition
                                self.log.add(f"condition: {shard.shard_id} {condition}")
            await asyncio.sleep(1)

    def rows(self, query: str) -> Counter[tuple[str, str]]:
        """What a query gave."""
        return Counter(read_rows(self.folder, query))

    def wait_for_rows(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait for rows.

        Raises:
            RuntimeError: the rows did not come in time.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while not is_there():
            if time.monotonic() > deadline or not self.is_alive():
                raise RuntimeError("\n".join([what, *self.log.last(60)]))
            time.sleep(1)

    def finish(self) -> list[str]:
        """End the puts, wait for all rows, and tell what is wrong with them."""
        self._stop.set()
        time.sleep(2)
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and self.is_alive():
            if all(self.rows(query).keys() >= set(self.keys) for query in ("efo", "polling")):
                break
            time.sleep(2)
        faults = []
        if not self.is_alive():
            faults.append("\n".join(["the driver ended:", *(line.rstrip()[:400] for line in self.log.last(80))]))
        put = Counter(self.keys)
        for query in ("efo", "polling"):
            rows = self.rows(query)
            missing, more = put - rows, rows - put
            print(f"{query}: {len(self.keys)} put, {rows.total()} read, {missing.total()} missing, {more.total()} more")
            if missing or more:
                faults.append(f"{query}: missing {list(missing)[:3]}, more {list(more)[:3]}")
        self._is_done.set()
        return faults


@contextmanager
def _world(folder: Path, arguments: argparse.Namespace, seed: int) -> Iterator[World]:
    log = Log(arguments.log)
    with ExitStack() as stack:
        behaviour = Behaviour.profile(arguments.profile, seed=seed)
        emulator = stack.enter_context(running_emulator(behaviour=behaviour, enforce_limits=False))
        client: Any = emulator.client()
        client.create_stream(StreamName=STREAM, ShardCount=SHARDS)
        sts = stack.enter_context(running_sts())
        # They are renewed many times in a run, and expire while STS is away for longer.
        sts.lifetime = timedelta(seconds=90)
        gate = Gate(int(emulator.endpoint_url.rpartition(":")[2]))
        endpoint = f"http://127.0.0.1:{gate.port}"
        common = ["serve", "--region", "us-east-1", "--endpoint-url", endpoint]
        registry = Service(
            "penstock.services.consumer_registry", [*common, "--store", f"sqlite:///{folder / 'leases.db'}"], log
        )
        role = ["--role-arn", "arn:aws:iam::123456789012:role/reader", "--sts-endpoint-url", sts.url]
        bounds = ["--buffer-bytes-per-shard", "1000000", "--buffer-bytes", "4000000"]
        reader = Service("penstock.services.shard_reader", [*common, *role, *bounds], log)
        for service in (registry, reader):
            service.start()
            stack.callback(service.kill)
        queries = {
            "efo": endpoint_options(
                endpoint,
                STREAM,
                initialPosition="TRIM_HORIZON",
                recordPublisher="efo",
                efoConsumerName="outages",
                readerEndpoint=reader.address,
                registryEndpoint=registry.address,
            ),
            "polling": endpoint_options(endpoint, STREAM, initialPosition="TRIM_HORIZON", recordPublisher="polling"),
        }
        driver = Driver("driver", folder, queries, log)
        stack.callback(driver.kill)
        world = World(emulator, gate, sts, registry, reader, log, folder, driver)
        for work in (world.put, world.watch):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        yield world


@contextmanager
def _faulty(world: World, kind: str, **fault: Any) -> Iterator[None]:
    ids = [world.emulator.faults.add(kind, operation=operation, **fault) for operation in _READING]
    # Subscriptions that are open would not meet it.
    world.gate.cut()
    try:
        yield
    finally:
        for one in ids:
            world.emulator.faults.clear(one)


@contextmanager
def _without_sts(world: World) -> Iterator[None]:
    asked = world.sts.asked
    world.sts.refusal = (503, "ServiceUnavailable")
    try:
        # No caller notices its absence until credentials are renewed, which is once a minute at most.
        while world.sts.asked == asked and world.is_alive():
            world.sleep(0.5)
        yield
    finally:
        world.sts.refusal = None


TROUBLES: dict[str, Trouble] = {
    "errors": Trouble(
        lambda world: _faulty(world, "error", code="InternalFailure"), r"(refused|retry).*InternalFailure"
    ),
    "throttle": Trouble(lambda world: _faulty(world, "throttle"), r"throttled since"),
    "resets": Trouble(lambda world: _faulty(world, "reset", probability=0.5), r"(refused|resubscribing) since"),
    "unreachable": Trouble(lambda world: world.gate.shut(), r"refused since.*(connect|no answer)"),
    "silence": Trouble(lambda world: world.gate.silent(), r"(no answer|nothing came|silen)"),
    "sts": Trouble(_without_sts, r"credentials"),
    "registry": Trouble(lambda world: world.registry.away(), r"the registry at .* is not available"),
    "reader": Trouble(lambda world: world.reader.away(), r"(reader).*(retry|unavailable|cannot|not reach)"),
}
"""By name."""
