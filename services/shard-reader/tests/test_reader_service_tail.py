"""`penstock reader tail` and `lag` as a person runs them."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import boto3
import pytest
from aws_kinesis_agg.aggregator import RecordAggregator

from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    Consumer,
    ShardPosition,
    SqliteCheckpointStore,
    StreamPositions,
    encode_glue_record,
)
from penstock.emulator.testing import OtherClock, RunningEmulator, running_emulator
from penstock.services.shard_reader.__main__ import main
from penstock.terminal.testing import run_main

SHARD = "shardId-000000000000"


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName="orders", ShardCount=1)
        yield running


def environment(emulator: RunningEmulator, folder: Path) -> dict[str, str]:
    return os.environ | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "PENSTOCK_READER_REGION": "us-east-1",
        "PENSTOCK_READER_CA_BUNDLE": str(emulator.ca_file),
        "PENSTOCK_READER_ENDPOINT_URL": emulator.tls_endpoint_url,
        "XDG_STATE_HOME": str(folder),
    }


def run(emulator: RunningEmulator, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_main(main, arguments, environ=environment(emulator, folder))


def put(emulator: RunningEmulator, *data: bytes) -> list[str]:
    client = emulator.client()
    return [client.put_record(StreamName="orders", Data=row, PartitionKey="k")["SequenceNumber"] for row in data]


@pytest.mark.parametrize("efo", [(), ("--efo", "look")])
def test_tail_writes_records_and_ends_at_the_count(
    emulator: RunningEmulator, tmp_path: Path, efo: tuple[str, ...]
) -> None:
    """A line a record, without what would disturb a terminal; as JSON nothing is left out."""
    numbers = put(emulator, b"first", b"\x1b[2Jtwo", b"\xff\xfe", b"more")
    done = run(emulator, tmp_path, "tail", "orders", "--from", "TRIM_HORIZON", "--count", "2", *efo)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" ")[2] for line in lines] == numbers[:2]
    assert lines[0].endswith(f"orders/{SHARD} {numbers[0]} 'k' first")
    assert "\x1b" not in lines[1]
    if efo:
        return
    done = run(emulator, tmp_path, "tail", "orders", "--from", "TRIM_HORIZON", "--count", "3", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row.get("data") for row in rows] == ["first", "\x1b[2Jtwo", None]
    assert rows[2]["dataBase64"] == "//4="


def test_tail_waits_while_listing_shards_is_throttled(emulator: RunningEmulator, tmp_path: Path) -> None:
    """For longer than a throttle lasts, and it says what it waits for."""
    (number,) = put(emulator, b"first")
    emulator.faults.add("throttle", operation="ListShards", count=25)
    done = run(emulator, tmp_path, "tail", "orders", "--from", "TRIM_HORIZON", "--count", "1")
    assert done.returncode == 0, done.stderr
    assert number in done.stdout
    assert "orders: ListShards fails, and is tried again for up to 0:10:00" in done.stderr


def test_lag_is_the_age_of_the_first_record_behind_the_checkpoint(emulator: RunningEmulator, tmp_path: Path) -> None:
    """A line per shard; a consumer that is not known, or a stream that is not there, with 2 and 1."""
    numbers = put(emulator, b"first", b"second")
    checkpoints = tmp_path / "billing.db"
    store = SqliteCheckpointStore(checkpoints)

    def lag() -> subprocess.CompletedProcess[str]:
        return run(emulator, tmp_path, "lag", "--checkpoints", str(checkpoints), "--name", "billing")

    assert lag().returncode == 2
    for number, is_behind in ((numbers[0], True), (numbers[1], False)):
        positions = StreamPositions({"orders": {SHARD: ShardPosition.after(number)}})
        claim = asyncio.run(store.claim("billing", positions.streams, "me"))
        asyncio.run(store.save(claim, positions))
        done = lag()
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        assert line.startswith(f"orders/{SHARD} ")
        assert (float(line.split(" ")[1]) > 0) is is_behind
    done = run(emulator, tmp_path, "tail", "nothing")
    assert done.returncode == 1
    assert "nothing" in done.stderr


def test_a_recreated_stream_has_no_lag(emulator: RunningEmulator, tmp_path: Path) -> None:
    """The checkpoint has when the stream was created that it is of: another one has the name now."""
    (number,) = put(emulator, b"first")
    store = SqliteCheckpointStore(tmp_path / "billing.db")
    positions = StreamPositions({"orders": {SHARD: ShardPosition.after(number)}}, {"orders": 1_000_000_000_000})
    claim = asyncio.run(store.claim("billing", positions.streams, "me"))
    asyncio.run(store.save(claim, positions))
    done = run(emulator, tmp_path, "lag", "--checkpoints", str(tmp_path / "billing.db"), "--name", "billing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "stream orders is not the one that was read" in done.stderr


def test_lag_of_a_stream_needs_no_more_than_its_name(
    emulator: RunningEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds what consumers keep by default, a line per consumer and shard; and says so where there is nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    put(emulator, b"first")
    none = run(emulator, tmp_path, "lag", "orders")
    assert (none.returncode, none.stdout) == (2, "")
    assert "orders" in none.stderr
    assert "--checkpoints" in none.stderr
    assert "--checkpoint-location" in none.stderr

    async def consume(name: str) -> None:
        options = emulator_options(emulator.tls_endpoint_url, str(emulator.ca_file))
        async with Consumer("orders", name=name, start="TRIM_HORIZON", aws=options) as consumer:
            async for batch in consumer:
                await consumer.checkpoint(batch)
                return

    for name in ("billing", "audit"):
        asyncio.run(consume(name))
    done = run(emulator, tmp_path, "lag", "orders", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["consumer"], row["streamName"], row["shardId"], row["secondsBehind"]) for row in rows] == [
        (name, "orders", SHARD, 0.0) for name in ("audit", "billing")
    ]
    mistyped = run(emulator, tmp_path, "lag", "--name", "biling")
    assert mistyped.returncode == 2
    assert "audit, billing" in mistyped.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("tail", "orders", "--count", "0"),
        ("tail", "orders", "--count", "-1"),
        ("tail", "orders", "--from", "20261129"),
        ("lag", "--watch", "-3"),
        ("serve", "--session-timeout", "inf"),
        ("serve", "--promise-grace", "nan"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    emulator: RunningEmulator, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """With code 2, and the flag's name."""
    done = run(emulator, tmp_path, *arguments)
    assert done.returncode == 2
    assert arguments[-2].removeprefix("--").replace("-", "_") in done.stderr.replace("-", "_")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_tail_and_lets_its_stream_consumer_go(
    emulator: RunningEmulator, tmp_path: Path, number: signal.Signals
) -> None:
    """With code 0 and without a word: a stream consumer that is left behind would be paid for by the hour."""
    put(emulator, b"first")
    command = [sys.executable, "-m", "penstock.services.shard_reader"]
    command += ["tail", "orders", "--efo", "look", "--from", "TRIM_HORIZON"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(emulator, tmp_path)
    ) as tail:
        assert tail.stdout is not None
        assert "first" in tail.stdout.readline()
        tail.send_signal(number)
        _, errors = tail.communicate(timeout=30)
    assert (tail.returncode, errors) == (0, "")
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    left = client.list_stream_consumers(StreamARN=arn)["Consumers"]
    assert [one for one in left if one["ConsumerStatus"] == "ACTIVE"] == []


def test_a_tail_ends_when_its_reader_has_gone(emulator: RunningEmulator, tmp_path: Path) -> None:
    """As `| head -1` does, with code 0 and without a word, though no further record comes that could not be written."""
    put(emulator, b"first")
    command = [sys.executable, "-m", "penstock.services.shard_reader", "tail", "orders", "--from", "TRIM_HORIZON"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(emulator, tmp_path)
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert "first" in tail.stdout.readline()
        tail.stdout.close()
        try:
            assert (tail.wait(timeout=30), tail.stderr.read()) == (0, "")
        finally:
            tail.kill()


def test_tail_takes_what_is_asked_for(emulator: RunningEmulator, tmp_path: Path) -> None:
    """By key, by what its data matches, by time ago, and behind a record of a shard; the count is of what is shown."""
    client = emulator.client()
    client.create_stream(StreamName="flights", ShardCount=2)
    numbers = {}
    for key, data in (("EWR", b"late 1"), ("JFK", b"late 2"), ("EWR", b"on time"), ("EWR", b"late 3")):
        numbers[data] = client.put_record(StreamName="flights", PartitionKey=key, Data=data, ExplicitHashKey="0")
    client.put_record(StreamName="flights", PartitionKey="LGA", Data=b"late 4", ExplicitHashKey=str(2**128 - 1))

    def shown(*arguments: str) -> list[str]:
        done = run(emulator, tmp_path, "tail", "flights", *arguments, "--format", "raw")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    everything = ("--from", "TRIM_HORIZON")
    assert shown(*everything, "--key", "EWR", "--grep", r"late \d", "--count", "2") == ["late 1", "late 3"]
    assert shown("--from", "-1h", "--shard", "1", "--count", "1") == ["late 4"]
    first = numbers[b"late 1"]
    position = ("--from", first["SequenceNumber"], "--shard", first["ShardId"])
    assert shown(*position, "--count", "2") == ["late 2", "on time"]
    for arguments, word in (
        (("--from", first["SequenceNumber"]), "--shard"),
        ((*everything, "--shard", "7"), "shardId-000000000001"),
        ((*everything, "--grep", "("), "--grep"),
        (("--format", "avro"), "--schema"),
        (("--efo", ""), ": --efo: needs the name"),
        (("--efo", "x y"), ": --efo: 'x y' is not 1 to 128 characters"),
        (("",), ": STREAM: needs the name of a stream"),
    ):
        wrong = run(emulator, tmp_path, "tail", "flights", *arguments)
        assert (wrong.returncode, word in wrong.stderr, wrong.stderr.count("\n")) == (2, True, 1), wrong.stderr


def test_tail_of_a_shard_that_ended_before_the_time_begins_at_the_time(tmp_path: Path) -> None:
    """In the shards that it became: what these held earlier was not asked for."""
    clock = OtherClock(-7200)
    with running_emulator(clock=clock) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="orders", ShardCount=1)
        client.split_shard(StreamName="orders", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
        put(emulator, b"old")
        clock.advance(3600)
        then = str(int(clock.time() * 1000))
        put(emulator, b"new")
        done = run(emulator, tmp_path, "tail", "orders", "--shard", "0", "--from", then, "--count", "1")
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(" new\n")


def test_tail_decodes_json_and_avro(emulator: RunningEmulator, tmp_path: Path) -> None:
    """As objects; other data is reported, and shown as it is."""
    put(emulator, b'{"minutes": 12}', b"no json")
    everything = ("--from", "TRIM_HORIZON", "--count", "2")
    rows = run(emulator, tmp_path, "tail", "orders", *everything, "--format", "json").stdout.splitlines()
    good, bad = map(json.loads, rows)
    assert (good["data"], bad["data"], "JSONDecodeError" in bad["problem"]) == ({"minutes": 12}, "no json", True)
    schema = tmp_path / "flight.avsc"
    fields = [{"name": "origin", "type": "string"}, {"name": "minutes", "type": "int"}]
    schema.write_text(json.dumps({"type": "record", "name": "flight", "fields": fields}))
    emulator.client().create_stream(StreamName="avro", ShardCount=1)
    bare = b"\x06EWR\x18"
    for data in (bare, b"\xc3\x01" + bytes(8) + bare, b"\0" + bytes(4) + bare, b"\x06E"):
        emulator.client().put_record(StreamName="avro", Data=data, PartitionKey="k")
    asked = ("--from", "TRIM_HORIZON", "--count", "4", "--format", "avro", "--schema", str(schema))
    done = run(emulator, tmp_path, "tail", "avro", *asked)
    read = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["data"] for row in read[:3]] == [{"origin": "EWR", "minutes": 12}] * 3
    assert "problem" in read[3]


def test_tail_writes_json_as_the_record_has_it(emulator: RunningEmulator, tmp_path: Path) -> None:
    """On a line of ASCII, without a digit or a member less. What other readers would not take is a problem."""
    good = {
        b"12345678901234567890.123456789": "12345678901234567890.123456789",
        b'{"a": 1e999,\r\n  "a": -0.10}\n': '{"a": 1e999, "a": -0.10}',
        b"[" + b"9" * 5000 + b"]": "[" + "9" * 5000 + "]",
        '"Z\u00fcrich \U0001f6eb\ud800"'.encode("utf-8", "surrogatepass"): r'"Z\u00fcrich \ud83d\udeeb\ud800"',
        b'\xef\xbb\xbf"\\u2028"': r'"\u2028"',
        "[null]".encode("utf-16"): "[null]",
    }
    bad = [b'{"a": NaN}', b"-Infinity", b"[" * 100_000, b"\xff"]
    put(emulator, *good, *bad)
    begin = ("--from", "TRIM_HORIZON", "--count", str(len(good) + len(bad)))
    lines = run(emulator, tmp_path, "tail", "orders", *begin, "--format", "json").stdout.splitlines()
    for line, text in zip(lines, good.values(), strict=False):
        assert line.isascii()
        assert line.endswith(f', "data": {text}}}')
        row = json.loads(line, parse_int=str)
        assert (row["partitionKey"], "problem" in row) == ("k", False)
    problems = [json.loads(line) for line in lines[len(good) :]]
    assert [row["problem"].partition(":")[0] for row in problems] == [
        "ValueError",
        "ValueError",
        "RecursionError",
        "UnicodeDecodeError",
    ]
    given = [row["data"].encode() if "data" in row else base64.b64decode(row["dataBase64"]) for row in problems]
    assert given == bad


def test_tail_writes_numbers_that_json_has_not_as_text(emulator: RunningEmulator, tmp_path: Path) -> None:
    """As JSON of Protobuf has them: they are values of Avro, and of no harm to others."""
    schema = tmp_path / "rate.avsc"
    schema.write_text(json.dumps({"type": "array", "items": "double"}))
    put(emulator, b"\x08" + struct.pack("<4d", 1.5, math.nan, math.inf, -math.inf) + b"\0")
    begin = ("--from", "TRIM_HORIZON", "--count", "1")
    done = run(emulator, tmp_path, "tail", "orders", *begin, "--format", "avro", "--schema", str(schema))
    assert json.loads(done.stdout)["data"] == [1.5, "NaN", "Infinity", "-Infinity"]


def test_tail_decodes_records_with_schemas_of_the_glue_schema_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the schema that each names, also compressed; data without a header is reported, and shown as it is."""
    with running_emulator(companions=("glue",)) as emulator:
        emulator.client().create_stream(StreamName="orders", ShardCount=1)
        glue = boto3.client(
            "glue",
            region_name="us-east-1",
            endpoint_url=emulator.endpoints["glue"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        glue.create_registry(RegistryName="tail")
        fields = [{"name": "origin", "type": "string"}, {"name": "seen", "type": "bytes"}]
        made = glue.create_schema(
            RegistryId={"RegistryName": "tail"},
            SchemaName="flights",
            DataFormat="AVRO",
            Compatibility="NONE",
            SchemaDefinition=json.dumps({"type": "record", "name": "flight", "fields": fields}),
        )
        bare, version = b"\x06EWR\x04\x00\xff", UUID(made["SchemaVersionId"])
        put(emulator, encode_glue_record(bare, version), encode_glue_record(bare, version, "zlib"), b"plain")
        monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", emulator.endpoints["glue"])
        done = run(emulator, tmp_path, "tail", "orders", "--from", "TRIM_HORIZON", "--count", "3", "--format", "glue")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["data"] for row in rows] == [{"origin": "EWR", "seen": "AP8="}] * 2 + ["plain"]
    assert [row.get("schema") for row in rows] == ["tail/flights/1"] * 2 + [None]
    assert "SchemaDecodeError: a record cannot be decoded: it has no header" in rows[2]["problem"]


def test_tail_shows_places_in_aggregates_or_aggregates_whole(emulator: RunningEmulator, tmp_path: Path) -> None:
    """Formats kpl and raw; text takes aggregates apart without a word."""
    packer = RecordAggregator()
    packer.add_user_record("EWR", b"one")
    packer.add_user_record("EWR", b"two")
    _, _, data = packer.clear_and_get().get_contents()
    (number,) = put(emulator, data)
    begin = ("--from", "TRIM_HORIZON", "--count")
    lines = run(emulator, tmp_path, "tail", "orders", *begin, "2", "--format", "kpl").stdout.splitlines()
    assert [line.split(" ")[2] for line in lines] == [f"{number}/0", f"{number}/1"]
    command = [sys.executable, "-m", "penstock.services.shard_reader", "tail", "orders", *begin, "1", "--format", "raw"]
    whole = subprocess.run(command, capture_output=True, env=environment(emulator, tmp_path), timeout=60, check=True)
    assert whole.stdout == data + b"\n"
