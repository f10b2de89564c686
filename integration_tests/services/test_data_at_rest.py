"""Only their owner can read the files that Penstock leaves on disk, and no file is outside of its folder."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration_tests.security_tools import CONTRACTS, TOKEN, ask, call_any, raw_channel, running
from penstock.efo_consumer import ShardPosition, SqliteCheckpointStore, StreamPositions
from penstock.efo_consumer.errors import CheckpointError
from penstock.operator_attributes import SqliteJobStore
from penstock.operator_attributes.errors import JobStoreError
from penstock.registration import SqliteLeaseStore
from penstock.registration.errors import LeaseStoreError
from penstock.rpc import RpcOptionError
from penstock.rpc._server.audit import AuditLog
from penstock.spark_plugin._writing.dead_letters import DeadLetterFile, letter
from penstock.spark_plugin._writing.records import WriteAttempt


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


def use_leases(file: Path) -> None:
    async def use() -> None:
        store = SqliteLeaseStore(file)
        await store.list()
        await store.close()

    asyncio.run(use())


def use_jobs(file: Path) -> None:
    store = SqliteJobStore(file)
    store.load()
    store.close()


def use_checkpoints(file: Path) -> None:
    async def use() -> None:
        store = SqliteCheckpointStore(file)
        claim = await store.claim("job", ["flights"], "me")
        await store.save(claim, StreamPositions({"flights": {"shardId-000000000000": ShardPosition.trim_horizon()}}))

    asyncio.run(use())


def use_audit_log(file: Path) -> None:
    AuditLog(str(file), "registry").close()


def use_letters(file: Path) -> None:
    attempt = WriteAttempt(job="job", batch=1, partition=0, attempt=0)
    letters = DeadLetterFile(file.parent, attempt)
    letters.add([letter(b"secret", {}, "flights", reason="row")])
    if file.exists():
        file.rename(letters.path)
    letters.commit()


Use = Callable[[Path], None]
USES = [use_leases, use_jobs, use_checkpoints, use_audit_log, use_letters]
DATABASES = USES[:3]


@pytest.mark.parametrize("use", USES)
def test_new_files_are_private(use: Use, tmp_path: Path) -> None:
    """Databases, audit log, dead letters."""
    use(tmp_path / "file")
    assert shown(tmp_path) == {}


@pytest.mark.parametrize("use", USES)
def test_files_that_exist_become_private(use: Use, tmp_path: Path) -> None:
    """An earlier process, or a copy, made them readable for all users."""
    (tmp_path / "file").touch(0o644)
    use(tmp_path / "file")
    assert shown(tmp_path) == {}


@pytest.mark.parametrize("use", [use_leases, use_jobs])
def test_journals_of_a_killed_service_become_private(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite keeps recent changes, records included, in a file of its own beside the database."""
    use(tmp_path / "file")
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"file{suffix}").write_bytes(b"")
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    seen: list[dict[str, str]] = []
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def look_and_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        seen.append(shown(tmp_path))
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", look_and_connect)
    use(tmp_path / "file")
    assert seen == [{}]


@pytest.mark.parametrize("use", [*DATABASES, use_audit_log])
def test_files_whose_mode_cannot_be_set_are_refused(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They belong to another user, or their file system has no modes."""
    (tmp_path / "file").touch(0o666)
    monkeypatch.setattr(os, "fchmod", lambda *_: None)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    with pytest.raises((LeaseStoreError, JobStoreError, CheckpointError, RpcOptionError)) as caught:
        use(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)
    assert "chmod 0600" in str(caught.value)


@pytest.mark.parametrize("use", [*DATABASES, use_audit_log])
def test_links_and_fifos_are_refused(use: Use, tmp_path: Path) -> None:
    """A link would change the mode of a file elsewhere, and a FIFO would block."""
    (tmp_path / "elsewhere").touch(0o644)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("link", "fifo"):
        with pytest.raises((LeaseStoreError, JobStoreError, CheckpointError, RpcOptionError)):
            use(tmp_path / name)
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o644


def test_folders_that_are_made_are_private(tmp_path: Path) -> None:
    """The folders above the last one, too. A folder that exists keeps its mode."""
    tmp_path.chmod(0o755)
    use_leases(tmp_path / "a" / "b" / "file")
    use_jobs(tmp_path / "c" / "d" / "file")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()}
    assert modes == dict.fromkeys("abcd", 0o700)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


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
                    # Any text field in any message. Fields of other types are skipped as unknown.
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
