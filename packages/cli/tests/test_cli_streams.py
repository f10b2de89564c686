"""`penstock put` and `penstock streams` as people run them, against the emulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli.testing import Ended, run_in_terminal
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.terminal.testing import run_main

PENSTOCK = [sys.executable, "-m", "penstock.cli"]


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName="flights", ShardCount=2)
        yield running


def environment(emulator: RunningEmulator) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return variables | keys | {"AWS_ENDPOINT_URL_KINESIS": emulator.endpoint_url}


def run(emulator: RunningEmulator, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = run_main(main, arguments, environ=environment(emulator), given=given)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def at_terminal(emulator: RunningEmulator, *arguments: str, send: bytes, when: str) -> Ended:
    return run_in_terminal([*PENSTOCK, *arguments], environ=environment(emulator), send=send, when=when)


def records(emulator: RunningEmulator, stream: str = "flights") -> list[tuple[str, bytes]]:
    """Key and data of all records, shard by shard."""
    client, found = emulator.client(), []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator: str | None = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator is not None:
            page = client.get_records(ShardIterator=iterator)
            found += [(one["PartitionKey"], one["Data"]) for one in page["Records"]]
            iterator = page.get("NextShardIterator") if page["Records"] else None
    return found


def test_a_stream_is_created_and_can_be_used_at_once(emulator: RunningEmulator) -> None:
    """With shards or on demand, one of which has to be said; a name that is taken is refused."""
    done = run(emulator, "streams", "create", "orders", "--shards", "3")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "orders\t3 shards\tactive"), done.stderr
    assert run(emulator, "put", "orders", given=b"first\n").returncode == 0
    done = run(emulator, "streams", "create", "clicks", "--on-demand", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["mode"] == "ON_DEMAND", done.stderr
    done = run(emulator, "streams", "create", "orders", "--shards", "3")
    assert done.returncode == 1
    assert "ResourceInUseException" in done.stderr
    for wrong in ([], ["--shards", "0"], ["--shards", "1", "--on-demand"]):
        assert run(emulator, "streams", "create", "other", *wrong).returncode == 2


def test_lines_are_put_and_counted(emulator: RunningEmulator, tmp_path: Path) -> None:
    """From the standard input or files, with one key, keys of their own, or random ones; a last line needs no end."""
    done = run(emulator, "put", "flights", "--key", "EWR", given=b"first\nsecond\n\nlast")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 records, ")
    assert records(emulator) == [("EWR", b"first"), ("EWR", b"second"), ("EWR", b""), ("EWR", b"last")]
    (tmp_path / "a").write_bytes(b"JFK:\xff\x00\n")
    (tmp_path / "b").write_bytes(b"LGA:12:30\n")
    done = run(emulator, "put", "flights", str(tmp_path / "a"), str(tmp_path / "b"), "--key-separator", ":", "--json")
    assert {("JFK", b"\xff\x00"), ("LGA", b"12:30")} <= {*records(emulator)}
    said = json.loads(done.stdout)
    assert (said["records"], said["failed"], said["streamName"]) == (2, 0, "flights")
    many = b"".join(b"%d\n" % number for number in range(700))
    assert run(emulator, "put", "flights", given=many).returncode == 0
    put = [(key, data) for key, data in records(emulator) if data.isdigit()]
    assert sorted(int(data) for _, data in put) == list(range(700))
    assert len({key for key, _ in put}) == 700


def test_what_is_not_in_the_stream_is_told_and_is_code_1(emulator: RunningEmulator) -> None:
    """A line without a key, one that no record holds, and what Kinesis refuses: the others are written."""
    given = b"EWR=good\nno key\nLGA=" + b"x" * 1_100_000 + b"\nJFK=also good\n"
    done = run(emulator, "put", "flights", "--key-separator", "=", given=given)
    assert (done.returncode, "2 failed" in done.stdout) == (1, True), done.stderr
    assert "line 2: has no key" in done.stderr
    assert "line 3: 1100000 bytes" in done.stderr
    assert sorted(records(emulator)) == [("EWR", b"good"), ("JFK", b"also good")]
    emulator.faults.add("throttle", operation="PutRecords", count=100)
    done = run(emulator, "put", "flights", "--attempts", "2", given=b"one\ntwo\n")
    assert (done.returncode, "2 failed" in done.stdout) == (1, True), done.stderr
    assert "after 2 attempts" in done.stderr
    assert len(records(emulator)) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["put", "nothing"], 1, "nothing"),
        (["put"], 2, "are required: STREAM: see"),
        (["streams", "describe", "nothing"], 1, "penstock streams ls"),
        (["streams", "reshard", "nothing", "--shards", "2"], 1, "penstock streams create"),
        (["streams", "list"], 2, "did you mean ls?"),
        (["put", "flights", "/no/such/file"], 2, "/no/such/file"),
        (["put", "flights", "--key", ""], 2, "--key"),
        (["streams", "describe", "nothing"], 1, "nothing"),
        (["streams", "ls", "--endpoint-url", "http://127.0.0.1:9"], 3, "127.0.0.1:9"),
        (["put", "flights", "--endpoint-url", "http://127.0.0.1:9", "--attempts", "1"], 3, "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_a_code(
    emulator: RunningEmulator, arguments: list[str], code: int, word: str
) -> None:
    """Refused, wrong, or not reachable."""
    done = run(emulator, *arguments, given=b"x\n")
    assert (done.returncode, word in done.stderr) == (code, True), done.stderr


def test_an_interrupt_writes_what_was_read(emulator: RunningEmulator) -> None:
    """Ctrl+C ends a `put` that reads a terminal, with code 130, and without a traceback."""
    script = "import sys; print('ready', flush=True); from penstock.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "put", "flights", "--key", "k"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(emulator),
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"typed\n")
        process.stdin.flush()
        while not records(emulator):
            assert process.poll() is None
        process.send_signal(2)
        assert process.stderr is not None
        assert process.stdout is not None
        errors, out = process.stderr.read(), process.stdout.read()
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert b"1 record, " in out


def test_streams_are_listed_and_described(emulator: RunningEmulator) -> None:
    """A line each in a pipe, all facts as JSON, shares of the keys on a terminal."""
    emulator.client().create_stream(StreamName="delays", ShardCount=1)
    listed = run(emulator, "streams", "ls").stdout.splitlines()
    assert [line.split("\t")[0] for line in listed] == ["delays", "flights"]
    assert run(emulator, "streams", "ls", "f*").stdout.splitlines() == listed[1:]
    found = json.loads(run(emulator, "streams", "describe", "flights", "--json").stdout)
    assert (found["openShards"], found["mode"], len(found["shards"])) == (2, "PROVISIONED", 2)
    shown = run_in_terminal([*PENSTOCK, "streams", "describe", "flights"], environ=environment(emulator), columns=140)
    assert (shown.code, shown.text.count("50.0%")) == (0, 2)


def test_a_tail_at_latest_says_on_a_terminal_that_it_waits(emulator: RunningEmulator) -> None:
    """And how to see what is there already; elsewhere, and from another position, it writes records alone."""
    says = "waiting for new records at LATEST; --from TRIM_HORIZON shows older ones"
    assert at_terminal(emulator, "tail", "flights", send=b"\x03", when=says).code == 0
    emulator.client().put_record(StreamName="flights", PartitionKey="k", Data=b"late")
    shown = at_terminal(emulator, "tail", "flights", "--from", "TRIM_HORIZON", "--count", "1", send=b"", when="")
    assert (says in shown.text, "late" in shown.text) == (False, True)


def test_a_stream_is_resharded_in_steps(emulator: RunningEmulator) -> None:
    """Shown first; only by a person's yes or by --yes; told step by step, to its end."""
    shown = run(emulator, "streams", "reshard", "flights", "--shards", "8", "--dry-run")
    assert (shown.returncode, "2 -> 4 -> 8" in shown.stdout) == (0, True)
    both = run(emulator, "streams", "reshard", "flights", "--shards", "8", "--dry-run", "--yes")
    assert (both.returncode, "--yes: not allowed with argument --dry-run" in both.stderr) == (2, True), both.stderr
    refused = run(emulator, "streams", "reshard", "flights", "--shards", "3")
    assert (refused.returncode, "--yes" in refused.stderr) == (1, True)
    no = at_terminal(emulator, "streams", "reshard", "flights", "--shards", "3", send=b"n\n", when="[y/N]")
    assert no.code == 1
    client = emulator.client()
    assert client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["OpenShardCount"] == 2
    yes = at_terminal(emulator, "streams", "reshard", "flights", "--shards", "3", send=b"y\n", when="[y/N]")
    assert (yes.code, "3 of 3 shards" in yes.text) == (0, True), yes.text
    done = run(emulator, "streams", "reshard", "flights", "--shards", "1", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    states = [json.loads(line) for line in done.stdout.splitlines()]
    assert (states[-1]["openShards"], states[-1]["state"]) == (1, "active")
    again = run(emulator, "streams", "reshard", "flights", "--shards", "1", "--yes")
    assert (again.returncode, "nothing to do" in again.stdout) == (0, True)
