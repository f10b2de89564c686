"""`penstock offsets` and `penstock lag --checkpoint-location`, on checkpoints that Spark wrote and resumes from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import ensure_java
from penstock.terminal.testing import run_main

PENSTOCK = [sys.executable, "-m", "penstock.cli"]
# Reads what is asked for, a line each: one session for all queries, each a new query.
RUN = """
import json, sys
from penstock.spark_plugin import configure
from pyspark.sql import SparkSession

options = dict(streamName="flights", endpointUrl=sys.argv[1], region="us-east-1", initialPosition="TRIM_HORIZON")
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = configure(builder.config("spark.sql.shuffle.partitions", "1")).getOrCreate()
for line in sys.stdin:
    folder, name, stateful = json.loads(line)
    rows = spark.readStream.format("kinesis").options(**options).load()
    rows = rows.dropDuplicates(["data"]) if stateful else rows
    query = rows.selectExpr("CAST(data AS STRING) AS data").writeStream.format("json")
    query = query.option("path", f"{folder}/{name}").option("checkpointLocation", f"{folder}/checkpoint-{name}")
    query.trigger(availableNow=True).start().awaitTermination()
    print("read", flush=True)
"""
RunQuery = Callable[..., None]


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator() as running:
        running.client().create_stream(StreamName="flights", ShardCount=1)
        yield running


def environment(emulator: RunningEmulator) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return variables | keys | {"AWS_ENDPOINT_URL_KINESIS": emulator.endpoint_url}


def put(emulator: RunningEmulator, *rows: str) -> list[str]:
    client = emulator.client()
    return [
        client.put_record(StreamName="flights", PartitionKey="EWR", Data=row.encode())["SequenceNumber"] for row in rows
    ]


@pytest.fixture(scope="module")
def run_query(emulator: RunningEmulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunQuery]:
    """Has Spark read what is there, into a folder, by a query of a name."""
    environ = environment(emulator)
    ensure_java(environ=environ)
    environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [sys.executable, "-c", RUN, emulator.endpoint_url]
    place = tmp_path_factory.mktemp("driver")
    log = place / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            env=environ,
            cwd=place,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as spark,
    ):
        assert spark.stdin is not None
        assert spark.stdout is not None
        asked, answers = spark.stdin, spark.stdout

        def run(folder: Path, name: str, *, stateful: bool = False) -> None:
            asked.write(json.dumps([str(folder), name, stateful]) + "\n")
            asked.flush()
            assert answers.readline() == "read\n", log.read_text()[-4000:]

        yield run


def rows_of(folder: Path, name: str) -> list[str]:
    """What the query has written, in order."""
    return sorted(json.loads(line)["data"] for file in (folder / name).glob("part-*.json") for line in file.open())


def penstock(emulator: RunningEmulator, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    done = run_main(main, arguments, environ=environment(emulator) | environ)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def written(
    emulator: RunningEmulator, run_query: RunQuery, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A folder with a query that has read three records, in two runs, and the numbers of all records."""
    folder = tmp_path_factory.mktemp("spark")
    numbers = put(emulator, "one", "two")
    run_query(folder, "out")
    numbers += put(emulator, "three")
    run_query(folder, "out")
    return folder, numbers


@pytest.fixture
def folder(written: tuple[Path, list[str]], tmp_path: Path) -> Path:
    """A copy of it, with what the query wrote."""
    shutil.copytree(written[0], tmp_path / "spark")
    return tmp_path / "spark"


def test_offsets_are_shown_and_compared(emulator: RunningEmulator, written: tuple[Path, list[str]]) -> None:
    """The last micro-batch, another one, and what moved between them; a folder without a checkpoint is refused."""
    folder, numbers = written
    location = str(folder / "checkpoint-out")
    shown = [json.loads(line) for line in penstock(emulator, "offsets", "show", location, "--json").stdout.splitlines()]
    assert [(one["streamName"], one["position"]["value"], one["isDone"]) for one in shown] == [
        ("flights", numbers[2], True)
    ]
    assert numbers[1] in penstock(emulator, "offsets", "show", location, "--batch", "0").stdout
    moved = json.loads(penstock(emulator, "offsets", "diff", location, "--json").stdout)
    assert (moved["from"]["value"], moved["to"]["value"]) == (numbers[1], numbers[2])
    nothing = penstock(emulator, "offsets", "show", str(folder))
    assert (nothing.returncode, "is not a checkpoint" in nothing.stderr) == (2, True)
    lag = penstock(emulator, "lag", "--checkpoint-location", str(folder))
    assert (lag.returncode, "is not a checkpoint" in lag.stderr) == (2, True)


@pytest.mark.parametrize("command", ["show", "diff"])
def test_flags_of_aws_are_refused_where_a_folder_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """They would do nothing. A folder whose name begins as a URL of S3 is one, and needs no region."""
    assert main(["offsets", command, str(tmp_path), "--profile", "none"]) == 2
    assert "--profile needs a LOCATION s3://" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AWS_REGION", raising=False)
    (tmp_path / "s3-copy").mkdir()
    assert main(["offsets", command, "s3-copy"]) == 2
    assert "s3-copy" in capsys.readouterr().err


def test_lag_of_a_query_is_that_of_its_checkpoint(emulator: RunningEmulator, written: tuple[Path, list[str]]) -> None:
    """Without Spark: by the last micro-batch that is done."""
    location = str(written[0] / "checkpoint-out")
    done = penstock(emulator, "lag", "--checkpoint-location", location, "--json")
    assert done.returncode == 0, done.stderr
    shard = json.loads(done.stdout)
    assert (shard["consumer"], shard["streamName"], shard["secondsBehind"]) == ("checkpoint-out", "flights", 0.0)
    other = penstock(emulator, "lag", "delays", "--checkpoint-location", location)
    assert (other.returncode, "delays" in other.stderr) == (2, True)


def test_a_query_goes_on_where_it_was_reset_to(emulator: RunningEmulator, run_query: RunQuery, folder: Path) -> None:
    """Shown first and not done; then Spark reads from the beginning again, and after that from behind a record."""
    checkpoint = folder / "checkpoint-out"
    before = {file: file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()}
    shown = penstock(emulator, "offsets", "reset", str(checkpoint), "--to", "TRIM_HORIZON", "--json")
    assert (shown.returncode, json.loads(shown.stdout)["to"]["type"]) == (0, "TRIM_HORIZON"), shown.stderr
    assert {file: file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()} == before
    watch = ("--execute", "--watch", "0.1")
    done = penstock(emulator, "offsets", "reset", str(checkpoint), "--to", "TRIM_HORIZON", *watch)
    assert done.returncode == 0, done.stderr
    assert {file: file.read_bytes() for file in before} == before
    (backup,) = (checkpoint / "penstock-reset").iterdir()
    assert "--to TRIM_HORIZON" in json.loads(backup.read_text())["note"]
    run_query(folder, "out")
    assert rows_of(folder, "out") == ["one", "one", "three", "three", "two", "two"]
    ended = json.loads(penstock(emulator, "offsets", "show", str(checkpoint), "--json", "--batch", "0").stdout)
    behind = ("--to", ended["position"]["value"], "--shard", ended["shardId"])
    assert penstock(emulator, "offsets", "reset", str(checkpoint), *behind, *watch).returncode == 0
    run_query(folder, "out")
    assert rows_of(folder, "out") == ["one", "one", "three", "three", "three", "two", "two"]


def test_what_cannot_be_reset_is_refused(emulator: RunningEmulator, run_query: RunQuery, folder: Path) -> None:
    """An unfinished micro-batch, unless it is abandoned; state; an invalid position; a query that writes.

    Whether it is to be done or only shown, but for the query that writes.
    """
    checkpoint = folder / "checkpoint-out"
    reset = ("offsets", "reset", str(checkpoint), "--execute", "--watch", "0.1")
    for arguments, code, word in (
        (("--to", "4" * 56), 1, "--shard"),
        (("--to", "batch:7"), 1, "no micro-batch 7"),
        (("--to", "LATEST", "--stream", "delays"), 1, "delays"),
        (("--to", "yesterday"), 2, "yesterday"),
        (("--to", "20261129"), 2, "20261129"),
    ):
        wrong = penstock(emulator, *reset, *arguments)
        assert (wrong.returncode, word in wrong.stderr) == (code, True), wrong.stderr
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    for command in (reset, reset[:3]):
        unfinished = penstock(emulator, *command, "--to", "batch:0")
        assert (unfinished.returncode, unfinished.stdout, "not done" in unfinished.stderr) == (1, "", True)
    shown = penstock(emulator, *reset[:3], "--to", "batch:0", "--give-up-batch")
    assert (shown.returncode, "flights" in shown.stdout) == (0, True), shown.stderr
    given_up = penstock(emulator, *reset, "--to", "batch:0", "--give-up-batch")
    assert given_up.returncode == 0, given_up.stderr
    run_query(folder, "states", stateful=True)
    for flags in (reset[3:], ()):
        stateful = penstock(emulator, *reset[:2], str(folder / "checkpoint-states"), *flags, "--to", "-1h")
        assert (stateful.returncode, stateful.stdout) == (1, ""), stateful.stderr
        assert "query with state" in stateful.stderr
    with subprocess.Popen(
        [*PENSTOCK, "offsets", "reset", str(checkpoint), "--to", "TRIM_HORIZON", "--execute", "--watch", "20"],
        env=environment(emulator),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as busy:
        assert busy.stdout is not None
        # It has looked once, and watches.
        assert "TRIM_HORIZON" in busy.stdout.readline()
        number = last + 2
        (checkpoint / "offsets" / f"{number}").write_text((checkpoint / "offsets" / f"{last}").read_text())
        _, errors = busy.communicate()
    assert (busy.returncode, "stop it first" in errors) == (1, True), errors
