"""Two drivers of one query: the newer run has its session, whatever happens to the services and whoever asks first."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from shard_readers import PATIENCE_SECONDS, STREAM, Driver, Readers, driver_process, put

from penstock.efo_consumer import StaleEpochError
from penstock.emulator.testing import RunningEmulator, running_emulator

pytest.importorskip("penstock.services.shard_reader")
FLEETS = pytest.mark.parametrize("count", [1, 2])


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName=STREAM, ShardCount=4)
        yield running


@pytest.fixture
def readers(emulator: RunningEmulator) -> Iterator[Readers]:
    with ExitStack() as exits:
        # A session that nobody calls ends soon; one of a fleet does so in any case.
        yield Readers(emulator, exits, "--session-timeout", "5")


@FLEETS
def test_a_restart_of_the_service_gives_no_session_back_to_a_predecessor(
    emulator: RunningEmulator, readers: Readers, count: int
) -> None:
    """A driver in a long micro-batch, its successor, a restart: the old one asks first, and is refused all the same."""
    readers.start(count)
    put(emulator, b"0", b"1", b"2", b"3")
    old = Driver(emulator.endpoint_url, readers.addresses)
    old.read(4)
    new = Driver(emulator.endpoint_url, readers.addresses, log=list(old.log))
    put(emulator, b"4", b"5")
    assert sorted(new.read(2)) == [b"4", b"5"]
    readers.restart()
    with pytest.raises(StaleEpochError, match="taken over by host"):
        go_on(emulator, old, new)
    put(emulator, b"7")
    assert b"7" in new.read(1)
    # Its end is none of its successor's.
    old.reader.stop()
    put(emulator, b"8")
    assert b"8" in new.read(1)
    new.reader.stop()


def go_on(emulator: RunningEmulator, old: Driver, new: Driver) -> None:
    """The micro-batch of the old driver is over: it commits and asks for the next one, before the new one does."""
    old.reader.commit(old.log[-1])
    for _ in range(20):
        old.plan()
        put(emulator, b"6")
        new.read(1)


@FLEETS
def test_a_driver_that_was_frozen_goes_on_or_is_told_who_took_over(
    emulator: RunningEmulator, readers: Readers, count: int
) -> None:
    """Its sessions have ended meanwhile: it opens them again, unless a successor has them."""
    readers.start(count)
    put(emulator, b"0", b"1")
    with driver_process(emulator.endpoint_url, readers.addresses) as frozen:
        assert {line(frozen), line(frozen)} == {"0", "1"}
        frozen.send_signal(signal.SIGSTOP)
        until(lambda: readers.sessions() == [])
        put(emulator, b"2", b"3")
        frozen.send_signal(signal.SIGCONT)
        assert {line(frozen), line(frozen)} == {"2", "3"}
        frozen.send_signal(signal.SIGSTOP)
        new = Driver(emulator.endpoint_url, readers.addresses)
        assert sorted(new.read(4)) == [b"0", b"1", b"2", b"3"]
        frozen.send_signal(signal.SIGCONT)
        told = line(frozen)
        assert told.startswith("StaleEpochError")
        assert f"process {os.getpid()}" in told
        put(emulator, b"4")
        assert new.read(1) == [b"4"]
        new.reader.stop()


def line(process: "subprocess.Popen[str]") -> str:
    """The next line that a driver writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a service does by itself."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
