"""The server of prebuilt frames in a process of its own, and a session that reads from it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.aws import AwsSession
from penstock.aws.testing import emulator_options

if TYPE_CHECKING:
    from collections.abc import Iterator

CONSUMER_ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/flights/consumer/bench:1"


@dataclass(frozen=True)
class FrameServer:
    """A server under way."""

    pid: int
    session: AwsSession


@contextlib.contextmanager
def frame_server(events_per_second: float = 0.0) -> Iterator[FrameServer]:
    """Start the server on another core than this process, if there is one."""
    command = [sys.executable, "-m", "benchmarks.reading._frame_server", "--events-per-second", str(events_per_second)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            yield FrameServer(process.pid, AwsSession(emulator_options(ready["endpoint"], ready["ca_file"])))
        finally:
            process.stdin.close()
            process.terminate()


@contextlib.contextmanager
def one_core(server_pid: int) -> Iterator[None]:
    """Keep this process to one core, and the server off it."""
    cores = os.sched_getaffinity(0)
    mine = min(cores)
    os.sched_setaffinity(server_pid, cores - {mine} or cores)
    os.sched_setaffinity(0, {mine})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
