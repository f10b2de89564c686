"""Run a server as a process: a ready line, signals, drain, exit code."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from penstock.rpc._server import GrpcServer
from penstock.rpc.errors import PenstockRpcError


async def _serve(make: Callable[[], AbstractAsyncContextManager[GrpcServer]], name: str) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with make() as server:
        ready = {"service": name, "address": server.address, "pid": os.getpid()}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        await ended.wait()


def run_service(make: Callable[[], AbstractAsyncContextManager[GrpcServer]], *, name: str) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit code for `sys.exit`.

    Prints one JSON line when ready: `{"service": …, "address": "127.0.0.1:1234", "pid": …}`.
    """
    try:
        asyncio.run(_serve(make, name))
    except PenstockRpcError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 2
    return 0
