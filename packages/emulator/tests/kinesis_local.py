"""kinesis-local as a process: another server of Kinesis, which tests run beside the emulator.

It runs where node and the package are found: its folder in the variable KINESIS_LOCAL, or its command on the PATH
(``npm install --prefix FOLDER kinesis-local``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def running_kinesis_local() -> Iterator[str]:
    """Run it and give its endpoint, in plain text. The test is skipped where it is not installed."""
    program = find_kinesis_local()
    if program is None:
        pytest.skip("kinesis-local is not installed: set KINESIS_LOCAL to its folder")
    durations = ["CREATE_STREAM", "DELETE_STREAM", "REGISTER_STREAM_CONSUMER", "DEREGISTER_STREAM_CONSUMER"]
    durations += ["MERGE_SHARDS", "SPLIT_SHARD", "UPDATE_SHARD_COUNT"]
    plain, tls = free_ports(2)
    environment = {
        **os.environ,
        "KINESIS_MOCK_PLAIN_PORT": str(plain),
        "KINESIS_MOCK_TLS_PORT": str(tls),
        "LOG_LEVEL": "ERROR",
        "SHARD_LIMIT": "1000",
        **{f"{name}_DURATION": "1ms" for name in durations},
    }
    # In its own folder: it looks for its certificate there.
    with subprocess.Popen(
        ["node", program.name],
        cwd=program.parent,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            await_listener(plain, process)
            yield f"http://127.0.0.1:{plain}"
        finally:
            process.kill()


def find_kinesis_local() -> Path | None:
    if shutil.which("node") is None:
        return None
    given = os.environ.get("KINESIS_LOCAL")
    if given:
        folder = Path(given)
        return folder if folder.is_file() else folder / "main.js"
    command = shutil.which("kinesis-local")
    return Path(command).resolve() if command else None


def free_ports(count: int) -> list[int]:
    # It takes no port 0. Between here and its start another process may take the ports: rare, and told.
    with contextlib.ExitStack() as sockets:
        found = []
        for _ in range(count):
            listener = sockets.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(listener.getsockname()[1])
        return found


def await_listener(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert process.poll() is None, "kinesis-local ended"
            assert time.monotonic() < deadline, "kinesis-local does not listen"
            time.sleep(0.05)
        else:
            return
