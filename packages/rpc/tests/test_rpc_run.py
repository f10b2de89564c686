import asyncio
import os
import signal

import pytest

from penstock.rpc import _run, run_service


class Starting:
    """A service whose store does not answer, and which is told to end meanwhile."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tidied = False

    async def __aenter__(self) -> None:
        try:
            os.kill(os.getpid(), self.number)
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        finally:
            self.tidied = True

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("it was not entered")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_when_it_is_told_to_while_it_starts(number, monkeypatch, capsys):
    """It tidies up, says that it is ready to nobody, and exits with 0."""
    monkeypatch.setattr(_run, "_raise_file_limit", lambda: None)
    starting = Starting(number)
    assert run_service(lambda: starting, name="penstock-x") == 0
    assert starting.tidied
    assert capsys.readouterr().out == ""
