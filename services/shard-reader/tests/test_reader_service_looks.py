"""`lag` and `tail` as people see them: a table with bars, colours, and an exit code for a Kinesis that is not there."""

import asyncio
import io
import json
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.efo_consumer import ReaderHost, ShardCondition, ShardLag, ShardPosition, ShardState
from penstock.efo_consumer.testing import FakeKinesis
from penstock.registration import AnnouncedReader, ReaderFiles
from penstock.services.shard_reader.__main__ import lag_command, tail_command
from penstock.services.shard_reader._lag import lag_table, reader_table, running_readers
from penstock.services.shard_reader._tail import _as_row
from penstock.terminal import Screen


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shard(number: int, seconds: float) -> tuple[str, ShardLag]:
    position = ShardPosition.after(str(number))
    return "billing", ShardLag(stream_name="flights", shard_id=f"shard-{number}", position=position, seconds=seconds)


def test_bars_show_which_shard_is_furthest_behind() -> None:
    """Against the slowest; green, yellow and red by how much it is."""
    out = Terminal()
    table = lag_table([shard(1, 400.0), shard(2, 200.0), shard(3, 0.0)])
    Screen(out, environ={"TERM": "xterm", "COLUMNS": "140"}).show(table)
    slowest, half, none = out.getvalue().splitlines()[-3:]
    assert ("█" * 12 in slowest, "6m 40s" in slowest, "\x1b[31m" in slowest) == (True, True, True)
    assert ("█" * 6 + " " in half, "3m 20s" in half, "\x1b[33m" in half) == (True, True, True)
    assert ("█" in none, "0.0 s" in none, "\x1b[32m" in none) == (False, True, True)


def test_a_little_lag_is_a_short_bar() -> None:
    """Half a second is not shown as if it were the worst there is."""
    out = Terminal()
    Screen(out, environ={"TERM": "dumb", "COLUMNS": "140"}).show(lag_table([shard(1, 0.5)]))
    assert "██" not in out.getvalue()


def test_lag_shows_both_lags_of_running_queries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the reader behind the stream, and of the query behind the reader, with the time since it last asked."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kinesis = FakeKinesis()
    (shard,) = kinesis.create_stream("flights", 1)
    kinesis.put("flights", shard, 15)
    with ReaderHost(backend=lambda: kinesis) as host:
        host.reader.open("delays/flights/", kinesis.trim_horizon("flights"))
        asyncio.run(ReaderFiles().announce(announced(host.address, host.view_token)))
        found = asyncio.run(running_readers(["flights"]))
        assert (asyncio.run(running_readers(["orders"])), found[0].query) == ([], "delays")
        (info,) = found[0].sessions
        stats = replace(info.shards[0], millis_behind_latest=65_000, buffered_records=40, buffered_bytes=2_048)
        table = reader_table([replace(found[0], sessions=[replace(info, idle_seconds=75.0, shards=(stats,))])])
        out, data, terminal = io.StringIO(), io.StringIO(), Terminal()
        Screen(out, environ={}).show(table)
        assert "1m 5s behind the stream, not taken: 40 records, 2.0 KiB, asked 1m 15s ago" in out.getvalue()
        Screen(data, as_json=True).show(table)
        row = json.loads(data.getvalue())
        assert (row["secondsBehindStream"], row["recordsNotTaken"], row["secondsSinceAsked"]) == (65.0, 40, 75.0)
        Screen(terminal, environ={"TERM": "xterm", "COLUMNS": "200"}).show(table)
        assert "READER BEHIND STREAM" in terminal.getvalue()
        # Without any checkpoint it shows the readers.
        assert lag_command(["--region", "us-east-1", "--endpoint-url", "http://127.0.0.1:9", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["query"] == "delays"
        asyncio.run(ReaderFiles().announce(announced(host.address, "another-token-of-16-with-32-characters")))
        (refused,) = asyncio.run(running_readers([]))
        assert refused.reason


def announced(address: str, token: str) -> AnnouncedReader:
    return AnnouncedReader(
        job_id="delays", reader_id="r1", address=address, view_token=token, query="delays", stream_names=("flights",)
    )


def test_a_shard_that_cannot_be_read_says_why() -> None:
    """With what is known of its lag, which may be nothing; never as if it were caught up."""
    name, one = shard(1, 0.0)
    condition = ShardCondition(ShardState.THROTTLED, 1_767_268_800_000, "Rate exceeded")
    out, pipe = Terminal(), io.StringIO()
    table = lag_table([(name, replace(one, seconds=None, condition=condition)), shard(2, 3.0)])
    Screen(out, environ={"TERM": "xterm", "COLUMNS": "160"}).show(table)
    assert "throttled since 2026-01-01T12:00:00Z: Rate exceeded" in out.getvalue()
    assert "unknown" in out.getvalue()
    Screen(pipe, environ={}).show(table)
    line, other = pipe.getvalue().splitlines()
    assert "an unknown time behind, billing at " in line
    assert line.endswith("throttled since 2026-01-01T12:00:00Z: Rate exceeded")
    assert "3.0 s behind" in other
    data = io.StringIO()
    Screen(data, as_json=True).show(table)
    first = json.loads(data.getvalue().splitlines()[0])
    assert (first["secondsBehind"], first["condition"], first["cause"]) == (None, "throttled", "Rate exceeded")


def test_a_record_is_coloured_but_its_data_steers_no_terminal() -> None:
    """In a pipe it is the line that it was."""
    row = {
        "data": b"\x1b[2Jlate",
        "partitionKey": "EWR",
        "sequenceNumber": "495",
        "streamName": "flights",
        "shardId": "shard-1",
        "approximateArrivalTimestamp": datetime(2013, 1, 1, tzinfo=UTC),
    }
    out, pipe = Terminal(), io.StringIO()
    Screen(out, environ={"TERM": "xterm"}).show_row(_as_row(row))
    Screen(pipe, environ={}).show_row(_as_row(row))
    assert "\x1b[36mflights/shard-1" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
    assert pipe.getvalue() == "2013-01-01T00:00:00.000+00:00 flights/shard-1 495 'EWR' ·[2Jlate\n"


def test_a_kinesis_that_is_not_there_is_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another code than for a wrong flag: a script may try again."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert tail_command(["flights", "--region", "us-east-1", "--endpoint-url", url]) == 3
    assert url in capsys.readouterr().err
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # No consumer keeps checkpoints for it, which would be no more than half of the truth.
    assert lag_command(["flights", "--region", "us-east-1", "--endpoint-url", url]) == 3
    assert url in capsys.readouterr().err
    assert lag_command(["flights", "--region", "us-east-1", "--checkpoints", "/no/such.db"]) == 2
    capsys.readouterr()
    # In the words of the command line, not of the option that the library has.
    assert tail_command(["flights", "--region", "us-east-1", "--endpoint-url", url, "--from", "noon"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("penstock tail: --from: 'noon' must be a time such as")
    for form in ("LATEST", "TRIM_HORIZON", "-15m", "--shard"):
        assert form in told
    assert tail_command(["flights", "--region", "us-east-1", "--endpoint-url", "here"]) == 2
    assert "--endpoint-url (PENSTOCK_READER_ENDPOINT_URL): 'here'" in capsys.readouterr().err
