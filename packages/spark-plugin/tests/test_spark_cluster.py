import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from connect_servers import spark_home
from patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds executors, and binds 127.0.0.2, as Linux does")

_DRIVER = Path(__file__).with_name("cluster_driver.py")
# Processes that live for a minute gain nothing from the second compiler.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Cluster:
    """A standalone cluster as processes on loopback: a master, workers that a test adds, and drivers one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exits = contextlib.ExitStack()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home()),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _QUICK,
            "PYSPARK_PYTHON": sys.executable,
        }
        self.url = ""

    def __enter__(self) -> "Cluster":
        _, found = self._daemon("master.Master", r"Starting Spark master at (spark://\S+)")
        self.url = found
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def add_worker(self) -> None:
        """Start a worker of one core, and wait until the master knows it."""
        arguments = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / "work"), self.url]
        worker, _ = self._daemon("worker.Worker", r"(Successfully registered with master)", *arguments)
        self._workers.append(worker)

    def executors(self) -> dict[str, int]:
        """The process ids of running executors, by `<application>/<executor's id>`."""
        found = {}
        for worker in self._workers:
            for child in _children(worker.pid):
                with contextlib.suppress(OSError, ValueError):
                    line = Path(f"/proc/{child}/cmdline").read_text().split("\0")
                    application, number = (line[line.index(name) + 1] for name in ("--app-id", "--executor-id"))
                    found[f"{application}/{number}"] = child
        return found

    @contextlib.contextmanager
    def driver(self, folder: Path, host: str, options: dict[str, str]) -> Iterator[None]:
        """A driver on an address of its own, in a process group that is killed at the end."""
        settings = {
            "spark.master": self.url,
            "spark.driver.host": host,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _QUICK,
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.sql.shuffle.partitions": "2",
        }
        command = [sys.executable, _DRIVER, folder, json.dumps(settings), json.dumps(options)]
        with (folder / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, start_new_session=True, cwd=folder
            )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _daemon(self, name: str, ready: str, *arguments: str) -> tuple["subprocess.Popen[bytes]", str]:
        log = self._folder / f"{name}-{len(self._workers)}.log"
        command = [
            str(spark_home() / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name}",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            *arguments,
        ]
        with log.open("w") as file:
            daemon = subprocess.Popen(
                command, stdout=file, stderr=file, env=self._environment, cwd=self._folder, start_new_session=True
            )
        self._exits.callback(_end, daemon)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and daemon.poll() is None:
            found = re.search(ready, log.read_text())
            if found:
                return daemon, found[1]
            time.sleep(0.05)
        raise RuntimeError(f"{name} has not started:\n{log.read_text()[-3000:]}")


def _end(daemon: "subprocess.Popen[bytes]") -> None:
    children = _children(daemon.pid)
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
    for child in children:  # an executor that has not noticed
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(int(child) for child in task.read_text().split())
    return sorted(found)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master, and one worker to begin with: a new one for each try, as tests add workers."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as one:
        one.add_worker()
        yield one


def table(folder: Path) -> list[list[str]]:
    """Rows of all micro-batches: shard, sequence number, data, executor."""
    return [row for file in (folder / "table").glob("*.json") for row in json.loads(file.read_text())]


def test_executors_come_and_go_and_the_driver_moves(
    cluster: Cluster, make_stream: Callable[[int], Any], until: Callable[..., None], tmp_path: Path
) -> None:
    """Each record once: while a worker joins, after an executor was killed, and from a driver on another host."""
    source = make_stream(4)
    options = source.options(
        initialPosition="TRIM_HORIZON",
        recordPublisher="efo",
        efoConsumerName="cluster",
        jobId="cluster",
        maxPartitions="4",
        maxRecordsPerBatch="60",
    )

    def rows_of(executor: str) -> int:
        return sum(1 for row in table(tmp_path) if row[3] == executor)

    def all_read(what: str) -> None:
        wanted = len(source.put_keys)
        until(lambda: len(table(tmp_path)) >= wanted, lambda: f"{what}: {_tail(tmp_path)}")
        rows = table(tmp_path)
        assert len(rows) == wanted
        assert {(shard, number): data.encode() for shard, number, data, _ in rows} == source.put_keys

    source.put(100)
    with cluster.driver(tmp_path, "127.0.0.2", options | {"registryStore": str(tmp_path / "registry.db")}):
        all_read("nothing comes from the first executor")
        until((tmp_path / "reader").exists, "there is no progress")
        assert (tmp_path / "reader").read_text().startswith("127.0.0.2:")
        (first,) = cluster.executors()

        cluster.add_worker()
        until(lambda: len(cluster.executors()) == 2, "the new worker has no executor")
        (second,) = cluster.executors().keys() - {first}

        def reads_more(executor: str) -> bool:
            # What was put may have been read before anybody looked, and by the other one: there is always more.
            if len(table(tmp_path)) >= len(source.put_keys):
                source.put(40)
            return rows_of(executor) > before

        before = 0
        until(lambda: reads_more(second), "the new executor reads nothing")

        before = rows_of(first)
        source.put(200)
        until(lambda: reads_more(first), "the first executor reads no more")
        os.kill(cluster.executors()[first], signal.SIGKILL)
        source.put(100)
        all_read("records of the killed executor are missing")
    source.put(100)
    with cluster.driver(tmp_path, "127.0.0.3", options | {"registryStore": str(tmp_path / "elsewhere.db")}):
        all_read("nothing comes to the moved driver")
        until(lambda: (tmp_path / "reader").read_text().startswith("127.0.0.3:"), "the reader has not moved")
    assert len({executor for *_, executor in table(tmp_path)}) >= 3


def _tail(folder: Path) -> str:
    return (folder / "driver.log").read_text()[-3000:]
