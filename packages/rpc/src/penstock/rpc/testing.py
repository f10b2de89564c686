"""Helpers for tests of services: a service as a child process."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class ServiceProcess:
    """A service that runs as a child process."""

    process: subprocess.Popen[str]
    address: str

    def terminate(self, timeout_seconds: float = 60.0) -> int:
        """Send SIGTERM and wait. Returns the exit code."""
        self.process.terminate()
        return self.process.wait(timeout_seconds)


@contextmanager
def service_process(
    module: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    errors: IO[bytes] | None = None,
) -> Iterator[ServiceProcess]:
    """Run `python -m module arguments…` and wait for its ready line. Always ended on exit.

    `errors` takes its standard error; our own does if it is not given.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=dict(environment) if environment is not None else None,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} ended with code {process.wait()} before it was ready")
        yield ServiceProcess(process, json.loads(line)["address"])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
