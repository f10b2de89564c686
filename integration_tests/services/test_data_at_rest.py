"""What is left on disk can be read by nobody but its owner, whatever the umask, and lies where it was told to lie."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from integration_tests.security_tools import CONTRACTS, TOKEN, ask, call_any, raw_channel, running
from penstock.efo_consumer import ShardPosition, SqliteCheckpointStore, StreamPositions
from penstock.operator_attributes import SqliteJobStore
from penstock.registration import SqliteLeaseStore


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def names_below(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*")]


def shown(folder: Path) -> dict[str, str]:
    """Files that somebody else could read."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return {str(path): oct(mode) for path in files if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077}


async def test_the_registrys_leases_are_private(tmp_path: Path) -> None:
    """In SQLite, with the files that belong to it."""
    store = SqliteLeaseStore(tmp_path / "registry.sqlite")
    await store.list()
    assert shown(tmp_path) == {}
    await store.close()


def test_the_schedulers_jobs_are_private(tmp_path: Path) -> None:
    """In SQLite, with the files that belong to it."""
    store = SqliteJobStore(tmp_path / "stages.sqlite")
    store.load()
    assert shown(tmp_path) == {}
    store.close()


async def test_checkpoints_are_private(tmp_path: Path) -> None:
    """Of consumers without Spark, in SQLite."""
    store = SqliteCheckpointStore(tmp_path / "checkpoints.sqlite")
    claim = await store.claim("job", ["flights"], "me")
    await store.save(claim, StreamPositions({"flights": {"shardId-000000000000": ShardPosition.trim_horizon()}}))
    assert shown(tmp_path) == {}


@pytest.mark.parametrize("name", CONTRACTS)
def test_no_name_that_a_client_sends_becomes_a_file_elsewhere(name: str, tmp_path: Path) -> None:
    """Every text of every message says to leave the folder; what the service has made are its own files."""
    home = tmp_path / "a" / "b" / "home"
    home.mkdir(parents=True)
    evil = ["../../../evil", str(tmp_path / "evil"), "..\\..\\evil", "evil\0", "file:///evil"]
    with running(name, home, TOKEN=TOKEN, ENDPOINT_URL="http://127.0.0.1:9") as service:
        with raw_channel(service.address) as channel:
            for method in service.methods:
                for text in evil:
                    # Any field that is a text, in any message: those of other types are skipped as unknown.
                    field = b"".join(
                        bytes([one.number << 3 | 2, len(text)]) + text.encode()
                        for one in method.input_type.fields
                        if one.type == one.TYPE_STRING and one.number < 16
                    )
                    code, _ = call_any(channel, method, [field], timeout=0.5)
                    assert code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAUTHENTICATED)
            assert ask(channel, service.quick())[0] is grpc.StatusCode.OK
        assert [name for name in names_below(tmp_path) if "evil" in name] == []
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
        assert not Path("/evil").exists()
        assert not Path("evil").exists()
