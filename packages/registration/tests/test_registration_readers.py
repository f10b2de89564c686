"""The readers inside drivers: announced, listed and forgotten, at a service and in files of one user."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.registration import (
    MOST_ANNOUNCED_SHARDS,
    READERS_SERVICE_NAME,
    AnnouncedReader,
    AnnouncedShard,
    KnownReaders,
    ReaderDirectory,
    ReaderDirectoryServicer,
    ReaderFiles,
    RemoteReaderDirectory,
)
from penstock.registration.errors import RegistrationError, RegistrationOptionError, RegistryUnavailableError
from penstock.registration.testing import ManualClock
from penstock.rpc import ClientSecurity, GrpcServer, ServerSecurity, ServerSettings

READER = AnnouncedReader(
    job_id="delays",
    reader_id="r1",
    address="driver.internal:40001",
    view_token="only-for-a-look-1-with-32-characters",
    query="delays",
    owner="host a, process 7",
    stream_names=("flights",),
    shards=4,
    troubled_shards=1,
    millis_behind_latest=1_500,
    condition="throttled: too many calls",
)


@asynccontextmanager
async def _service(
    clock: ManualClock, security: ServerSecurity | None = None, **options: Any
) -> AsyncIterator[GrpcServer]:
    servicer = ReaderDirectoryServicer(KnownReaders(clock=clock, **options))
    settings = ServerSettings(security=security or ServerSecurity(), drain_seconds=0)
    server = GrpcServer(settings, register=[servicer.add_to], service_names=[READERS_SERVICE_NAME])
    async with server:
        yield server


@pytest.fixture(params=["service", "files"])
async def directory(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[ReaderDirectory]:
    if request.param == "files":
        yield ReaderFiles(tmp_path / "readers", wall_clock=lambda: 1_700_000_000.0 + clock())
        return
    async with _service(clock) as server:
        remote = RemoteReaderDirectory(server.address)
        yield remote
        await remote.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_a_reader_is_listed_as_it_was_announced_last(directory: ReaderDirectory, clock: ManualClock) -> None:
    await directory.announce(replace(READER, condition="reading"))
    clock.advance(5)
    assert await directory.announce(READER) == 20.0
    clock.advance(2)
    assert await directory.readers() == [replace(READER, age_seconds=7.0, silent_seconds=2.0)]


async def test_a_reader_that_is_not_to_be_asked_names_its_worst_shards(directory: ReaderDirectory) -> None:
    """With their numbers, and no more than fit."""
    shard = AnnouncedShard(
        stream_name="flights",
        shard_id="shardId-000000000007",
        millis_behind_latest=90_000,
        records=12,
        bytes=3_400,
        buffered_bytes=56,
        replays=7,
        losses=8,
        state="throttled",
        since_millis=1_700_000_000_000,
        cause="too many calls",
    )
    reader = replace(READER, view_token="", worst_shards=(shard,) * MOST_ANNOUNCED_SHARDS)
    await directory.announce(reader)
    (found,) = await directory.readers()
    assert found.worst_shards == reader.worst_shards
    with pytest.raises(RegistrationOptionError, match="worst_shards"):
        replace(reader, worst_shards=(replace(shard, stream_name="payments"),))


async def test_an_announcement_that_breaks_the_contract_is_refused_by_the_field(clock: ManualClock) -> None:
    """Texts for people are shortened by the client; names are not, and neither are lists."""
    shard = AnnouncedShard(stream_name="flights", shard_id="s", cause="€" * 2_000)
    async with _service(clock) as server, RemoteReaderDirectory(server.address) as remote:
        for wrong in (
            replace(READER, worst_shards=(shard,) * (MOST_ANNOUNCED_SHARDS + 1)),
            replace(READER, stream_names=("s",) * 1_001),
        ):
            with pytest.raises(RegistrationOptionError) as raised:
                await remote.announce(wrong)
            assert raised.value.option in ("reader.worst_shards", "reader.stream_names")
        await remote.announce(replace(READER, condition="x" * 2_000, worst_shards=(shard,)))
        (found,) = await remote.readers()
    assert found.condition == "x" * 1_021 + "…"
    assert found.worst_shards[0].cause == "€" * 340 + "…"


async def test_a_reader_that_is_silent_is_forgotten(directory: ReaderDirectory, clock: ManualClock) -> None:
    await directory.announce(READER)
    clock.advance(19)
    assert len(await directory.readers()) == 1
    clock.advance(2)
    assert await directory.readers() == []


async def test_a_reader_that_ends_is_forgotten_at_once_and_others_are_not(directory: ReaderDirectory) -> None:
    other = replace(READER, job_id="other", reader_id="r2")
    for one in (READER, other):
        await directory.announce(one)
    for _ in range(2):
        await directory.withdraw(READER)
    assert [one.job_id for one in await directory.readers()] == ["other"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("address", "unix:/tmp/socket"),
        ("address", "dns:///evil:1"),
        ("address", "host"),
        ("address", "a b:1"),
        ("job_id", ""),
        ("view_token", "short"),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RegistrationOptionError, match=field):
        replace(READER, **{field: value})


async def test_files_are_for_their_owner_alone_and_those_of_killed_drivers_go(tmp_path: Path) -> None:
    folder, now = tmp_path / "readers", [1_700_000_000.0]
    directory = ReaderFiles(folder, wall_clock=lambda: now[0])
    await directory.announce(READER)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]
    (folder / "nonsense.json").write_text("{")
    now[0] += 2 * 86_400
    await directory.announce(replace(READER, reader_id="r2"))
    assert [one.reader_id for one in await directory.readers()] == ["r2"]
    assert not (folder / "r1.json").exists()


async def test_readers_that_are_withdrawn_while_others_are_listed_are_no_trouble(tmp_path: Path) -> None:
    """Their files go between the listing of the folder and the reading of each."""
    leaving, listing = ReaderFiles(tmp_path), ReaderFiles(tmp_path)
    await listing.announce(READER)
    others = [replace(READER, reader_id=f"r2-{number}") for number in range(50)]

    async def come_and_go() -> None:
        for one in others:
            await leaving.announce(one)
        for one in others:
            await leaving.withdraw(one)

    with ThreadPoolExecutor(1) as threads:
        for _ in range(20):
            leaves = threads.submit(asyncio.run, come_and_go())
            while not leaves.done():
                assert READER.reader_id in [one.reader_id for one in await listing.readers()]
            leaves.result()
    assert [one.reader_id for one in await listing.readers()] == [READER.reader_id]


async def test_a_missing_folder_has_no_readers_and_an_unwritable_one_is_an_error(tmp_path: Path) -> None:
    assert await ReaderFiles(tmp_path / "none").readers() == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryUnavailableError, match="file"):
        await ReaderFiles(tmp_path / "file" / "readers").announce(READER)


async def test_a_service_with_tokens_refuses_strangers(clock: ManualClock) -> None:
    security = ServerSecurity(token="a-token-of-these-tests-with-32-characters")
    async with _service(clock, security) as server:
        right = RemoteReaderDirectory(server.address, ClientSecurity(token="a-token-of-these-tests-with-32-characters"))
        wrong = RemoteReaderDirectory(server.address, ClientSecurity(token="another-of-these-tests-with-32-characters"))
        await right.announce(READER)
        with pytest.raises(RegistrationError) as raised:
            await wrong.readers()
        assert raised.value.code == "REGISTRY_ACCESS"
        assert len(await right.readers()) == 1
        for one in (right, wrong):
            await one.close()


def test_the_token_is_not_in_what_is_logged() -> None:
    assert READER.view_token not in repr(READER)


async def test_announcements_are_in_the_audit_log(clock: ManualClock, tmp_path: Path) -> None:
    servicer = ReaderDirectoryServicer(KnownReaders(clock=clock))
    settings = ServerSettings(audit_log=str(tmp_path / "audit"), drain_seconds=0)
    async with (
        GrpcServer(settings, register=[servicer.add_to], service_names=[READERS_SERVICE_NAME]) as server,
        RemoteReaderDirectory(server.address) as remote,
    ):
        await remote.announce(READER)
        await remote.withdraw(READER)
        await remote.readers()
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [(line["event"], line["jobs"]) for line in lines] == [("announce", ["delays"]), ("withdraw", ["delays"])]
    assert all(READER.view_token not in str(line) for line in lines)
