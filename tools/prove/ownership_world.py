"""The world of `hatch run prove ownership`: what runs in it, and what is seen of it."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
import pybase64

from penstock.emulator import Behaviour
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin.testing import endpoint_options
from tools.prove import ownership_checks as checks
from tools.prove.ownership_checks import Evidence, Holding, Timeline
from tools.prove.ownership_clients import CLAIM_SECONDS
from tools.prove.processes import Driver, Log, Service, Session, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STREAM = "ownership"
SHARDS = 4
RECORDS_PER_SECOND = 20
TIME_TO_LIVE = 15.0
"""Of leases of the registry services, in seconds."""
GRACE = 30.0
SWEEP = 3.0
LOCAL_TIME_TO_LIVE = 30.0
"""Of leases of the registry that is in a query's own process."""
START_SECONDS = 300.0
"""Within which a driver gives its first rows."""
SETTLE_SECONDS = 240.0
STOP_SECONDS = 120.0
"""Seconds within which drivers and clients end after a request."""
QUERIES = {"fleet": ("fleet",), "local": ("embedded", "polling")}
"""By kind of driver. The queries that have a consumer of their own have its name."""
_SPARKS_OWN = "Python worker failed to connect back"
"""Spark gives a process that it starts 10 seconds for it: too little after a freeze, or on a busy machine."""
_FAKETIME = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
_CLIENTS = Path(__file__).with_name("ownership_clients.py")


@dataclass
class Life:
    """A driver from its start to its end.

    Attributes:
        kind: of driver: a key of `QUERIES`.
        needs: the processes without which the leases of its queries cannot be renewed.
        live_at: when each query was seen to have finished a batch.
        told_at: when it was asked to end, was killed or superseded, or ended on its own; infinite until then.
        has_failed: whether it ended without a request.
    """

    kind: str
    driver: Driver
    needs: tuple[str, ...]
    live_at: dict[str, float] = field(default_factory=dict)
    told_at: float = math.inf
    has_failed: bool = False

    def look(self) -> None:
        """See which queries are live by now."""
        for query in self.driver.queries:
            if query not in self.live_at and self.driver.has_rows(query):
                self.live_at[query] = time.monotonic()

    def is_live(self) -> bool:
        """Whether all of its queries finished a batch, and it was not told to end."""
        return len(self.live_at) == len(self.driver.queries) and self.told_at == math.inf


class World:
    """Kinesis, the services, the drivers, the clients, and what was seen of them."""

    def __init__(self, folder: Path, emulator: RunningEmulator, log: Log, faketime: str | None) -> None:
        self.folder = folder
        self.emulator = emulator
        self.log = log
        self.faketime = faketime
        self.services: dict[str, Service] = {}
        self.clients: dict[str, Session] = {}
        self.lives: dict[str, Life] = {}
        """The latest of each kind."""
        self.timeline = Timeline()
        self.troubles: Counter[str] = Counter()
        self.handovers = 0
        self.busy: dict[str, threading.Lock] = {}
        """By name, of what a trouble may be inflicted on: one at a time."""
        self._all_lives: list[Life] = []
        self._counts: Counter[str] = Counter()
        self._faults: dict[str, list[str]] = {}
        self._ended: list[tuple[str, float]] = []
        self._left: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._client_settings: dict[str, dict[str, Any]] = {}
        self._stop_puts = threading.Event()
        self._is_ending = threading.Event()

    # What runs

    def add_service(self, name: str, module: str, arguments: list[str]) -> Service:
        """Start a service, with a clock that can be set."""
        environment = {}
        if self.faketime is not None:
            (self.folder / f"{name}.clock").write_text("+0")
            environment = {
                "LD_PRELOAD": self.faketime,
                "FAKETIME_TIMESTAMP_FILE": str(self.folder / f"{name}.clock"),
                "FAKETIME_CACHE_DURATION": "1",
                # A step of the clock leaves the monotonic one alone.
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        if "store" in self.clients:
            environment["AWS_ENDPOINT_URL_DYNAMODB"] = self._wait_for_store()
        service = Service(f"penstock.services.{module}", ["serve", *arguments], self.log, name, environment)
        self.services[name] = service
        self.busy[name] = threading.Lock()
        self.start_service(name)
        return service

    def start_service(self, name: str) -> None:
        """Start a service, and again where it ends before it is ready, as whoever runs services does."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.services[name].start()
            except RuntimeError as error:
                self.services[name].kill()
                if time.monotonic() > deadline:
                    self.fault(checks.QUERIES, f"{name} does not start: {error}")
                    return
                self.log.add(f"{name} did not start, and is started again: {error}")
                time.sleep(1)
            else:
                self.timeline.mark(name, True, time.monotonic())
                return

    def add_client(self, name: str, **settings: Any) -> None:
        """Start a client."""
        self._client_settings[name] = settings
        self.busy[name] = threading.Lock()
        self.start_client(name)

    def start_client(self, name: str) -> None:
        """Start a client, which resumes from its notes."""
        self._counts[name] += 1
        settings = {**self._client_settings[name], "generation": f"{name.replace(' ', '-')}-{self._counts[name]}"}
        if name.startswith("claimer"):
            settings["first"] = sum(one["what"] in ("committed", "reused") for one in self._read_events(name))
        self.clients[name] = Session(name, _CLIENTS, [str(self.folder), name, json.dumps(settings)], self.log)
        self.timeline.mark(name, True, time.monotonic())

    def kill_client(self, name: str) -> None:
        """End a client at once."""
        self._gone(name)
        self.clients[name].kill()

    def _gone(self, name: str) -> None:
        at = time.monotonic()
        self.timeline.mark(name, False, at)
        self._events.append({"at": at, "what": "gone", "client": name})

    def start_driver(self, kind: str) -> Life:
        """Start a driver of a kind; it resumes from the checkpoints of its predecessor."""
        self._counts[kind] += 1
        count = self._counts[kind]
        registry = f"registry {count % 2 + 1}"
        kinesis = self.emulator.endpoint_url
        common = {"initialPosition": "TRIM_HORIZON"}
        efo = {**common, "recordPublisher": "efo"}
        if kind == "fleet":
            queries = {
                "fleet": endpoint_options(
                    kinesis,
                    STREAM,
                    **efo,
                    efoConsumerName="fleet",
                    jobId="fleet",
                    readerEndpoint=",".join(self.services[f"reader {one}"].address for one in (1, 2, 3)),
                    registryEndpoint=self.services[registry].address,
                )
            }
        else:
            store = str(self.folder / "embedded.db")
            queries = {
                "embedded": endpoint_options(
                    kinesis, STREAM, **efo, efoConsumerName="embedded", jobId="embedded", registryStore=store
                ),
                "polling": endpoint_options(kinesis, STREAM, **common, recordPublisher="polling"),
            }
        name = f"{kind}-{count}"
        driver = Driver(name, self.folder, queries, self.log, heap="512m", trigger="1 second")
        self.timeline.mark(name, True, time.monotonic())
        life = Life(kind, driver, (name, registry, "store") if kind == "fleet" else (name,))
        self._all_lives.append(life)
        self.lives[kind] = life
        self.busy.setdefault(kind, threading.Lock())
        return life

    def end_driver(self, life: Life) -> None:
        """End a driver at once."""
        at = time.monotonic()
        life.told_at = min(life.told_at, at)
        self.timeline.mark(life.driver.name, False, at)
        life.driver.kill()

    def fault(self, check: str, what: str, of: str = "") -> None:
        """Note what went wrong, with the last words of a process."""
        said = [line[:300] for line in self.log.last(60, of) if "\tat " not in line][-20:] if of else []
        self.log.add(f"FAULT: {check}: {what}")
        print(f"FAULT: {check}: {what}", flush=True)
        self._faults.setdefault(check, []).append("\n        ".join([what, *said]))

    # While it runs

    def put(self) -> None:
        """Put records until the end, to Kinesis itself."""
        client: Any = self.emulator.client()
        for number in range(sys.maxsize):
            if self._stop_puts.wait(1.0):
                return
            size = 20_000 if number % 60 < 3 else 100
            entries = [
                {"Data": f"put-{number}-{one}-".encode() + os.urandom(size), "PartitionKey": f"{number}-{one}"}
                for one in range(RECORDS_PER_SECOND)
            ]
            client.put_records(StreamName=STREAM, Records=entries)

    def watch(self) -> None:
        """See when queries are live, and start again what ended without being told to."""
        while not self._is_ending.wait(0.5):
            for life in list(self._all_lives):
                life.look()
            for kind, life in list(self.lives.items()):
                if life.told_at == math.inf and not life.driver.is_alive():
                    life.told_at = time.monotonic()
                    self.timeline.mark(life.driver.name, False, life.told_at)
                    life.driver.kill()
                    self._judge_end(life)
                    self.start_driver(kind)
            for name in [*self.clients, *self.services]:
                # What a trouble happens to is looked after by the trouble.
                if self.busy[name].acquire(blocking=False):
                    try:
                        self._look_after(name)
                    finally:
                        self.busy[name].release()

    def _judge_end(self, life: Life) -> None:
        name = life.driver.name
        if any(_SPARKS_OWN in line for line in self.log.last(60, name)):
            self.troubles["end by Spark itself"] += 1
            self.log.add(f"{name} was ended by Spark itself")
        else:
            life.has_failed = True
            self.fault(checks.QUERIES, f"the driver {name} ended", name)

    def _look_after(self, name: str) -> None:
        if name in self.services:
            running = self.services[name].running
            if running is not None and running.process.poll() is not None:
                self.timeline.mark(name, False, time.monotonic())
                self.fault(checks.QUERIES, f"the service {name} ended", name)
                self.services[name].kill()
                self.start_service(name)
        elif name in self.clients and not self.clients[name].is_alive():
            self.fault(checks.QUERIES, f"the client {name} ended", name)
            self._gone(name)
            self.start_client(name)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note each consumer that is deregistered."""
        kinesis = self.emulator.kinesis
        deregister = kinesis.deregister

        def note(consumer: Any, *, now: float) -> None:
            self._ended.append((consumer.name, time.monotonic()))
            self.log.add(f"kinesis: consumer {consumer.name} is deregistered")
            deregister(consumer, now=now)

        with patch.object(kinesis, "deregister", note):
            yield

    @contextmanager
    def frozen(self, name: str, of: Service | Session) -> Iterator[None]:
        """Stop a process, and resume it at the end."""
        self.timeline.mark(name, False, time.monotonic())
        of.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            of.signal(signal.SIGCONT)
            self.timeline.mark(name, True, time.monotonic())

    def wait_until_live(self) -> None:
        """Wait for the first rows of all queries.

        Raises:
            RuntimeError: the rows did not come in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while not all(life.is_live() for life in self.lives.values()):
            if time.monotonic() > deadline:
                raise RuntimeError("\n".join(["no query gives rows", *self.log.last(60)]))
            time.sleep(0.5)

    # The end

    def settle(self, seconds: float) -> None:
        """End the writes, and wait until all that was acknowledged is written, and all that was written is read."""
        self._stop_puts.set()
        for name in [name for name in self.clients if name.startswith(("writer", "claimer", "rival"))]:
            with self.busy[name]:
                self.clients.pop(name).kill()
        with suppress(RuntimeError):
            # On a busy machine a driver may still be starting; records that it does not read are reported below.
            self.wait_until_live()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            stream, ids = self._stream()
            unwritten = sum(one not in ids for one in self._acknowledged())
            unread = {
                query: len(stream.keys() - set(read_rows(self.folder, query)))
                for queries in QUERIES.values()
                for query in queries
            }
            if not unwritten and not any(unread.values()):
                return
            self.log.add(f"settling: {unwritten} acknowledged and not written, not read: {unread}")
            time.sleep(5)

    def end(self, before_looking: Callable[[], None] = lambda: None) -> None:
        """Stop all queries and holders, and see which consumers are left when their time is over."""
        self._is_ending.set()
        now = time.monotonic()
        self.clients["holder"].terminate()
        for life in self.lives.values():
            life.told_at = min(life.told_at, now)
            life.driver.stop()
        for name, one in [
            ("holder", self.clients["holder"]),
            *((life.driver.name, life.driver) for life in self.lives.values()),
        ]:
            if not one.wait(STOP_SECONDS):
                self.fault(checks.QUERIES, f"{name} does not stop within {STOP_SECONDS:.0f} s", name)
                one.kill()
        deadline = time.monotonic() + TIME_TO_LIVE + GRACE + 5 * SWEEP
        before_looking()
        while True:
            self._left = [one["ConsumerName"] for one in self.consumers()]
            if not self._left or time.monotonic() > deadline:
                return
            time.sleep(1)

    @property
    def stream_arn(self) -> str:
        """What the stream is called everywhere."""
        return self.emulator.kinesis.streams[STREAM].arn

    def consumers(self) -> list[dict[str, Any]]:
        """The stream's consumers, as Kinesis describes them."""
        client: Any = self.emulator.client()
        consumers: list[dict[str, Any]] = client.list_stream_consumers(StreamARN=self.stream_arn)["Consumers"]
        return consumers

    def kill_all(self) -> None:
        """End all processes at once."""
        self._is_ending.set()
        for life in self._all_lives:
            life.driver.kill()
        for client in self.clients.values():
            client.kill()
        for service in self.services.values():
            service.kill()

    def evidence(self) -> Evidence:
        """All that was seen."""
        stream, ids = self._stream()
        tables = [self.folder / "table" / query for queries in QUERIES.values() for query in queries]
        return Evidence(
            stream=stream,
            ids=ids,
            rows={one.name: Counter(read_rows(self.folder, one.name)) for one in tables},
            again=sum(1 for one in tables for _ in one.glob("*.again")),
            changed=[f"{one.name} {file.stem}" for one in tables for file in one.glob("*.changed")],
            acknowledged=self._acknowledged(),
            timeline=self.timeline,
            holdings=[*self._query_holdings(), *self._client_holdings()],
            ended=self._ended,
            left=self._left,
            events=[event for file in self.folder.glob("*.jsonl") for event in self._read_events(file.stem)],
            claim_seconds=CLAIM_SECONDS,
            handovers=self.handovers,
            faults=self._faults,
        )

    def _stream(self) -> tuple[Counter[checks.Key], Counter[str]]:
        kinesis = self.emulator.kinesis
        shards = self.emulator.call(lambda: [(one.id, one.records) for one in kinesis.streams[STREAM].shards])
        keys: Counter[checks.Key] = Counter()
        ids: Counter[str] = Counter()
        for shard, records in shards:
            for encoded in records.encoded:
                record = msgspec.json.decode(encoded)
                keys[shard, record["SequenceNumber"]] += 1
                # Records that were put directly have random bytes after their id, and are not looked for.
                ids[pybase64.b64decode(record["Data"])[:60].decode(errors="replace")] += 1
        return keys, ids

    def _acknowledged(self) -> list[str]:
        return [one for event in self._read_events("writer") for one in event.get("ids", ())]

    def _read_events(self, client: str) -> list[dict[str, Any]]:
        path = self.folder / f"{client}.jsonl"
        if not path.exists():
            return []
        # The last line of a client that was killed may be cut off.
        lines = path.read_text().splitlines()
        return [{"client": client, **json.loads(line)} for line in lines if line.endswith("}")]

    def _query_holdings(self) -> Iterator[Holding]:
        for life in self._all_lives:
            for query, since in life.live_at.items():
                if query != "polling":
                    yield Holding(
                        consumer=query,
                        holder=life.driver.name,
                        needs=life.needs,
                        since=since,
                        until=life.told_at,
                        time_to_live=TIME_TO_LIVE if query == "fleet" else LOCAL_TIME_TO_LIVE,
                        grace=GRACE if query == "fleet" else 0.0,
                    )

    def _client_holdings(self) -> Iterator[Holding]:
        gone = [one["at"] for one in self._events if one["client"] == "holder"]
        events = sorted(self._read_events("holder"), key=lambda event: float(event["at"]))
        for one in events:
            if one["what"] != "acquired":
                continue
            ends = [other for other in events if other["consumer"] == one["consumer"] and other["at"] > one["at"]]
            until = min([*(end["at"] for end in ends[:1]), *(at for at in gone if at > one["at"]), math.inf])
            yield Holding(
                consumer=one["consumer"],
                holder="the holder",
                needs=("holder", f"registry {int(one['consumer'][-1]) + 1}", "store"),
                since=one["at"],
                until=until,
                is_lost=bool(ends) and ends[0]["what"] == "lost" and ends[0]["at"] == until,
                time_to_live=TIME_TO_LIVE,
                grace=GRACE,
                is_seen_early=True,
            )

    def _wait_for_store(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while not (events := self._read_events("store")):
            if time.monotonic() > deadline:
                raise RuntimeError("\n".join(["DynamoDB does not start", *self.log.last(20, "store")]))
            time.sleep(0.2)
        return str(events[-1]["endpoint"])


@contextmanager
def running_world(folder: Path, profile: str, seed: int, log_file: Path | None) -> Iterator[World]:
    """A world in which all runs, over the emulator's profile."""
    log = Log(log_file)
    with ExitStack() as stack:
        behaviour = Behaviour.profile(profile, seed=seed)
        emulator = stack.enter_context(running_emulator(behaviour=behaviour, enforce_limits=False))
        client: Any = emulator.client()
        client.create_stream(StreamName=STREAM, ShardCount=SHARDS)
        faketime = next((path for path in _FAKETIME if Path(path).exists()), None)
        world = World(folder, emulator, log, faketime)
        stack.enter_context(world.listening())
        stack.callback(world.kill_all)
        world.add_client("store")
        kinesis = ["--region", "us-east-1", "--endpoint-url", emulator.endpoint_url]
        lives = ["--time-to-live-seconds", TIME_TO_LIVE, "--grace-seconds", GRACE, "--sweep-seconds", SWEEP]
        leases = ["--store", "dynamodb://leases", *map(str, lives)]
        registries = [
            world.add_service(f"registry {one}", "consumer_registry", [*kinesis, *leases]).address for one in (1, 2)
        ]
        for one in (1, 2, 3):
            world.add_service(f"reader {one}", "shard_reader", kinesis)
        gateway = world.add_service("gateway", "sink_gateway", kinesis)
        scheduler = world.add_service("scheduler", "stage_scheduler", ["--store", str(folder / "stages.db")])
        world.add_client("writer", gateway=gateway.address, stream=STREAM, writers=2)
        world.add_client("holder", registries=registries, stream=STREAM)
        world.add_client("rival", registries=registries, stream=STREAM)
        for one in (1, 2):
            world.add_client(f"claimer {one}", scheduler=scheduler.address)
        for kind in QUERIES:
            world.start_driver(kind)
        for work in (world.put, world.watch):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        yield world
