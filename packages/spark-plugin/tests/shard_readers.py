"""Shard-reader services as processes that a test stops, kills and starts again, and drivers that use them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.efo_consumer import RemoteShardReader
from penstock.emulator.testing import RunningEmulator
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.spark_plugin import KinesisDataSource
from penstock.spark_plugin.testing import endpoint_options

STREAM = "orders"
PATIENCE_SECONDS = 60.0
"""For what has to come on a busy machine."""


class Readers:
    """Services that share an emulator."""

    def __init__(self, emulator: RunningEmulator, exits: ExitStack, *arguments: str) -> None:
        self._arguments = ["serve", "--region", "us-east-1", "--endpoint-url", emulator.endpoint_url, *arguments]
        self._exits = exits
        self._services: list[ServiceProcess] = []
        self.addresses: list[str] = []

    def start(self, count: int = 1) -> None:
        """Start so many more."""
        for _ in range(count):
            self._services.append(self._start("0"))
            self.addresses.append(self._services[-1].address)

    def restart(self) -> None:
        """Kill all of them, and start them again at their addresses: with empty memories."""
        for index in range(len(self._services)):
            self.kill(index)
        for index in range(len(self._services)):
            self.revive(index)

    def kill(self, index: int) -> None:
        """End one without a word."""
        self._services[index].process.kill()
        self._services[index].process.wait()

    def revive(self, index: int) -> None:
        """Start one again at its address."""
        self._services[index] = self._start(self.addresses[index].rpartition(":")[2])

    @contextmanager
    def frozen(self, *indexes: int) -> Iterator[None]:
        """Stop processes meanwhile, as a throttled or paused machine does."""
        processes = [self._services[index].process for index in indexes]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)

    def sessions(self) -> list[str]:
        """The owners of all sessions that are open."""

        async def listed(address: str) -> list[str]:
            reader = RemoteShardReader(address)
            try:
                return [session.owner for session in await reader.sessions()]
            finally:
                await reader.aclose()

        return [owner for address in self.addresses for owner in asyncio.run(listed(address))]

    def _start(self, port: str) -> ServiceProcess:
        environment = os.environ | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        arguments = [*self._arguments, "--port", port]
        return self._exits.enter_context(service_process("penstock.services.shard_reader", arguments, environment))


def put(emulator: RunningEmulator, *rows: bytes) -> None:
    """Put records, over all shards."""
    records = [{"Data": row, "PartitionKey": row.decode()} for row in rows]
    answer = emulator.client().put_records(StreamName=STREAM, Records=records)
    assert not answer["FailedRecordCount"]


@dataclass
class Driver:
    """A driver of a query, by the calls that Spark makes. Several of them may have one log.

    Without readers it has a reader of its own. An option that is empty is left out.
    """

    endpoint_url: str
    readers: Sequence[str]
    log: list[dict[str, Any]] = field(default_factory=list)
    """Where the query began, and the ends of its micro-batches."""
    rows: list[bytes] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        common = {
            "initialPosition": "TRIM_HORIZON",
            "recordPublisher": "polling",
            "jobId": "the-query",
            "latestOffsetWait": "1",
        }
        if self.readers:
            common["readerEndpoint"] = ",".join(self.readers)
        given = {name: value for name, value in (common | self.options).items() if value}
        options = endpoint_options(self.endpoint_url, STREAM, **given)
        source = KinesisDataSource(options)
        self.reader: Any = source.streamReader(source.schema())
        if not self.log:
            self.log.append(_logged(self.reader.initialOffset()))

    def plan(self) -> bool:
        """Log the next micro-batch, if there is one by now."""
        end = _logged(self.reader.latestOffset(self.log[-1], self.reader.getDefaultReadLimit()))
        is_new = bool(end != self.log[-1])
        if is_new:
            self.log.append(end)
        return is_new

    def run(self) -> list[bytes]:
        """Plan the last micro-batch that was logged, read it and commit the one before; give its rows."""
        rows = [
            row
            for partition in self.reader.partitions(*self.log[-2:])
            for batch in self.reader.read(partition)
            for row in batch.column("data").to_pylist()
        ]
        self.rows += rows
        self.reader.commit(self.log[-2])
        return rows

    def read(self, count: int) -> list[bytes]:
        """Micro-batches until so many rows have come."""
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}: {self.reader.reportLatestOffset()}"
            if self.plan():
                found += self.run()
        return found


def _logged(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


@contextmanager
def driver_process(
    endpoint_url: str, readers: Sequence[str], options: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """A driver as a process of its own: it writes a line per row, and at its end the error's class and words."""
    command = [sys.executable, __file__, endpoint_url, json.dumps(dict(options or {})), *readers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _drive(endpoint_url: str, options: str, *readers: str) -> None:
    driver = Driver(endpoint_url, readers, options=json.loads(options))
    try:
        while True:
            for row in driver.run() if driver.plan() else ():
                sys.stdout.write(f"{row.decode()}\n")
            sys.stdout.flush()
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")


if __name__ == "__main__":
    _drive(*sys.argv[1:])
