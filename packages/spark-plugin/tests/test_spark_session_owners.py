"""Two drivers of one query: the newer run has its session, whatever happens to the services and whoever asks first."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from shard_readers import STREAM, Driver, Readers, put

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
        yield Readers(emulator, exits)


@FLEETS
def test_a_restart_of_the_service_gives_no_session_back_to_a_predecessor(
    emulator: RunningEmulator, readers: Readers, count: int
) -> None:
    """A driver in a long micro-batch, its successor, a restart: the old one asks first, and is refused all the same."""
    readers.start(count)
    put(emulator, b"0", b"1", b"2", b"3")
    old = Driver(emulator, readers.addresses)
    old.read(4)
    new = Driver(emulator, readers.addresses, log=list(old.log))
    put(emulator, b"4", b"5")
    assert sorted(new.read(2)) == [b"4", b"5"]
    readers.restart()
    with pytest.raises(StaleEpochError, match="taken over by host"):
        go_on(old, new)
    put(emulator, b"7")
    assert b"7" in new.read(1)
    # Its end is none of its successor's.
    old.reader.stop()
    put(emulator, b"8")
    assert b"8" in new.read(1)
    new.reader.stop()


def go_on(old: Driver, new: Driver) -> None:
    """The micro-batch of the old driver is over: it commits and asks for the next one, before the new one does."""
    old.reader.commit(old.log[-1])
    for _ in range(20):
        old.plan()
        put(old.emulator, b"6")
        new.read(1)
