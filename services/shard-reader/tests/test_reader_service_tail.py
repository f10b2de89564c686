"""`penstock-reader tail` and `lag` as a person runs them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.efo_consumer import ShardPosition, SqliteCheckpointStore, StreamPositions
from penstock.emulator.testing import RunningEmulator, running_emulator

SHARD = "shardId-000000000000"


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName="orders", ShardCount=1)
        yield running


def run(emulator: RunningEmulator, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "PENSTOCK_READER_REGION": "us-east-1",
        "PENSTOCK_READER_CA_BUNDLE": str(emulator.ca_file),
        "PENSTOCK_READER_ENDPOINT_URL": emulator.tls_endpoint_url,
        "XDG_STATE_HOME": str(folder),
    }
    command = [sys.executable, "-m", "penstock.services.shard_reader", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


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


def test_lag_is_the_age_of_the_first_record_behind_the_checkpoint(emulator: RunningEmulator, tmp_path: Path) -> None:
    """A line per shard; a consumer that is not known, or a stream that is not there, is told with code 2."""
    numbers = put(emulator, b"first", b"second")
    checkpoints = tmp_path / "billing.db"
    store = SqliteCheckpointStore(checkpoints)

    def lag() -> subprocess.CompletedProcess[str]:
        return run(emulator, tmp_path, "lag", "--checkpoints", str(checkpoints), "--name", "billing")

    assert lag().returncode == 2
    for number, is_behind in ((numbers[0], True), (numbers[1], False)):
        positions = StreamPositions({"orders": {SHARD: ShardPosition.after(number)}})
        asyncio.run(store.save("billing", positions))
        done = lag()
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        assert line.startswith(f"orders/{SHARD} ")
        assert (float(line.split(" ")[1]) > 0) is is_behind
    done = run(emulator, tmp_path, "tail", "nothing")
    assert done.returncode == 2
    assert "nothing" in done.stderr
