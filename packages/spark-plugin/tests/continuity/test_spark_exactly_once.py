"""Each record once, in order, in an idempotent table, whatever is killed. PENSTOCK_KILLS says how often (2).

A failed run shows its seed; PENSTOCK_SEED makes the same choices again.
"""

import os
import random
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import exactly_once_tools as tools
import pytest

from penstock.rpc.testing import service_process

PHASES = {"start": 0.5, "planning": 0.1, "batch": 0.15, "between": 0.15, "stop": 0.1}
"""When a driver is killed, and how likely: half of the moments are in its first seconds, and cheap."""


def moment(phase: str, table: Any, chance: random.Random) -> None:
    """Wait for a random moment of a phase."""
    most = {"start": table.start_seconds or 0, "planning": 1.5, "batch": 0.2, "between": 0.15, "stop": 1.0}[phase]

    def failed() -> str:
        return f"no moment in {phase}: {table.failures()}"

    if phase in ("planning", "stop"):
        tools.wait_for((table.folder / "starting").exists, failed)
    elif phase in ("batch", "between"):
        log = "offsets" if phase == "batch" else "commits"
        before = table.newest(log)
        tools.wait_for(lambda: table.newest(log) > before, failed)
    if phase == "stop":
        time.sleep(chance.uniform(0.5, 1.5))
        (table.folder / "end").touch()
    time.sleep(chance.uniform(0, most))


def test_what_is_lost_doubled_changed_or_out_of_order_is_found() -> None:
    """The comparison that the other tests rest on sees each kind of damage."""
    put = {("s0", "5", 0): ("a", "a:1"), ("s0", "7", 0): ("a", "a:2"), ("s0", "7", 1): ("a", "a:3")}
    rows = [[*place, *record] for place, record in put.items()]
    assert tools.differences(put, rows) == []
    damaged = {
        "lost": rows[:2],
        "doubled": [*rows, rows[2]],
        "invented": [*rows, ["s1", "9", 0, "b", "b:1"]],
        "changed": [*rows[:2], [*rows[2][:4], "a:4"]],
        "out of order": [rows[0], rows[2], rows[1]],
    }
    for problem, found in damaged.items():
        assert any(told.startswith(problem) for told in tools.differences(put, found)), problem


@pytest.mark.timeout(300 + 40 * tools.KILLS)
def test_killed_drivers_lose_and_double_nothing(tmp_path: Path) -> None:
    """kill -9 of the driver at any moment, enhanced fan-out and polling in turn, shards split and merged also while no
    driver runs: each record is in the table once and in order."""
    number = tools.seed()
    chance = random.Random(number)
    table = tools.Table(tmp_path)
    efo = {
        "efoConsumerName": "exactly-once",
        "jobId": "exactly-once",
        "registryStore": str(tmp_path / "registry.db"),
        "subscribeToShardBackoffBase": "100",
    }
    killed: dict[str, int] = dict.fromkeys(PHASES, 0)
    began = time.monotonic()
    with tools.restless_kinesis(number) as kinesis, tools.Producer(kinesis, chance) as producer:
        options = [
            producer.options(tls=True, recordPublisher="efo", **efo),
            producer.options(tls=False, recordPublisher="polling"),
        ]
        for kill in range(tools.KILLS):
            table.settings(options[kill % 2] | {"maxRecordsPerBatch": chance.choice(["50", "200", "1000"])})
            with table.driver():
                # The first one shows how long a start takes here: it is not killed in it.
                phases = PHASES if table.start_seconds is not None else PHASES | {"start": 0}
                (phase,) = chance.choices([*phases], [*phases.values()])
                if chance.random() < 0.3:
                    producer.reshard()
                moment(phase, table, chance)
                killed[phase] += 1
                print(f"{time.monotonic() - began:6.1f} {phase} {len(table.rows())} of {len(producer.put)}", flush=True)
            if chance.random() < 0.3:
                producer.reshard()
        table.settings(options[tools.KILLS % 2])
        with table.driver():
            tools.finish(table, producer, kinesis, number)
    told = f"{killed}, {len(producer.put)} records, {producer.aggregates} aggregates, {producer.reshards} reshards"
    print(f"seed {number}: killed drivers {told}, {time.monotonic() - began:.0f} s")
    assert producer.aggregates > 0


class Readers:
    """Two shard-reader services, each always at its own address."""

    def __init__(self, endpoint_url: str) -> None:
        self._arguments = ["serve", "--region", "us-east-1", "--endpoint-url", endpoint_url]
        self._environment = {**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        self._running = [ExitStack(), ExitStack()]
        self._processes: list[Any] = [None, None]
        self.addresses = ["127.0.0.1:0", "127.0.0.1:0"]

    def __enter__(self) -> "Readers":
        for one in range(2):
            self.start(one)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._running:
            one.close()

    def start(self, one: int) -> None:
        port = self.addresses[one].rpartition(":")[2]
        service = service_process(
            "penstock.services.shard_reader", [*self._arguments, "--port", port], self._environment
        )
        self._processes[one] = self._running[one].enter_context(service)
        self.addresses[one] = self._processes[one].address

    def kill(self, one: int) -> None:
        os.kill(self._processes[one].process.pid, signal.SIGKILL)
        self._running[one].close()


def kill_worker(driver: int, table: Any, chance: random.Random) -> None:
    """Kill a Python worker at a random moment of its read; now and then another one before, whatever it does."""
    workers = tools.processes(driver, "pyspark.daemon")[1:]
    if workers and chance.random() < 0.2:
        tools.kill(chance.choice(workers))
    marks: list[Path] = []

    def reading() -> bool:
        marks[:] = [mark for mark in (table.folder / "reads").iterdir() if Path("/proc", mark.name).exists()]
        return bool(marks)

    while True:
        tools.wait_for(reading, lambda: f"no worker reads: {table.failures()}")
        mark = chance.choice(marks)
        time.sleep(chance.uniform(0, 0.05))
        tools.kill(int(mark.name))
        if mark.exists():  # It takes its mark back when it is done: this one was not.
            mark.unlink()
            return


@pytest.mark.timeout(300 + 40 * tools.KILLS)
def test_killed_workers_readers_and_sources_lose_and_double_nothing(tmp_path: Path) -> None:
    """kill -9 of workers in the middle of a read, of shard-reader services and of the source's process, under one
    driver: Spark tries tasks again, or the query continues from its checkpoint, and each record is there once."""
    pytest.importorskip("penstock.services.shard_reader")
    number = tools.seed()
    chance = random.Random(number)
    table = tools.Table(tmp_path)
    kinds = ["worker"] * tools.KILLS + ["service"] * tools.KILLS + ["source"] * (tools.KILLS // 2)
    chance.shuffle(kinds)
    began = time.monotonic()
    with (
        tools.restless_kinesis(number) as kinesis,
        Readers(kinesis.endpoint_url) as readers,
        tools.Producer(kinesis, chance) as producer,
    ):
        efo = {
            "recordPublisher": "efo",
            "efoConsumerName": "c",
            "registryStore": str(tmp_path / "registry.db"),
            "subscribeToShardBackoffBase": "100",
        }
        common = {"maxRecordsPerBatch": "200", "jobId": "killed"}
        ways = [
            {**efo, "readerEndpoint": readers.addresses[0]},
            {"recordPublisher": "polling", "readerEndpoint": ",".join(readers.addresses)},
            {"recordPublisher": "polling", "readerEndpoint": readers.addresses[0]},
            {**efo, "readerEndpoint": ",".join(readers.addresses)},
        ]
        with table.driver() as driver:
            for done, kind in enumerate(kinds):
                if done % max(1, len(kinds) // 8) == 0:
                    way = ways[done // max(1, len(kinds) // 8) % 4]
                    table.settings(producer.options(tls=False, **common, **way), "dawdling_kinesis")
                if chance.random() < 0.2:
                    producer.reshard()
                committed = table.newest("commits")
                if kind == "worker":
                    kill_worker(driver.pid, table, chance)
                else:
                    time.sleep(chance.uniform(0, 1))
                    if kind == "service":
                        one = chance.randrange(2) if "," in way["readerEndpoint"] else 0
                        readers.kill(one)
                        time.sleep(chance.uniform(0, 0.5))
                        readers.start(one)
                    else:
                        tools.kill(*tools.processes(driver.pid, "python_streaming_source_runner")[:1])
                print(f"{time.monotonic() - began:6.1f} {kind} {len(table.rows())} of {len(producer.put)}", flush=True)
                if chance.random() < 0.7:
                    tools.wait_for(
                        lambda: table.newest("commits") > committed,  # noqa: B023
                        lambda: f"no progress: {table.failures()}",
                    )
            tools.finish(table, producer, kinesis, number)
    told = f"{len(producer.put)} records, {producer.aggregates} aggregates, {producer.reshards} reshards"
    print(f"seed {number}: killed {Counter(kinds)}, {told}, {time.monotonic() - began:.0f} s")
    assert producer.aggregates > 0
