"""A standalone cluster of Spark as processes on loopback, which a test kills one by one."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from connect_servers import spark_home
from patience import PATIENCE_SECONDS

_DRIVER = Path(__file__).with_name("cluster_driver.py")
# Processes that live for a minute gain nothing from the second compiler.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Cluster:
    """A standalone cluster as processes on loopback: a master, workers that a test adds, and drivers one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exits = contextlib.ExitStack()
        self._workers: list[subprocess.Popen[bytes]] = []
        self.hosts: list[str] = []
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

    def add_worker(self, host: str = "127.0.0.1", cores: int = 1) -> None:
        """Start a worker, and wait until the master knows it."""
        arguments = ["--cores", str(cores), "--memory", "1g", "--work-dir", str(self._folder / "work"), self.url]
        worker, _ = self._daemon("worker.Worker", r"(Successfully registered with master)", *arguments, host=host)
        self._workers.append(worker)
        self.hosts.append(host)

    def kill_worker(self, host: str) -> None:
        """End a worker and its executors at once, as a machine that is gone."""
        worker = self._workers[self.hosts.index(host)]
        children = _children(worker.pid)
        worker.kill()
        worker.wait()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def logs(self) -> list[str]:
        """What executors have written."""
        return [one.read_text() for one in (self._folder / "work").glob("*/*/std*")]

    def executor_of(self, host: str) -> int:
        """The process id of the executor of a worker."""
        children = _children(self._workers[self.hosts.index(host)].pid)
        (found,) = (pid for pid in children if pid in self.executors().values())
        return found

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
    def driver(
        self,
        folder: Path,
        host: str,
        options: dict[str, Any],
        readers: dict[str, Any] | None = None,
        *,
        file: Path = _DRIVER,
        environment: dict[str, str] | None = None,
        **more_settings: str,
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """A driver on an address of its own, in a process group that is killed at the end.

        It can run shard readers on the executors; `environment` is also the environment of the executors.
        """
        environment = environment or {}
        settings = {
            "spark.master": self.url,
            "spark.driver.host": host,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _QUICK,
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.sql.shuffle.partitions": "2",
            **{name.replace("_", "."): value for name, value in more_settings.items()},
            **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
        }
        command = [
            sys.executable,
            str(file),
            str(folder),
            json.dumps(settings),
            json.dumps(options),
            json.dumps(readers),
        ]
        with (folder / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=self._environment | environment,
                start_new_session=True,
                cwd=folder,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _daemon(
        self, name: str, ready: str, *arguments: str, host: str = "127.0.0.1"
    ) -> tuple["subprocess.Popen[bytes]", str]:
        log = self._folder / f"{name}-{len(self._workers)}.log"
        command = [
            str(spark_home() / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name}",
            *("--host", host, "--port", "0", "--webui-port", "0"),
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
