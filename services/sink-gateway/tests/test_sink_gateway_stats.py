"""`penstock sink stats`: what a gateway's destinations do, in a pipe, as JSON, on a terminal."""

import io
import json
import os
import socket
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.async_sink import RemoteSink, write_batches
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb
from penstock.rpc.testing import service_process
from penstock.services.sink_gateway.__main__ import main
from penstock.services.sink_gateway._stats import Rates, stats_table
from penstock.terminal import Screen
from penstock.terminal.testing import run_main

MODULE = "penstock.services.sink_gateway"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(tls=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        yield emulator


def test_a_gateways_destinations(
    emulator: RunningEmulator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for each; the fields of the contract and the rates as JSON; others than those asked for are left out."""
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url]
    with service_process(MODULE, arguments, {**os.environ, **ENVIRONMENT}) as gateway:
        ask = ["--endpoint", gateway.address, "--over", "0.1"]
        assert main(ask) == 0
        assert capsys.readouterr().out == ""
        rows = pa.record_batch({"data": [b"row"] * 20, "partitionKey": [str(number) for number in range(20)]})
        write_batches(RemoteSink(gateway.address, destination="flights"), [rows])
        assert main(["stats", *ask]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        cells = line.split("\t")
        assert (cells[:2], cells[10], cells[11:13]) == (["kinesis", "flights"], "20", ["0", "0"])
        assert main(["stats", "flights", "--json", *ask]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["records_out"], document["throttled"], document["dead_lettered"]) == (20, 0, 0)
        assert document["goodput_per_second"] == 0.0
        assert main(["stats", "delays", *ask]) == 0
        assert capsys.readouterr().out == ""
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["stats", "delays", *ask]) == 0
        assert "no destination delays in this gateway" in terminal.getvalue()


def test_a_gateway_that_is_not_there_is_code_3_and_none_named_is_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one line that says so."""
    monkeypatch.delenv("PENSTOCK_SINK_ENDPOINT", raising=False)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert main(["--endpoint", f"127.0.0.1:{bound.getsockname()[1]}"]) == 3
    assert "no server listens there: start it (`penstock sink serve`)" in capsys.readouterr().err
    assert main([]) == 2
    assert "--endpoint (PENSTOCK_SINK_ENDPOINT): is missing" in capsys.readouterr().err
    assert main(["--endpoint", "nonsense"]) == 2
    assert "--endpoint (PENSTOCK_SINK_ENDPOINT): 'nonsense' is not a HOST:PORT" in capsys.readouterr().err


def test_a_wrong_token_is_code_1(emulator: RunningEmulator) -> None:
    """The gateway is there, and says no."""
    arguments = ["serve", "--endpoint-url", emulator.endpoint_url]
    environ = {**os.environ, **ENVIRONMENT, "PENSTOCK_SINK_TOKEN": "a-right-token-of-tests-with-32-characters"}
    with service_process(MODULE, arguments, environ) as gateway:
        command = ["stats", "--endpoint", gateway.address, "--over", "0.1"]
        for token, code in (
            ("guessed-by-somebody-with-32-characters", 1),
            ("a-right-token-of-tests-with-32-characters", 0),
        ):
            done = run_main(main, command, environ={**environ, "PENSTOCK_SINK_TOKEN": token})
            assert done.returncode == code
            assert token not in done.stderr
            assert ("the token is wrong or expired" in done.stderr) is (code == 1)


def test_rates_are_changes_per_second_and_begin_again_with_the_gateway() -> None:
    """A restarted gateway counts from zero: no rate is negative."""
    rates = Rates()
    assert rates.is_new
    for now, records, wanted in ((10.0, 100, 0.0), (12.0, 300, 100.0), (13.0, 50, 50.0)):
        stats = pb.DestinationStats(kind="kinesis", destination="flights", records_out=records)
        assert rates.add([stats], now)["kinesis", "flights"]["goodput_per_second"] == wanted
    assert not rates.is_new


def test_no_rate_is_below_zero_after_a_restart() -> None:
    """A restarted gateway has written more than its predecessor, and been throttled less."""
    rates = Rates()
    rates.add([pb.DestinationStats(kind="kinesis", destination="flights", records_out=10, throttled=8)], 0.0)
    after = pb.DestinationStats(kind="kinesis", destination="flights", records_out=20, throttled=2)
    found = rates.add([after], 2.0)["kinesis", "flights"]
    assert (found["goodput_per_second"], found["throttled_per_second"]) == (10.0, 1.0)


def test_an_entry_that_holds_the_others_is_in_the_table() -> None:
    """Its time, and the code of its latest failure; what it waits for, if it did not fail."""
    for code, shown in (("InternalFailure", "12 s InternalFailure"), ("", "12 s rate")):
        one = pb.DestinationStats(
            kind="kinesis", destination="flights", held_seconds=12.3, held_reason="rate", held_error_code=code
        )
        out = Terminal()
        screen = Screen(out, environ={"TERM": "xterm", "COLUMNS": "300"})
        screen.show(stats_table([one], Rates().add([one], 0.0)))
        assert shown in out.getvalue()


def test_a_terminal_shows_the_share_of_the_limit() -> None:
    """As a bar, and dead letters in red."""
    one = pb.DestinationStats(
        kind="kinesis", destination="flights", in_flight_messages=500, limit_messages=1000, dead_lettered=3
    )
    out = Terminal()
    screen = Screen(out, environ={"TERM": "xterm", "COLUMNS": "200"})
    screen.show(stats_table([one], Rates().add([one], 0.0)))
    assert "██████ " in out.getvalue()
    assert "\x1b[31m" in out.getvalue()
    assert "DEAD LETTERS" in out.getvalue()
