"""The processes of a proof: services and Spark drivers that are killed, frozen and started again, and what they say."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock.rpc.testing import ServiceProcess, service_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Log:
    """The lines of all processes, and whatever else happened, in the order in which they came."""

    def __init__(self, file: Path | None) -> None:
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._file = None if file is None else file.open("w")

    def add(self, line: str) -> None:
        """Take a line."""
        if not (line := line.rstrip()):
            return
        with self._lock:
            self._lines.append(line)
            if self._file is not None:
                print(time.strftime("%H:%M:%S"), line, file=self._file, flush=True)

    def mark(self) -> int:
        """Where the log ends now."""
        return len(self._lines)

    def find(self, pattern: str, mark: int) -> str | None:
        """The first line behind a mark that matches."""
        found = re.compile(pattern, re.IGNORECASE)
        return next((line.strip()[:160] for line in self._lines[mark:] if found.search(line)), None)

    def last(self, count: int, of: str = "") -> list[str]:
        """The last lines; of a process, where it is named."""
        if not of:
            return self._lines[-count:]
        return [line for line in self._lines[-5000:] if line.startswith(f"{of}: ")][-count:]

    def follow(self, name: str) -> IO[bytes]:
        """A pipe whose lines are taken."""
        reading, writing = os.pipe()

        def take() -> None:
            with os.fdopen(reading, errors="replace") as lines:
                for line in lines:
                    self.add(f"{name}: {line}")

        threading.Thread(target=take, name=f"log of {name}", daemon=True).start()
        return os.fdopen(writing, "wb")


@dataclass
class Service:
    """A service that comes back at the address that it had.

    Attributes:
        module: what is run.
        arguments: of its command line.
        log: takes what it says.
        name: by which the log knows it; the module's unless given.
        environment: variables beside this process's.
        port: on loopback.
    """

    module: str
    arguments: list[str]
    log: Log
    name: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    running: ServiceProcess | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.name = self.name or self.module.rpartition(".")[2]

    @property
    def address(self) -> str:
        """Where it is asked."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Run it, and wait until it is ready.

        Raises:
            RuntimeError: it ended before.
        """
        environment = {**os.environ, **_KEYS, **self.environment}
        arguments = [*self.arguments, "--port", str(self.port)]
        with self.log.follow(self.name) as errors:
            self.running = self._stack.enter_context(service_process(self.module, arguments, environment, errors))

    def kill(self) -> None:
        """End it at once."""
        if self.running is not None:
            self.running.process.send_signal(signal.SIGKILL)
        self.running = None
        self._stack.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.running is not None:
            self.running.process.send_signal(number)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Kill it, and start it again at the end."""
        self.kill()
        try:
            yield
        finally:
            self.start()


class Session:
    """A Python script with all processes that it starts, as a Spark driver with its JVM, sources and workers."""

    def __init__(self, name: str, script: Path, arguments: list[str], log: Log) -> None:
        self.name = name
        with log.follow(name) as output:
            self._process = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **_KEYS, "PYSPARK_PYTHON": sys.executable},
            )

    def is_alive(self) -> bool:
        """Whether the script runs, or is frozen."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes; also to those that start meanwhile."""
        sent: set[int] = set()
        while new := self.pids() - sent:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            sent |= new

    def terminate(self) -> None:
        """Ask the script to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End all of it at once."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def wait(self, seconds: float) -> bool:
        """Wait for the script's end. Tells whether it ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return not self.is_alive()

    def pids(self) -> set[int]:
        """The ids of all of its processes."""
        # Not the process group: Spark's daemon of workers makes one of its own.
        return {int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and self._has(one)}

    def _has(self, process: Path) -> bool:
        try:
            # The command's name, in parentheses, may hold anything.
            _, _, rest = (process / "stat").read_text().rpartition(")")
        except OSError:
            return False
        state, _, _, session = rest.split()[:4]
        return int(session) == self._process.pid and state != "Z"


class Driver(Session):
    """A Spark driver whose queries write the keys of each batch to a file (`driver.py`).

    Args:
        name: which its files in the folder begin with, too.
        folder: of its tables and checkpoints, which other drivers may have as well.
        queries: options of the data source, by query.
        log: takes what it says.
        heap: of its JVM.
        trigger: the least time between two batches.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        queries: Mapping[str, Mapping[str, str]],
        log: Log,
        *,
        heap: str = "1g",
        trigger: str = "0 seconds",
    ) -> None:
        self._folder = folder
        self.queries = tuple(queries)
        for query in queries:
            (folder / "table" / query).mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps({"heap": heap, "trigger": trigger, "queries": queries}))
        super().__init__(name, Path(__file__).with_name("driver.py"), [str(folder), name], log)

    def has_rows(self, query: str) -> bool:
        """Whether this driver finished a batch of a query."""
        return (self._folder / f"{self.name}.{query}.batch").exists()

    @contextmanager
    def held(self, query: str) -> Iterator[None]:
        """Let its batches of a query last until the end."""
        hold = self._folder / f"{self.name}.{query}.hold"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def stop(self) -> None:
        """Ask it to stop its queries, and to end."""
        (self._folder / f"{self.name}.stop").touch()


def read_rows(folder: Path, query: str) -> Iterator[tuple[str, str]]:
    """Shard and sequence number of each row that a query gave to the drivers of a folder."""
    for file in (folder / "table" / query).glob("*.json"):
        yield from ((shard, number) for shard, number in json.loads(file.read_text()))
