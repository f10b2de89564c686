import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AbstractAsyncContextManager

import pytest

from penstock.rpc import run_service
from penstock.rpc._server import run as _run
from penstock.rpc._server.run import Served


class Starting(AbstractAsyncContextManager[Served]):
    """A service whose store does not answer, and that gets a signal meanwhile."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tidied = False

    async def __aenter__(self) -> Served:
        try:
            os.kill(os.getpid(), self.number)
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        finally:
            self.tidied = True
        raise AssertionError("it was not ended")

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("it was not entered")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_on_a_signal_while_it_starts(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It tidies up, prints no ready line, and exits with 0."""
    monkeypatch.setattr(_run, "_raise_file_limit", lambda: None)
    starting = Starting(number)
    assert run_service(lambda: starting, name="penstock-x") == 0
    assert starting.tidied
    assert capsys.readouterr().out == ""


def test_no_collection_looks_through_what_a_service_has_loaded() -> None:
    """Neither while it serves, nor at its end; and what comes later is looked through seldom."""
    script = """
import asyncio, gc, os, signal
from contextlib import asynccontextmanager
from types import SimpleNamespace
from penstock.rpc import run_service

@asynccontextmanager
async def serve():
    # Once it is ready.
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
    yield SimpleNamespace(address="127.0.0.1:1")
    print(gc.get_freeze_count(), *gc.get_threshold())

loaded = len(gc.get_objects())
run_service(serve, name="penstock-x")
print(loaded)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    _, serving, loaded = ended.stdout.splitlines()
    frozen, *thresholds = map(int, serving.split())
    assert frozen >= int(loaded)
    assert thresholds == [50_000, 10, 5]


def test_no_text_of_a_client_begins_a_line_of_the_log() -> None:
    """Nor does it command the terminal of who reads it; tracebacks stay as they are."""
    script = """
import logging
from penstock.rpc import set_up_logging
set_up_logging()
name = "q\\n2026-01-01 00:00:00,000 ERROR penstock: forged \\x1b[2J\\u2028\\x85 caf\\u00e9"
logging.warning("session %s is ended", name)
try:
    raise ValueError("seen")
except ValueError:
    logging.exception("failed")
"""
    command = [sys.executable, "-c", script]
    log = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stderr
    lines = log.split("\n")
    assert "forged \\x1b[2J\\u2028\\x85 café is ended" in lines[0]
    assert "Traceback" in lines[2]
    assert log.isascii() or "\x1b" not in log
