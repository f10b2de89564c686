"""What a source leaves behind when its Spark context stops, its driver dies, or no query starts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin._signals import SparkContextWatch
from penstock.spark_plugin.testing import endpoint_options

STREAM = "flights"


class Time:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_context_that_removed_its_folder_is_gone(tmp_path: Path) -> None:
    """Not at the first look, as a file system may fail once; and its folder stays too young for cleaners."""
    folder, clock = tmp_path / "userFiles-1", Time()
    folder.mkdir()
    os.utime(folder, (0, 0))
    watch = SparkContextWatch(folder, 7, parent_now=lambda: 7, clock=clock)
    assert watch.what_is_gone() is None
    assert folder.stat().st_mtime > 0
    os.utime(folder, (0, 0))
    clock.seconds = 3599.0
    assert watch.what_is_gone() is None
    assert folder.stat().st_mtime == 0
    clock.seconds = 3600.0
    assert watch.what_is_gone() is None
    assert folder.stat().st_mtime > 0
    folder.rmdir()
    assert [watch.what_is_gone() for _ in range(3)] == [None, None, "the Spark context"]
    folder.mkdir()
    assert watch.what_is_gone() is None


def test_end_of_the_jvm_is_noticed_by_the_parent_process(tmp_path: Path) -> None:
    """Also where the context's folder is not known, or was never there, which says nothing."""
    parents = iter([7, 7, 1])
    for folder in (None, tmp_path / "never", Path()):
        watch = SparkContextWatch(folder, 7, parent_now=lambda: 7)
        assert [watch.what_is_gone() for _ in range(5)] == [None] * 5
    watch = SparkContextWatch(None, 7, parent_now=lambda: next(parents))
    assert [watch.what_is_gone() for _ in range(3)] == [None, None, "the JVM"]


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    delays: dict[str, Any] = {"consumer_creation_delay": timedelta(0), "consumer_deletion_delay": timedelta(0)}
    with running_emulator(enforce_limits=False, **delays) as running:
        running.client().create_stream(StreamName=STREAM, ShardCount=1)
        yield running


def consumers(emulator: RunningEmulator) -> list[str]:
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
    return [one["ConsumerStatus"] for one in client.list_stream_consumers(StreamARN=arn)["Consumers"]]


class Driver:
    """A driver with a JVM of its own, which runs the commands of the tests."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def ask(self, command: str, **arguments: Any) -> Any:
        """Let it run a command; its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([command, arguments]), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        pytest.fail("the driver ended")


@contextmanager
def driver(folder: Path) -> Iterator[Driver]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir(exist_ok=True)
    script = Path(__file__).parents[1] / "stopping_driver.py"
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield Driver(process)
    finally:
        # With its JVM, and what that started.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver that the tests share."""
    return tmp_path_factory.mktemp("driver")


@pytest.fixture(scope="module")
def running_driver(folder: Path) -> Iterator[Driver]:
    with driver(folder) as running:
        yield running


@pytest.fixture
def one(running_driver: Driver, emulator: RunningEmulator, until: Callable[..., None]) -> Iterator[Driver]:
    """A driver that runs nothing; its next session is a new one."""
    assert running_driver.ask("sources") == []
    yield running_driver
    running_driver.ask("stop")
    until(lambda: running_driver.ask("sources") == [], "a source continues without a context")


def options(emulator: RunningEmulator, **more: str) -> dict[str, str]:
    tls = {"caBundle": str(emulator.ca_file), "recordPublisher": "efo", "efoConsumerName": "notebook"}
    return endpoint_options(emulator.tls_endpoint_url, STREAM, initialPosition="TRIM_HORIZON", **tls, **more)


def put(emulator: RunningEmulator, *data: bytes) -> None:
    for row in data:
        emulator.client().put_record(StreamName=STREAM, Data=row, PartitionKey="k")


def test_an_idle_query_ends_with_its_context(
    emulator: RunningEmulator, one: Driver, until: Callable[..., None]
) -> None:
    """After `spark.stop()` it cannot be stopped: its source ends, and the same query continues in a new one."""
    put(emulator, b"a", b"b")
    assert one.ask("start", options=options(emulator), checkpoint="idle") == 2
    assert consumers(emulator) == ["ACTIVE"]
    (source,) = one.ask("sources")
    memory = one.ask("memory")
    one.ask("stop")
    until(lambda: not Path(f"/proc/{source}").exists(), "the source continues without a context")
    assert consumers(emulator) == []
    assert memory
    assert not any(Path(folder).exists() for folder in memory)
    put(emulator, b"c")
    assert one.ask("start", options=options(emulator), checkpoint="idle") == 1
    assert consumers(emulator) == ["ACTIVE"]


def test_an_eager_frame_of_which_nothing_is_started_leaves_no_consumer(
    emulator: RunningEmulator, one: Driver, until: Callable[..., None]
) -> None:
    """Its consumer goes when its context stops; a bounded read is refused, and gives it back."""
    eager = options(emulator, efoRegistration="eager")
    assert "belongs to streams that are read" in one.ask("refusal", options=eager)
    assert consumers(emulator) == []
    assert one.ask("load", options=eager)
    assert consumers(emulator) == ["ACTIVE"]
    one.ask("stop")
    until(lambda: consumers(emulator) == [], "the consumer outlives its context")
