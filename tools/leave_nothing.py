"""End the processes that a run of tests leaves behind, however the run ends: normally, by Ctrl-C, or by a kill.

Drivers, their JVMs and services are processes of their own, and some are in sessions of their own: neither Ctrl-C nor
the end of the process that started them ends them. So each carries a mark in its environment, which whatever it starts
inherits. A watcher waits for the end of the run, and ends the processes with the mark that are left.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

MARK = "PENSTOCK_TEST_RUN"
# Processes that are about to end by themselves have so many seconds.
GRACE_SECONDS = 10.0


def watch() -> None:
    """Mark what this process starts from now on, and start the watcher, which ends what is left of it."""
    run = uuid.uuid4().hex
    # Out of the reach of Ctrl-C, and without the mark.
    subprocess.Popen([sys.executable, "-I", __file__, run, str(os.getpid())], start_new_session=True)
    os.environ[MARK] = run


def marked(run: str) -> dict[int, str]:
    """The processes with the mark of a run, each with the command that started it."""
    mark = f"{MARK}={run}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    return found


def main() -> None:
    """Wait for the end of the run, and then for what it started, but not for long."""
    run, parent = sys.argv[1], int(sys.argv[2])
    while os.getppid() == parent:
        time.sleep(0.5)
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := marked(run)) and time.monotonic() < deadline:
        time.sleep(0.2)
    while left:
        for pid, command in left.items():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                print(f"tests left process {pid} running; it was ended: {command[:200]}", file=sys.stderr)
        time.sleep(0.2)
        left = marked(run)


if __name__ == "__main__":
    main()
