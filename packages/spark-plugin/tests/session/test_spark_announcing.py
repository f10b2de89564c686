"""A query's readers are announced: to the registry, or in files of this user; and withdrawn at its end."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from penstock.efo_consumer import (
    EfoConsumerError,
    ReaderHost,
    RemoteShardReader,
    ShardCondition,
    ShardState,
    ShardStats,
)
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import AnnouncedReader, ReaderFiles, RemoteReaderDirectory
from penstock.rpc import ClientSecurity
from penstock.rpc.testing import service_process
from penstock.spark_plugin import ExecutorReader
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._reading.executors import fleet_file as fleet_module
from penstock.spark_plugin._reading.executors.fleet_file import FleetFile
from penstock.spark_plugin._reading.initial_positions import initial_positions
from penstock.spark_plugin._reading.session import announcing as announcing_module
from penstock.spark_plugin._reading.session.announcing import described
from penstock.spark_plugin._reading.session.session import ReadingSession
from penstock.spark_plugin.testing import endpoint_options


def opened(kinesis: RunningEmulator, shards: int = 1, **options: str) -> ReadingSession:
    kinesis.client().create_stream(StreamName="announced", ShardCount=shards)
    given = endpoint_options(kinesis.endpoint_url, "announced", **{"recordPublisher": "polling", **options})
    parsed = KinesisOptions.parse({"initialPosition": "TRIM_HORIZON", **given}, environ={})
    return ReadingSession(parsed, initial_positions(parsed))


@pytest.fixture
def kinesis() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        yield running


def first(listed: Callable[[], Sequence[AnnouncedReader]]) -> AnnouncedReader:
    """The reader that is announced with its shards, once there is one."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        found = listed()
        if found and found[0].shards:
            return found[0]
        time.sleep(0.02)
    raise AssertionError("nothing was announced")


def of_this_user() -> Sequence[AnnouncedReader]:
    async def ask() -> Sequence[AnnouncedReader]:
        return await ReaderFiles().readers()

    return asyncio.run(ask())


def test_a_query_without_a_registry_is_found_by_this_user(
    kinesis: RunningEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a file that goes with the query; its token lists the session and reads nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    session = opened(kinesis, jobId="delays")
    try:
        reader = first(of_this_user)
        assert (reader.job_id, reader.stream_names, reader.address) == ("delays", ("announced",), session.address)

        async def look() -> list[str]:
            remote = RemoteShardReader(reader.address, ClientSecurity(token=reader.view_token))
            try:
                with pytest.raises(EfoConsumerError):
                    await remote.stats(session.session_id)
                return [one.session_id for one in await remote.sessions()]
            finally:
                await remote.aclose()

        assert asyncio.run(look()) == [session.session_id]
    finally:
        session.close()
    assert not of_this_user()


@pytest.mark.parametrize(
    "options", [{}, {"recordPublisher": "efo", "efoConsumerName": "delays"}], ids=["polling", "efo"]
)
def test_a_query_with_a_registry_is_found_there(
    kinesis: RunningEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """And not in a file, also one that polls and has no lease; when it ends it is withdrawn at once."""
    pytest.importorskip("penstock.services.consumer_registry")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = ("--store", f"sqlite://{tmp_path}/registry.db", "--region", "us-east-1", "--grace-seconds", "0")
    environment = os.environ | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    arguments = ["serve", "--port", "0", *place, "--endpoint-url", kinesis.endpoint_url]
    with service_process("penstock.services.consumer_registry", arguments, environment) as service:

        def listed() -> Sequence[AnnouncedReader]:
            async def ask() -> Sequence[AnnouncedReader]:
                directory = RemoteReaderDirectory(service.address)
                try:
                    return await directory.readers()
                finally:
                    await directory.close()

            return asyncio.run(ask())

        session = opened(kinesis, 1, registryEndpoint=service.address, **options)
        try:
            assert first(listed).address == session.address
            assert not of_this_user()
        finally:
            session.close()
        assert not listed()


def test_readers_on_executors_are_announced_by_the_query_that_reads_by_them(
    kinesis: RunningEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    """Each with its address and shards; one that leaves is withdrawn. No token leaves the session."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(announcing_module, "_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(fleet_module, "spark_files_folder", lambda: tmp_path)
    aws = aws_options(KinesisOptions.parse(endpoint_options(kinesis.endpoint_url, "announced"), environ={}))
    token = "a-token-of-this-session-alone-with-32-characters"
    with ReaderHost(aws=aws, token=token) as one, ReaderHost(aws=aws, token=token) as two:
        file = FleetFile(tmp_path, one.security)

        def there(*hosts: ReaderHost) -> None:
            file.write([ExecutorReader(at, each.address, None, "127.0.0.1", 1) for at, each in enumerate(hosts)])

        def shards() -> dict[str, int]:
            return {reader.address: reader.shards for reader in of_this_user()}

        there(one, two)
        session = opened(kinesis, shards=8, jobId="delays")
        try:
            until(lambda: sum(shards().values()) == 8, "not all shards are announced")
            assert shards().keys() == {one.address, two.address}
            assert {(reader.job_id, reader.view_token) for reader in of_this_user()} == {("delays", "")}
            named = {shard.shard_id for reader in of_this_user() for shard in reader.worst_shards}
            assert named == {f"shardId-{number:012}" for number in range(8)}
            there(one)
            begin = initial_positions(session._options)
            until(lambda: bool(session.positions(begin)) and shards() == {one.address: 8}, "one that left is announced")
            files = "".join(path.read_text() for path in (tmp_path / "penstock").rglob("*.json"))
            assert one.address in files
            assert not any(secret in files for secret in (token, one.view_token, two.view_token))
        finally:
            session.close()
        assert not of_this_user()


@pytest.mark.parametrize(
    ("lags", "states", "lag", "words"),
    [
        ((5, 70), (ShardState.READING, ShardState.CAUGHT_UP), 70, "caught up; reading"),
        ((5, -1), (ShardState.READING, ShardState.READING), -1, "reading"),
        ((5, 900), (ShardState.READING, ShardState.ENDED), 5, "ended; reading"),
        ((5, 9), (ShardState.READING, ShardState.THROTTLED), 9, "throttled: too many calls"),
        ((), (), -1, ""),
    ],
)
def test_announcement_has_the_worst_shards(
    lags: tuple[int, ...], states: tuple[ShardState, ...], lag: int, words: str
) -> None:
    reader = AnnouncedReader(job_id="j", reader_id="r", address="a:1", view_token="x" * 32)
    stats = [
        ShardStats(
            "flights",
            f"s{number}",
            millis,
            0,
            0,
            1,
            0,
            0,
            0,
            condition=ShardCondition(state, cause="too many calls" if state is ShardState.THROTTLED else ""),
        )
        for number, (millis, state) in enumerate(zip(lags, states, strict=True))
    ]
    told = described(reader, stats)
    assert (told.millis_behind_latest, told.condition, told.worst_shards) == (lag, words, ())
