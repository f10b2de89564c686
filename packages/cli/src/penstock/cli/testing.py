"""Helpers for tests of commands: run one as if at a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command at a terminal ended."""

    code: int
    """The exit code."""
    text: str
    """All that it wrote, also what moves the cursor and sets colours."""


def run_in_terminal(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    columns: int = 100,
    lines: int = 40,
    send: bytes = b"",
    when: str = "",
    timeout_seconds: float = 60.0,
) -> Ended:
    """Run a command with a terminal of this size as its standard input, output and error, to its end.

    Args:
        command: what to run.
        environ: its environment.
        columns: the terminal's width.
        lines: its height.
        send: keys to press, such as `b"\\x03"` for Ctrl+C.
        when: press them when this text was written.
        timeout_seconds: longest that the command may take.

    Raises:
        TimeoutError: the command did not end in time; it is killed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    deadline = time.monotonic() + timeout_seconds
    # The shell, leader of a session without a terminal, gets the one that it opens. Not by `preexec_fn`, for which
    # Python forks: in a process that has used gRPC its handlers abort some of the forked children.
    opening = ["/bin/sh", "-c", 'terminal=$1; shift; exec "$@" 0<>"$terminal"', "sh", os.ttyname(theirs)]
    with subprocess.Popen(
        [*opening, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=None if environ is None else dict(environ),
        # A session of its own, so that keys go to it alone, as signals of its terminal.
        start_new_session=True,
    ) as process:
        os.close(theirs)
        os.set_blocking(ours, False)
        written = b""
        try:
            while time.monotonic() < deadline:
                # Linux tells the end of the other side as an error.
                with contextlib.suppress(BlockingIOError, OSError):
                    written += os.read(ours, 65536)
                if send and when in written.decode(errors="replace"):
                    os.write(ours, send)
                    send = b""
                if process.poll() is not None:
                    break
                time.sleep(0.01)
            else:
                raise TimeoutError(f"{command[0]} did not end in {timeout_seconds} s: {written[-500:]!r}")
            with contextlib.suppress(BlockingIOError, OSError):
                while more := os.read(ours, 65536):
                    written += more
        finally:
            if process.poll() is None:
                process.kill()
            os.close(ours)
    return Ended(process.returncode, written.decode(errors="replace").replace("\r\n", "\n"))
