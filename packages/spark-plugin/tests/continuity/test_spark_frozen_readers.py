"""Shard readers that are stopped, or away: they cost a moment, and no query and no row."""

import base64
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from shard_readers import STREAM, Driver, Readers, put

from penstock.efo_consumer._remote.resume import ANSWER_SECONDS, owner_of
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin._reading.stream.partition import KinesisPartition

pytest.importorskip("penstock.services.shard_reader")
FIRST, SECOND = [b"%d" % number for number in range(24)], [b"%d" % number for number in range(24, 48)]
LEASE_SECONDS = 10.0


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName=STREAM, ShardCount=6)
        yield running


@pytest.fixture
def readers(emulator: RunningEmulator) -> Iterator[Readers]:
    with ExitStack() as exits:
        yield Readers(emulator, exits)


def owned(driver: Driver, address: str) -> int:
    """How many shards are followed by a reader, as hashing has it."""
    shards = driver.log[-1]["streams"][STREAM]
    return sum(owner_of(tuple(driver.readers), STREAM, shard) == address for shard in shards)


def test_tasks_leave_a_frozen_reader_for_another(
    emulator: RunningEmulator, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    """A micro-batch that was planned before: each of its ranges comes, by one wait for the reader that is stopped."""
    readers.start(2)
    put(emulator, *FIRST)
    driver = Driver(emulator.endpoint_url, readers.addresses)
    while not driver.plan():
        pass
    planned = driver.reader.partitions(*driver.log[-2:])
    shards = [one.shard_id for task in planned for one in task.ranges]
    stopped = readers.addresses.index(owner_of(tuple(readers.addresses), STREAM, shards[0]))
    with readers.frozen(stopped):
        began = time.monotonic()
        rows = [row for task in planned for batch in driver.reader.read(task) for row in batch["data"].to_pylist()]
        spent = time.monotonic() - began
        assert caplog.text.count("no sign of life") == 1
        # Far below a wait for each range.
        assert spent < 10 * ANSWER_SECONDS
        driver.rows = rows
        # Shards of the other reader continue, and in the end all do.
        driver.read(len(FIRST) - len(rows))
    assert sorted(driver.rows) == sorted(FIRST)
    driver.reader.stop()


PLANNER = """
import base64, pickle, sys
from shard_readers import Driver

driver = Driver(sys.argv[1], [], options={"retryPatience": "60s"})
while len(driver.log) < 2:
    driver.plan()
planned = driver.reader.partitions(*driver.log[-2:])
print(base64.b64encode(pickle.dumps((planned, driver.run()))).decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def source(emulator: RunningEmulator) -> Iterator[tuple["subprocess.Popen[str]", list[KinesisPartition], list[bytes]]]:
    """The process of a source with a reader of its own, what it has planned, and the rows of that."""
    put(emulator, *FIRST)
    command = [sys.executable, "-c", PLANNER, emulator.endpoint_url]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            yield process, *pickle.loads(base64.b64decode(process.stdout.readline()))
        finally:
            process.kill()


def read(endpoint_url: str, planned: list[KinesisPartition]) -> list[bytes]:
    """Read as tasks do, with what they need to read Kinesis itself."""
    options = {"retryPatience": "60s"}
    # It makes no calls: the log is there.
    reader = Driver(endpoint_url, [], log=[{}], options=options).reader
    return sorted(row for task in planned for batch in reader.read(task) for row in batch["data"].to_pylist())


def test_tasks_that_cannot_read_kinesis_wait_for_a_frozen_source(
    source: tuple["subprocess.Popen[str]", list[KinesisPartition], list[bytes]],
    caplog: pytest.LogCaptureFixture,
    until: Callable[..., None],
) -> None:
    """Executors without a way to Kinesis survive the pause all the same."""
    process, planned, rows = source
    process.send_signal(signal.SIGSTOP)
    nowhere = "http://127.0.0.1:1"
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read, nowhere, planned)
        until(lambda: "; retrying for up to 60 s" in caplog.text or reading.done(), "nothing is tried again")
        process.send_signal(signal.SIGCONT)
        assert reading.result() == sorted(rows)


def test_frozen_reader_is_reported_and_its_shards_move(emulator: RunningEmulator, readers: Readers) -> None:
    """Progress has the shards that wait, and for whom; a commit does not wait; then others have the shards."""
    readers.start(2)
    put(emulator, *FIRST)
    driver = Driver(emulator.endpoint_url, readers.addresses)
    driver.read(len(FIRST))
    stopped = max((0, 1), key=lambda index: owned(driver, readers.addresses[index]))
    with readers.frozen(stopped):
        began = time.monotonic()
        driver.reader.commit(driver.log[-1])
        assert time.monotonic() - began < 5 * ANSWER_SECONDS
        report = driver.reader.reportLatestOffset()
        assert report["shardsRefused"] == owned(driver, readers.addresses[stopped])
        assert "waits for its reader, and moves to another in" in report["condition"]
        assert readers.addresses[stopped] in report["condition"]
        put(emulator, *SECOND)
        assert sorted(driver.read(len(SECOND))) == sorted(SECOND)
        assert driver.reader.reportLatestOffset()["shardsRefused"] == 0
    put(emulator, *FIRST)
    assert sorted(driver.read(len(FIRST))) == sorted(FIRST)
    driver.reader.stop()


@pytest.mark.parametrize("count", [2])
def test_readers_that_are_away_for_longer_than_a_lease_fail_no_query(
    emulator: RunningEmulator, readers: Readers, count: int
) -> None:
    """One reader and a fleet have the patience of `retryPatience`; a range that was planned is read without them."""
    readers.start(count)
    put(emulator, *FIRST)
    driver = Driver(emulator.endpoint_url, readers.addresses)
    while not driver.plan():
        pass
    for index in range(count):
        readers.kill(index)
    gone = time.monotonic()
    rows = driver.run()
    while time.monotonic() < gone + 1.3 * LEASE_SECONDS:
        time.sleep(0.5)  # what is tried is that the time passes
    for index in range(count):
        readers.revive(index)
    put(emulator, *SECOND)
    driver.read(len(FIRST) + len(SECOND) - len(rows))
    assert sorted(driver.rows) == sorted(FIRST + SECOND)
    driver.reader.stop()
