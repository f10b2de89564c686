"""For tests of commands: what one prints, and how it ends, without the second that a process takes to start."""

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

__all__ = ["run_main"]


def run_main(
    main: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> subprocess.CompletedProcess[str]:
    """Call a command's `main` as a process of its own would: its exit code, and all that it wrote.

    While it runs it has the environment, the standard streams and the root logger to itself, so commands run one at a
    time, on the main thread if they take signals. What it raises is raised: a process would print a traceback. Signals,
    sockets that outlive it, memory and imports are for a process. That others in this process closed event loops while
    gRPC still had something for them is not written: no process of a command would say that.

    Args:
        main: takes the arguments and returns the exit code, or raises SystemExit as argparse does.
        arguments: without the command's name.
        environ: all of its environment. Default: the environment of this process.
        given: what it can read from its standard input.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    asyncio_log = logging.getLogger("asyncio")
    asyncio_log.addFilter(_is_of_an_open_loop)
    try:
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")),
            mock.patch.dict(os.environ, os.environ if environ is None else environ, clear=True),
        ):
            code = _code_of(main, arguments)
    finally:
        asyncio_log.removeFilter(_is_of_an_open_loop)
        root.handlers[:] = handlers
        root.setLevel(level)
    written = [stream.buffer.getvalue().decode() for stream in (out, err) if isinstance(stream.buffer, io.BytesIO)]
    return subprocess.CompletedProcess(list(arguments), code, *written)


def _is_of_an_open_loop(record: logging.LogRecord) -> bool:
    return record.exc_info is None or str(record.exc_info[1]) != "Event loop is closed"


def _code_of(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """As the interpreter makes it of what `sys.exit` was given."""
    try:
        return main(list(arguments))
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
