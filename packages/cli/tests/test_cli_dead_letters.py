"""`penstock dead-letters`: the dead letters of a Spark job, shown and written again."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.async_sink import TerminalReason, TerminalRecord
from penstock.cli import main
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin._writing.dead_letters import DeadLetterFile, DeadLetterFileHandler, letter
from penstock.spark_plugin._writing.records import WriteAttempt
from penstock.terminal.testing import run_main


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        for stream in ("flights", "delays"):
            running.client().create_stream(StreamName=stream, ShardCount=1)
        yield running


def run(emulator: RunningEmulator, command: str, path: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_KINESIS": emulator.endpoint_url,
    }
    done = run_main(main, ["dead-letters", command, str(path), *arguments], environ=environ)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def in_stream(emulator: RunningEmulator, stream: str) -> list[tuple[str, bytes]]:
    client = emulator.client()
    (shard,) = client.list_shards(StreamName=stream)["Shards"]
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    records = client.get_records(ShardIterator=iterator)["Records"]
    return [(one["PartitionKey"], one["Data"]) for one in records]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the plugin's own code writes it: two refused records that are alike, and a row without a key."""
    attempt = WriteAttempt(job="job", batch=1, partition=0, attempt=0)
    file = DeadLetterFile(tmp_path / "letters", attempt)
    refused = TerminalRecord(
        destination="flights",
        entry=_Entry(),
        record_number=0,
        size_in_bytes=9,
        attempts=3,
        reason=TerminalReason.REFUSED,
        error_code="KMSThrottlingException",
        error_message="too fast",
        history=(),
    )
    handler = DeadLetterFileHandler(file, "flights")
    handler.handle([refused, refused])
    file.add([letter(b"no key", {}, "delays", reason="row", error_message="its partition key is null")])
    file.commit()
    return tmp_path / "letters"


class _Entry:
    data = b"UA1545"
    partition_key = "EWR"
    explicit_hash_key = None


def test_letters_are_listed_and_shown(emulator: RunningEmulator, folder: Path) -> None:
    """By file, stream and cause; with what they hold."""
    flights, delays = rows(run(emulator, "ls", folder, "--json"))
    assert (flights["open"], flights["causes"]) == (2, {"KMSThrottlingException": 2})
    assert (delays["streamName"], delays["open"]) == ("delays", 1)
    (shown,) = rows(run(emulator, "show", folder, "--json", "--stream", "delays"))
    assert (shown["why"], shown["partitionKey"]) == ("its partition key is null", None)
    assert len(run(emulator, "show", folder, "--code", "KMSThrottlingException").stdout.splitlines()) == 2
    (folder / "other.json").write_text("{}\n")
    wrong = run(emulator, "ls", folder)
    assert (wrong.returncode, "other.json: line 1" in wrong.stderr) == (2, True)
    assert run(emulator, "ls", folder / "nothing").returncode == 2


def test_letters_are_redriven_once(emulator: RunningEmulator, folder: Path) -> None:
    """Shown first; then written, each once, and noted; the file stays, and what cannot be written stays open."""
    (file,) = folder.glob("*.json")
    before = file.read_text()
    shown = run(emulator, "redrive", folder)
    assert (shown.returncode, "would be written: 2" in shown.stdout) == (0, True)
    assert in_stream(emulator, "flights") == []
    done = run(emulator, "redrive", folder, "--execute", "--json")
    assert (done.returncode, "--key" in done.stderr) == (1, True)
    assert [(one["streamName"], one["written"]) for one in rows(done)] == [("flights", 2)]
    assert in_stream(emulator, "flights") == [("EWR", b"UA1545")] * 2
    again = run(emulator, "redrive", folder, "--execute", "--key", "unknown")
    assert again.returncode == 0, again.stderr
    assert in_stream(emulator, "delays") == [("unknown", b"no key")]
    assert len(in_stream(emulator, "flights")) == 2
    assert file.read_text() == before
    assert [one["open"] for one in rows(run(emulator, "ls", folder, "--json"))] == [0, 0]
    assert run(emulator, "show", folder).stdout == ""
    assert len(run(emulator, "show", folder, "--all").stdout.splitlines()) == 3


def test_what_is_refused_again_stays_a_letter(emulator: RunningEmulator, folder: Path) -> None:
    """And is reported, as is a stream that does not exist."""
    emulator.faults.add("throttle", operation="PutRecords", count=100)
    refused = run(emulator, "redrive", folder, "--execute", "--attempts", "1", "--stream", "flights")
    assert (refused.returncode, "failed: 2" in refused.stdout) == (1, True), refused.stderr
    nowhere = run(emulator, "redrive", folder, "--execute", "--to", "nothing", "--stream", "flights")
    assert (nowhere.returncode, "nothing" in nowhere.stderr) == (1, True)
    assert rows(run(emulator, "ls", folder, "--json"))[0]["open"] == 2
    silent = run(emulator, "redrive", folder, "--execute", "--attempts", "1", "--endpoint-url", "http://127.0.0.1:9")
    assert (silent.returncode, "AwsConnectionError" in silent.stderr) == (3, True), silent.stderr
    wrong = run(emulator, "redrive", folder, "--key", "\udcff")
    assert (wrong.returncode, "--key must be UTF-8" in wrong.stderr) == (2, True), wrong.stderr


def test_one_at_a_time_redrives_a_folder(emulator: RunningEmulator, folder: Path) -> None:
    """Two would write letters twice; and a link in place of what is written is not followed."""
    noted = folder / "_redriven"
    noted.mkdir()
    with (noted / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = run(emulator, "redrive", folder, "--execute")
    said = f"penstock dead-letters redrive: [DEAD_LETTERS_BUSY] {folder}: another process redrives these dead letters"
    assert (busy.returncode, busy.stderr.startswith(said)) == (1, True), busy.stderr
    assert in_stream(emulator, "flights") == []
    (noted / ".lock").unlink()
    noted.rmdir()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    noted.symlink_to(elsewhere)
    led = run(emulator, "redrive", folder, "--execute", "--stream", "flights")
    assert (led.returncode, "Not a directory" in led.stderr) == (2, True), led.stderr
    assert (in_stream(emulator, "flights"), list(elsewhere.iterdir())) == ([], [])


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _sparse_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


def _link(path: Path) -> None:
    (path.parent / "other").write_text("")
    path.symlink_to(path.parent / "other")


def _nested_json(path: Path) -> None:
    path.write_text("[" * 100_000)


def _not_utf8(path: Path) -> None:
    path.write_bytes(b"\xff\n")


def _stream_of_another_type(path: Path) -> None:
    letter = dict.fromkeys(("data", "partitionKey", "explicitHashKey")) | {"errorCode": "", "errorMessage": ""}
    path.write_text(json.dumps(letter | {"reason": "refused", "time": "", "streamName": ["flights"]}) + "\n")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "make", [_fifo, _sparse_file, _link, Path.mkdir, _nested_json, _not_utf8, _stream_of_another_type]
)
@pytest.mark.parametrize("place", ["letters", "notes"])
def test_a_file_that_is_not_of_letters_is_refused_by_its_name(
    emulator: RunningEmulator, folder: Path, make: Callable[[Path], None], place: str
) -> None:
    """Other users may write into the folder of letters, and into the folder of what was redriven."""
    (file,) = folder.glob("*.json")
    (folder / "_redriven").mkdir()
    # The name sorts before the letters, so that nothing is sent.
    odd = folder / "a.json" if place == "letters" else folder / "_redriven" / file.name
    make(odd)
    for command in (["ls"], ["show"], ["redrive"], ["redrive", "--execute"]):
        tracemalloc.start()
        done = run(emulator, command[0], folder, *command[1:])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 200 << 20
        if place == "notes" and make in (_nested_json, _not_utf8, _stream_of_another_type):
            continue  # notes are compared by their bytes
        assert done.returncode != 0
        assert ("DEAD_LETTER_FILE" in done.stderr, str(odd) in done.stderr) == (True, True), done.stderr
        assert in_stream(emulator, "flights") == []
