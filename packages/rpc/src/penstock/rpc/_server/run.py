"""Run a server as a process: a ready line, signals, drain, exit code."""

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from penstock.rpc._own_files import collect_seldom


class Served(Protocol):
    """What listens."""

    @property
    def address(self) -> str:
        """`host:port`, as a client would name it."""
        ...


async def _serve(make: Callable[[], AbstractAsyncContextManager[Served]], name: str) -> None:
    ended, started = asyncio.Event(), asyncio.Event()
    serving = asyncio.current_task()
    assert serving is not None  # this is one

    def end() -> None:
        if not started.is_set() and not ended.is_set():
            # What it waits for, such as a store that does not answer, may take minutes.
            serving.cancel()
        ended.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        async with make() as server:
            started.set()
            # What is there by now stays: no collection looks through it while calls wait, nor the one at the end.
            gc.freeze()
            collect_seldom()
            ready = {"service": name, "address": server.address, "pid": os.getpid()}
            sys.stdout.write(json.dumps(ready) + "\n")
            sys.stdout.flush()
            await ended.wait()
    except asyncio.CancelledError:
        if not ended.is_set():
            raise


def _raise_file_limit() -> None:
    # Many systems start a process with 1,024 files and allow far more: that many clients are soon there.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _OneLine(logging.Formatter):
    """Escapes what a client may have put into a message: no text of theirs begins a line, or commands a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without what would end it; a traceback follows as it is."""
        return "".join(_escaped(one) for one in super().formatMessage(record))


def _escaped(one: str) -> str:
    if one.isprintable():
        return one
    return "\\n" if one == "\n" else one.encode("unicode_escape").decode()


def set_up_logging() -> None:
    """Log to standard error, a message a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])


def run_service(make: Callable[[], AbstractAsyncContextManager[Served]], *, name: str) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit code for `sys.exit`.

    Prints one JSON line when ready: `{"service": …, "address": "127.0.0.1:1234", "pid": …}`.

    Raises:
        PenstockRpcError: it cannot listen, or a setting is wrong, which the caller tells by its flag.
    """
    _raise_file_limit()
    asyncio.run(_serve(make, name))
    return 0
