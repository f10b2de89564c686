"""The Unix socket of a reader host, by which tasks on its machine read."""

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.efo_consumer import (
    ReaderHost,
    ReaderUnavailableError,
    StreamPositions,
    find_leftovers,
    ranges_between,
    read_ranges,
)
from penstock.efo_consumer.testing import FakeKinesis
from penstock.rpc import ClientSecurity


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where files in memory, and temporary ones, go: its name is short, as a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="p-") as made:
        monkeypatch.setattr("tempfile.tempdir", made)
        monkeypatch.setattr("penstock.efo_consumer._embedded.host.MEMORY", Path(made))
        yield Path(made)


@pytest.fixture
def kinesis() -> FakeKinesis:
    """A stream of one shard with ten records."""
    fake = FakeKinesis()
    (shard,) = fake.create_stream("s", 1)
    fake.put("s", shard, 10)
    return fake


@pytest.fixture
def host(folder: Path, kinesis: FakeKinesis) -> Iterator[ReaderHost]:
    """A started one."""
    with ReaderHost(backend=lambda: kinesis) as started:
        yield started


def end_of(host: ReaderHost, start: StreamPositions) -> StreamPositions:
    host.reader.open("q", start)
    while sum(stats.records for stats in host.reader.stats()) < 10:
        host.reader.positions(start, wait_seconds=0.05)
    return host.reader.positions(start, wait_seconds=5).positions


def test_tasks_read_over_the_socket_as_over_the_network(host: ReaderHost, kinesis: FakeKinesis) -> None:
    """The same rows; and the token is asked for there, too."""
    start = kinesis.trim_horizon("s")
    ranges = ranges_between(start, end_of(host, start))
    local = f"unix:{host.socket_path}"
    near, far = (
        [row for batch in read_ranges(address, host.security, "q", ranges) for row in batch.to_pylist()]
        for address in (local, host.address)
    )
    assert near == far
    assert len(near) == 10
    with pytest.raises(ReaderUnavailableError, match="UNAUTHENTICATED"):
        list(read_ranges(local, ClientSecurity(), "q", ranges))


def test_the_socket_is_this_users_alone_and_goes_with_the_host(folder: Path, kinesis: FakeKinesis) -> None:
    """Other users cannot look into its folder, and nothing of it is left."""
    with ReaderHost(backend=lambda: kinesis) as host:
        assert host.socket_path is not None
        assert stat.S_ISSOCK(host.socket_path.stat().st_mode)
        assert stat.S_IMODE(host.socket_path.parent.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == []


def test_folders_of_killed_hosts_are_removed_and_those_of_living_ones_are_not(
    folder: Path, kinesis: FakeKinesis
) -> None:
    """A new host tidies up; one that has only begun is left alone, as is one that answers."""
    dead, new, alive = (folder / f"penstock-reader-{name}" for name in ("dead", "new", "alive"))
    for one in (dead, new, alive):
        one.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(dead / "socket"))
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(alive / "socket"))
        living.listen()
        for one in (dead, alive):
            os.utime(one, (0, 0))
        with ReaderHost(backend=lambda: kinesis):
            assert not dead.exists()
            assert new.exists()
            assert alive.exists()


def test_a_folder_with_a_long_name_has_no_socket(
    folder: Path, kinesis: FakeKinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no socket's path fits, the network is what is left."""
    deep = folder / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("penstock.efo_consumer._embedded.host.MEMORY", deep)
    with ReaderHost(backend=lambda: kinesis) as host:
        assert host.socket_path is None
        start = kinesis.trim_horizon("s")
        ranges = ranges_between(start, end_of(host, start))
        assert sum(batch.num_rows for batch in read_ranges(host.address, host.security, "q", ranges)) == 10


def test_what_a_killed_host_left_goes_with_the_next_start_at_once(folder: Path, kinesis: FakeKinesis) -> None:
    """Its lock ended with it: the folder's age does not matter, and a living host's folder is not touched."""
    script = f"""
import os, signal
from pathlib import Path
from penstock.efo_consumer import ReaderHost
from penstock.efo_consumer._embedded import host
from penstock.efo_consumer.testing import FakeKinesis

host.MEMORY = Path({str(folder)!r})
started = ReaderHost(backend=FakeKinesis).start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    with ReaderHost(backend=lambda: kinesis) as first:
        assert first.socket_path is not None
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
        (left,) = find_leftovers([folder])
        assert left.path.is_dir()
        with ReaderHost(backend=lambda: kinesis) as second:
            assert second.socket_path is not None
            assert set(folder.iterdir()) == {first.socket_path.parent, second.socket_path.parent}
