"""What every LeaseStore does, and what SQLite adds."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from registry_homes import OpenStore, known

from penstock.registration import ConsumerRecord, Holding, LeaseStore, RegistrationPhase, Renewal, SqliteLeaseStore
from penstock.registration._lease import rules
from penstock.registration.errors import LeaseStoreError

HOLDING = Holding(
    job_id="job", fencing_token=7, acquired_at=1.5, renewed_at=2.25, time_to_live_seconds=30.0, claim="run-1"
)


def new_record(stream_arn: str = "flights", consumer_name: str = "delays", **fields: Any) -> ConsumerRecord:
    return ConsumerRecord(stream_arn=stream_arn, consumer_name=consumer_name, created_at=1.0, **fields)


def renewal(
    stream_arn: str = "flights",
    consumer_name: str = "delays",
    job_id: str = "job",
    fencing_token: int = 7,
    at: float = 20.0,
) -> Renewal:
    return Renewal(
        stream_arn=stream_arn, consumer_name=consumer_name, job_id=job_id, fencing_token=fencing_token, at=at
    )


@pytest.fixture(params=["memory", "sqlite", "dynamodb"])
async def store(request: pytest.FixtureRequest, open_store: OpenStore) -> LeaseStore:
    return open_store(request.param)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"holding": HOLDING, "fencing_token": 7, "phase": RegistrationPhase.REGISTERING, "registering_token": 7},
        {
            "phase": RegistrationPhase.REGISTERED,
            "consumer_arn": "arn",
            "registration_is_ours": True,
            "idle_since": 0.0,
            "ended_token": 5,
        },
    ],
)
async def test_every_field_comes_back_as_written(store: LeaseStore, fields: dict[str, Any]) -> None:
    """With the version counted up."""
    record = new_record(**fields)
    assert await store.write(record)
    assert await store.get("flights", "delays") == replace(record, version=1)


async def test_a_write_with_an_old_version_is_refused(store: LeaseStore) -> None:
    """A registry that read before another registry wrote must read again."""
    await store.write(new_record(fencing_token=1))
    read = known(await store.get("flights", "delays"))
    assert await store.write(replace(read, fencing_token=2))
    assert not await store.write(replace(read, fencing_token=3))
    assert not await store.write(new_record(fencing_token=4))
    assert known(await store.get("flights", "delays")).fencing_token == 2


async def test_a_renewal_prolongs_the_newest_lease(store: LeaseStore) -> None:
    """From the moment that it names, by the lease's own time to live; whoever read before must read again."""
    await store.write(new_record(fencing_token=7, holding=HOLDING))
    read = known(await store.get("flights", "delays"))
    assert await store.renew(renewal(at=20.5)) == 30.0
    renewed = known(await store.get("flights", "delays"))
    assert renewed == replace(read, version=2, holding=replace(HOLDING, renewed_at=20.5))
    assert renewed.holding == known(rules.renew(read, job_id="job", fencing_token=7, now=20.5)).holding
    assert not await store.write(replace(read, fencing_token=8))


@pytest.mark.parametrize("stranger", [{"job_id": "other"}, {"fencing_token": 6}, {"consumer_name": "unheard-of"}])
async def test_a_renewal_of_a_lease_that_is_not_the_newest_changes_nothing(
    store: LeaseStore, stranger: dict[str, Any]
) -> None:
    await store.write(new_record(fencing_token=7, holding=HOLDING))
    assert await store.renew(renewal(**stranger)) is None
    assert known(await store.get("flights", "delays")).version == 1


async def test_of_writers_at_once_one_wins(store: LeaseStore) -> None:
    """No update is lost: the counter ends where the sum of all increments is."""

    async def increment() -> None:
        while True:
            read = await store.get("flights", "delays") or new_record()
            if await store.write(replace(read, fencing_token=read.fencing_token + 1)):
                return

    await asyncio.gather(*(increment() for _ in range(20)))
    assert known(await store.get("flights", "delays")).fencing_token == 20


@pytest.mark.parametrize("kind", ["sqlite", "dynamodb"])
async def test_registries_of_different_endpoints_share_a_store_but_no_records(open_store: OpenStore, kind: str) -> None:
    one, other = open_store(kind, namespace="https://one"), open_store(kind, namespace="https://other")
    await one.write(new_record(fencing_token=5))
    assert await other.list() == []
    assert await other.get("flights", "delays") is None
    assert await other.write(new_record(fencing_token=1))
    assert known(await one.get("flights", "delays")).fencing_token == 5


async def test_stored_rows_keep_their_column_order(tmp_path: Path) -> None:
    store = SqliteLeaseStore(tmp_path / "leases.db")
    assert await store.list() == []  # makes the file
    row = "'','flights','delays',5,7,1.0,'registered','arn:c',1,0,'job',7,1.5,2.25,30.0,NULL,2,'run-1'"
    with sqlite3.connect(tmp_path / "leases.db") as connection:
        connection.execute(f"INSERT INTO consumers VALUES ({row})")
    registered: Any = {"phase": "registered", "consumer_arn": "arn:c", "registration_is_ours": True}
    record = new_record(version=5, fencing_token=7, ended_token=2, holding=HOLDING, **registered)
    assert await store.get("flights", "delays") == record
    await store.close()


async def test_sqlite_says_what_it_cannot_open(tmp_path: Path) -> None:
    """A file that is not a database is an error of this package, which names it."""
    path = tmp_path / "leases.db"
    path.write_bytes(b"not a database" * 100)
    store = SqliteLeaseStore(path)
    with pytest.raises(LeaseStoreError, match="not a database") as raised:
        await store.list()
    assert raised.value.store == str(path)
    await store.close()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("version", [3, 99])
async def test_sqlite_refuses_files_with_another_schema(tmp_path: Path, version: int, read_only: bool) -> None:
    path = tmp_path / "leases.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    store = SqliteLeaseStore(path, read_only=read_only)
    with pytest.raises(LeaseStoreError, match=f"schema {version}"):
        await store.list()
    await store.close()


async def test_a_store_that_was_closed_opens_again(open_store: OpenStore) -> None:
    """Also while another call closes it."""
    store = open_store("sqlite")
    for number in range(20):
        answers = await asyncio.gather(
            store.write(new_record(consumer_name=f"a{number}")), store.close(), store.write(new_record(f"b{number}"))
        )
        assert (answers[0], answers[2]) == (True, True)
    assert len(await store.list()) == 40


_INCREMENT = """
import asyncio, sys
from dataclasses import replace
from penstock.registration import ConsumerRecord, SqliteLeaseStore

async def main(path, count):
    store = SqliteLeaseStore(path)
    done = 0
    while done < count:
        read = await store.get("flights", "delays")
        read = read or ConsumerRecord(stream_arn="flights", consumer_name="delays", created_at=1.0)
        if await store.write(replace(read, fencing_token=read.fencing_token + 1)):
            done += 1
            print(read.fencing_token + 1, flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def increments(path: Path, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _INCREMENT, str(path), str(count)], stdout=subprocess.PIPE, text=True
    )


def test_no_update_is_lost_between_processes(tmp_path: Path) -> None:
    """Four processes on one new file: all tokens that they were given differ, and none is missing."""
    path = tmp_path / "leases.db"
    children = [increments(path, 25) for _ in range(4)]
    given = [int(line) for child in children for line in child.communicate(timeout=120)[0].split()]
    assert [child.returncode for child in children] == [0] * 4
    assert sorted(given) == list(range(1, 101))


async def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    """A process that is killed while it writes leaves a file that others read, with all answered writes."""
    path = tmp_path / "leases.db"
    child = increments(path, 1_000_000)
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(50)]
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = child.communicate()
    told += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    store = SqliteLeaseStore(path)
    record = known(await store.get("flights", "delays"))
    assert told[-1] <= record.fencing_token <= told[-1] + 1
    assert await store.write(replace(record, fencing_token=record.fencing_token + 1))
    await store.close()


async def test_sqlite_files_may_be_opened_for_the_first_time_by_many_at_once(tmp_path: Path) -> None:
    """No opener gets an error because another one sets the file up."""
    for attempt in range(10):
        stores = [SqliteLeaseStore(tmp_path / f"{attempt}.db") for _ in range(8)]
        assert await asyncio.gather(*(store.list() for store in stores)) == [[]] * 8
        await asyncio.gather(*(store.close() for store in stores))
