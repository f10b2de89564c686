"""What tests need around the emulator: a thread or process for callers without a loop, a clock to move, aggregates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import botocore.loaders
import botocore.session

from penstock.emulator._aggregates import (
    UserRecord,
    aggregate,
    malformed_aggregates,
    partition_keys_in,
    routed_aggregates,
)
from penstock.emulator._clock import AdjustableClock, ManualClock, OtherClock
from penstock.emulator._config import EmulatorConfig
from penstock.emulator._server import EmulatorServer, server_context
from penstock.emulator.errors import EmulatorStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.emulator._behaviour import Behaviour
    from penstock.emulator._clock import Clock
    from penstock.emulator._dynamodb_streams import DynamoDbStreams
    from penstock.emulator._faults import FaultPlan
    from penstock.emulator._state.kinesis import Kinesis

__all__ = [
    "AdjustableClock",
    "EmulatorProcess",
    "ManualClock",
    "OtherClock",
    "RunningEmulator",
    "UserRecord",
    "aggregate",
    "malformed_aggregates",
    "partition_keys_in",
    "routed_aggregates",
    "running_emulator",
    "server_context",
    "start_emulator_process",
]

_T = TypeVar("_T")


@cache
def _loader(data_path: str | None) -> Any:
    # One for all clients: each would read some MB of models and endpoints, which takes most of its making.
    return botocore.loaders.create_loader(data_path)


def kinesis_client(endpoint_url: str, *, region: str = "us-east-1", service: str = "kinesis", **options: Any) -> Any:
    """Make a boto3 client with dummy credentials for an endpoint; `options` go to ``create_client``."""
    session = botocore.session.Session()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session.create_client(
        service,
        endpoint_url=endpoint_url,
        region_name=region,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        **options,
    )


class RunningEmulator:
    """An emulator on a thread of its own."""

    def __init__(self, server: EmulatorServer, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint_url: str = server.endpoint_url
        self.tls_endpoint_url: str = server.tls_endpoint_url if server.config.tls else ""
        self.endpoints: dict[str, str] = server.endpoints
        self.ca_file: Path = server.ca_file if server.config.tls else Path()
        self.firehose_folder: Path = server.firehose_folder
        self.kinesis: Kinesis = server.kinesis
        self.dynamodb_streams: DynamoDbStreams = server.dynamodb_streams
        self.faults: FaultPlan = server.faults
        self.config: EmulatorConfig = server.config
        self.clock: Clock = server.clock
        self._loop = loop

    @property
    def behaviour(self) -> Behaviour:
        """What is done where Kinesis leaves things open; may be set at any time, from any thread but the emulator's."""
        return self.kinesis.behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        def change() -> None:
            self.kinesis.behaviour = behaviour

        self.call(change)

    def client(self, service: str = "kinesis", **options: Any) -> Any:
        """Make a boto3 client with dummy credentials (plain text, HTTP/1.1) for one of the `endpoints`."""
        return kinesis_client(self.endpoints[service], region=self.config.region, service=service, **options)

    def call(self, function: Callable[[], _T]) -> _T:
        """Run `function` on the emulator's loop and return its result: the safe way to touch `kinesis`."""
        result: Future[_T] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result()


@contextlib.contextmanager
def running_emulator(*, clock: Clock | None = None, **config: Any) -> Iterator[RunningEmulator]:
    """Run an emulator on a thread of its own, for callers without a loop: boto3, Spark.

    Args:
        clock: a `ManualClock`, to move time, or an `OtherClock`, for a service whose clock is not this host's.
        config: the fields of `EmulatorConfig`.
    """
    options = EmulatorConfig(**config)
    ready: Future[tuple[RunningEmulator, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with EmulatorServer(options, clock=clock) as server:
            ready.set_result((RunningEmulator(server, asyncio.get_running_loop()), stop))
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run, name="emulator", daemon=True)
    thread.start()
    running, stop = ready.result()
    try:
        yield running
    finally:
        running.call(stop.set)
        thread.join()


class EmulatorProcess:
    """An emulator in a child process."""

    def __init__(self, ready: dict[str, Any], process: subprocess.Popen[str]) -> None:
        self.endpoint_url: str = ready["endpoint_url"]
        self.tls_endpoint_url: str = ready["tls_endpoint_url"] or ""
        self.endpoints: dict[str, str] = ready["endpoints"]
        self.ca_file = Path(ready["ca_file"] or "")
        self.pid: int = ready["pid"]
        self.process = process

    def client(self, service: str = "kinesis", **options: Any) -> Any:
        """Make a boto3 client with dummy credentials (plain text, HTTP/1.1) for one of the `endpoints`."""
        return kinesis_client(self.endpoints[service], service=service, **options)


@contextlib.contextmanager
def start_emulator_process(*arguments: str, stop_timeout: float = 10.0) -> Iterator[EmulatorProcess]:
    """Run ``python -m penstock.emulator`` as a child; it ends with the context, and with this process at the latest.

    Args:
        arguments: command-line options, such as ``"--no-enforce-limits"``.
        stop_timeout: seconds between SIGTERM and SIGKILL.

    Raises:
        EmulatorStartError: the process ended before it was ready.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.emulator", "--exit-with-parent", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise EmulatorStartError(exit_code=process.wait(), output="no ready line on standard output")
        yield EmulatorProcess(json.loads(line), process)
    finally:
        process.terminate()
        try:
            process.wait(stop_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
