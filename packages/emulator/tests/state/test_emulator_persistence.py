"""What an emulator with `persist` brings back."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from botocore.config import Config
from botocore.exceptions import HTTPClientError

from penstock.emulator import EmulatorStartError, JournalError, KinesisEmulator
from penstock.emulator._persist.journal import Journal, frame
from penstock.emulator.testing import ManualClock, running_emulator, start_emulator_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.emulator.testing import EmulatorProcess, RunningEmulator

ONCE = Config(retries={"total_max_attempts": 1})
FIRST = "shardId-000000000000"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@contextlib.contextmanager
def emulator(path: Path, clock: ManualClock | None = None, **options: Any) -> Iterator[RunningEmulator]:
    with running_emulator(clock=clock, persist=path, tls=False, enforce_limits=False, **options) as running:
        yield running


def put(client: Any, *keys: str, stream: str = "stream") -> list[str]:
    records = [{"Data": key.encode(), "PartitionKey": key} for key in keys]
    return [result["SequenceNumber"] for result in client.put_records(StreamName=stream, Records=records)["Records"]]


def read(client: Any, stream: str = "stream", shards: list[str] | None = None) -> list[dict[str, Any]]:
    """The records of some or all shards, shard by shard."""
    found: list[dict[str, Any]] = []
    for shard in shards or [shard["ShardId"] for shard in client.list_shards(StreamName=stream)["Shards"]]:
        iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
            "ShardIterator"
        ]
        while iterator is not None:
            answer = client.get_records(ShardIterator=iterator)
            found += answer["Records"]
            iterator = answer.get("NextShardIterator") if answer["Records"] else None
    return found


def described(client: Any, stream: str = "stream") -> list[Any]:
    arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
    return [
        client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"],
        client.list_shards(StreamName=stream)["Shards"],
        client.list_stream_consumers(StreamARN=arn)["Consumers"],
    ]


def test_everything_is_there_again(path: Path) -> None:
    """Streams, lineage, consumers and records, with the same ARNs, sequence numbers and times; twice."""
    clock = ManualClock()
    with emulator(path, clock) as first:
        client = first.client()
        client.create_stream(StreamName="stream", ShardCount=2)
        arn = client.describe_stream_summary(StreamName="stream")["StreamDescriptionSummary"]["StreamARN"]
        client.register_stream_consumer(StreamARN=arn, ConsumerName="consumer")
        put(client, *"abc")
        client.split_shard(StreamName="stream", ShardToSplit=FIRST, NewStartingHashKey=str(2**125))
        put(client, *"defg")
        client.merge_shards(
            StreamName="stream", ShardToMerge="shardId-000000000002", AdjacentShardToMerge="shardId-000000000003"
        )
        clock.advance(10)
        before = described(client), read(client)
    for restart in range(2):
        with emulator(path, clock) as again:
            client = again.client()
            assert (described(client), read(client)) == before
            written = client.put_record(StreamName="stream", Data=b"after", PartitionKey=f"restart {restart}")
            numbers = [record["SequenceNumber"] for record in read(client, shards=[written["ShardId"]])]
            assert (numbers[-1], numbers) == (written["SequenceNumber"], sorted(numbers))
            client.register_stream_consumer(StreamARN=arn, ConsumerName=f"consumer-{restart}")
            clock.advance(10)
            before = described(client), read(client)


def test_settings_and_what_was_trimmed_are_as_they_were(path: Path) -> None:
    """Retention, tags, encryption, the maximum record size and the mode stay; what was lost stays lost."""
    clock = ManualClock()
    with emulator(path, clock, operation_limits={}) as first:
        client = first.client()
        client.create_stream(StreamName="stream", ShardCount=1, MaxRecordSizeInKiB=2048, Tags={"team": "flights"})
        put(client, "lost")
        clock.advance(40 * 3600)
        client.increase_stream_retention_period(StreamName="stream", RetentionPeriodHours=48)
        client.start_stream_encryption(StreamName="stream", EncryptionType="KMS", KeyId="alias/key")
        put(client, "kept")
        before = described(client), read(client)
        assert [record["Data"] for record in before[1]] == [b"kept"]
    with emulator(path, clock) as again:
        client = again.client()
        assert (described(client), read(client)) == before
        assert before[0][0]["RetentionPeriodHours"] == 48
        assert client.list_tags_for_stream(StreamName="stream")["Tags"] == [{"Key": "team", "Value": "flights"}]
        clock.advance(49 * 3600)
    with emulator(path, clock) as third:
        assert read(third.client()) == []


def test_a_deleted_stream_stays_away(path: Path) -> None:
    """Neither it nor its records come back, also when another has its name."""
    clock = ManualClock()
    with emulator(path, clock) as first:
        client = first.client()
        for name in ("stream", "other"):
            client.create_stream(StreamName=name, ShardCount=1)
            put(client, "old", stream=name)
            client.delete_stream(StreamName=name)
        clock.advance(1)
        client.create_stream(StreamName="stream", ShardCount=1)
        put(client, "new")
    with emulator(path, clock) as again:
        client = again.client()
        assert client.list_streams()["StreamNames"] == ["stream"]
        assert [record["Data"] for record in read(client)] == [b"new"]


def test_iterators_and_continuations_outlive_the_process(path: Path) -> None:
    """A reader goes on where it was, and a number that was given out for progress is never a record's."""
    clock = ManualClock()
    with emulator(path, clock) as first:
        client = first.client()
        client.create_stream(StreamName="stream", ShardCount=1)
        put(client, "a")
        iterator = client.get_shard_iterator(StreamName="stream", ShardId=FIRST, ShardIteratorType="LATEST")
        idle = first.call(lambda: first.kinesis.streams["stream"].shards[0].advance(clock.time()))
    with emulator(path, clock) as again:
        client = again.client()
        assert client.get_records(ShardIterator=iterator["ShardIterator"])["Records"] == []
        written = put(client, "b")
        after = client.get_shard_iterator(
            StreamName="stream",
            ShardId=FIRST,
            ShardIteratorType="AFTER_SEQUENCE_NUMBER",
            StartingSequenceNumber=idle,
        )
        records = client.get_records(ShardIterator=after["ShardIterator"])["Records"]
        assert [record["SequenceNumber"] for record in records] == written


def test_a_journal_of_deleted_streams_is_written_anew(path: Path) -> None:
    """The next start keeps only what is still there."""
    with emulator(path) as first:
        client = first.client()
        client.create_stream(StreamName="stream", ShardCount=1)
        client.put_record(StreamName="stream", Data=bytes(500_000), PartitionKey="a")
        client.delete_stream(StreamName="stream")
        client.create_stream(StreamName="left", ShardCount=1)
        put(client, "b", stream="left")
    assert path.stat().st_size > 500_000
    with emulator(path) as again:
        assert path.stat().st_size < 10_000
        assert [record["Data"] for record in read(again.client(), "left")] == [b"b"]
    with emulator(path) as third:
        assert [record["Data"] for record in read(third.client(), "left")] == [b"b"]


def test_a_record_that_cannot_be_kept_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is answered with an error, no reader sees the record, and what was acknowledged stays."""
    full = False
    append = Journal.append

    def fill_up(self: Journal, frames: Any) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, frames)

    monkeypatch.setattr(Journal, "append", fill_up)
    with emulator(path) as first:
        client = first.client(config=ONCE)
        client.create_stream(StreamName="stream", ShardCount=1)
        put(client, "a")
        full = True
        with pytest.raises(client.exceptions.ClientError, match="No space left") as caught:
            put(client, "b", "c")
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
        with pytest.raises(client.exceptions.ClientError, match="No space left"):
            client.create_stream(StreamName="second", ShardCount=1)
        assert [record["Data"] for record in read(client)] == [b"a"]
        full = False
        put(client, "d")
    with emulator(path) as again:
        client = again.client()
        assert [record["Data"] for record in read(client)] == [b"a", b"d"]
        # Its creation was refused, but it was there for all to see, so it is kept as soon as that is possible.
        assert client.list_streams()["StreamNames"] == ["second", "stream"]


def test_a_kill_loses_no_acknowledged_record(path: Path) -> None:
    """kill -9 under load: all that was answered is there after a restart, each record once, in order."""
    acknowledged: list[str] = []
    for _ in range(2):
        with start_process(path) as process:
            client = process.client(config=Config(retries={"total_max_attempts": 1}, max_pool_connections=4))
            if not acknowledged:
                client.create_stream(StreamName="stream", ShardCount=2)
            writers = [threading.Thread(target=write_on, args=(client, acknowledged)) for _ in range(4)]
            wanted = len(acknowledged) + 2000
            for writer in writers:
                writer.start()
            while len(acknowledged) < wanted:
                writers[0].join(0.01)
                assert writers[0].is_alive()
            process.process.kill()
            for writer in writers:
                writer.join()
    with start_process(path) as process:
        found = [record["SequenceNumber"] for record in read(process.client())]
    assert set(acknowledged) <= set(found)
    assert len(set(found)) == len(found)


def write_on(client: Any, acknowledged: list[str]) -> None:
    keys = [f"key-{number}" for number in range(20)]
    with contextlib.suppress(HTTPClientError, ConnectionError):
        while True:
            acknowledged += put(client, *keys)


@contextlib.contextmanager
def start_process(path: Path) -> Iterator[EmulatorProcess]:
    with start_emulator_process("--persist", str(path), "--no-enforce-limits", "--no-tls") as process:
        yield process


def test_a_torn_journal_loses_its_torn_end_only(path: Path) -> None:
    """A write that the end of the process cut in two was never acknowledged; all before it is there."""
    with emulator(path) as first:
        client = first.client()
        client.create_stream(StreamName="stream", ShardCount=1)
        put(client, "a")
        put(client, "b")
    os.truncate(path, path.stat().st_size - 7)
    with emulator(path) as again:
        client = again.client()
        assert [record["Data"] for record in read(client)] == [b"a"]
        put(client, "c")
    with emulator(path) as third:
        assert [record["Data"] for record in read(third.client())] == [b"a", b"c"]


def test_a_damaged_journal_is_told_on_one_line(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The command does not start, and says which file is wrong, without a traceback."""
    path.write_text("not a journal")
    with pytest.raises(EmulatorStartError) as caught, start_process(path):
        pytest.fail("it started")
    assert caught.value.exit_code == 1
    errors = capfd.readouterr().err
    assert str(path) in errors
    assert "Traceback" not in errors


async def test_an_entry_that_is_not_understood_is_an_error(path: Path) -> None:
    """A stream of another version is not left out without a word; an entry of an unknown kind is."""
    journal = Journal(path)
    list(journal.frames())
    journal.append([frame(msgspec.msgpack.encode(["novelty", 1]))])
    await journal.close()
    async with KinesisEmulator(persist=path, tls=False) as kinesis:
        assert kinesis.kinesis.streams == {}
    journal = Journal(path)
    list(journal.frames())
    journal.append([frame(msgspec.msgpack.encode(["stream", ["stream", 1.0], {"state": {}}]))])
    await journal.close()
    with pytest.raises(JournalError, match="cannot be read"):
        await KinesisEmulator(persist=path, tls=False).__aenter__()


def test_with_fsync_writes_are_answered(path: Path) -> None:
    """Answers wait for the disk, and come."""
    with emulator(path, persist_fsync=True) as first:
        client = first.client()
        client.create_stream(StreamName="stream", ShardCount=1)
        put(client, "a")
    with emulator(path) as again:
        assert [record["Data"] for record in read(again.client())] == [b"a"]


def test_a_failed_fsync_acknowledges_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is cut instead of an answer, and writes are refused from then on."""
    fsync = os.fsync
    broken = False

    def fail(fd: int) -> None:
        if broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail)
    with emulator(path, persist_fsync=True) as first:
        client = first.client(config=ONCE)
        client.create_stream(StreamName="stream", ShardCount=1)
        put(client, "a")
        broken = True
        with pytest.raises(HTTPClientError):
            put(client, "b")
        broken = False
        with pytest.raises(client.exceptions.ClientError, match="failed before"):
            put(client, "c")
        assert b"a" in [record["Data"] for record in read(client)]
    with emulator(path) as again:
        assert read(again.client())[0]["Data"] == b"a"


def test_without_locks_of_files_it_answers_and_keeps_nothing(tmp_path: Path) -> None:
    """As on Windows: it imports and serves; a folder to keep streams in is refused, with why."""
    script = (
        "import sys\nsys.modules['fcntl'] = None\n"
        "from penstock.emulator.errors import JournalError\n"
        "from penstock.emulator.testing import running_emulator\n"
        "with running_emulator(tls=False) as emulator:\n"
        "    emulator.client().create_stream(StreamName='flights', ShardCount=1)\n"
        "try:\n    running_emulator(tls=False, persist=__import__('pathlib').Path(sys.argv[1])).__enter__()\n"
        "except JournalError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "streams")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "files cannot be locked on this system" in done.stdout
