"""The emulator as a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.emulator import EmulatorStartError
from penstock.emulator.__main__ import build_parser, main
from penstock.emulator.testing import start_emulator_process

COMMAND = [sys.executable, "-m", "penstock.emulator"]


def test_a_process_prints_its_endpoints_and_serves(tmp_path: Path) -> None:
    """The ready line has both endpoints, the authority and the pid, on standard output and in the file."""
    ready_file = tmp_path / "ready.json"
    with start_emulator_process("--ready-file", str(ready_file)) as emulator:
        ready = json.loads(ready_file.read_text())
        assert ready == {
            "endpoint_url": emulator.endpoint_url,
            "tls_endpoint_url": emulator.tls_endpoint_url,
            "ca_file": str(emulator.ca_file),
            "endpoints": dict.fromkeys(("kinesis", "firehose", "dynamodbstreams"), emulator.endpoint_url),
            "pid": emulator.pid,
        }
        assert emulator.pid == emulator.process.pid
        client = emulator.client(region="eu-west-1")
        client.create_stream(StreamName="stream", ShardCount=1)
        summary = client.describe_stream_summary(StreamName="stream")["StreamDescriptionSummary"]
        assert summary["StreamARN"].startswith("arn:aws:kinesis:eu-west-1:")
    assert emulator.process.returncode == 0
    assert not emulator.ca_file.exists()


def test_the_ready_file_exists_only_while_the_process_serves(tmp_path: Path) -> None:
    """A start removes the file of an earlier process, even if it fails; the end removes only the process's own file."""
    ready_file = tmp_path / "ready.json"
    ready_file.write_text("of an earlier process")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [*COMMAND, "--port", str(taken.getsockname()[1]), "--ready-file", str(ready_file)]
        assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 2
    assert not ready_file.exists()

    with start_emulator_process("--ready-file", str(ready_file)):
        assert ready_file.exists()
    assert not ready_file.exists()

    with start_emulator_process("--ready-file", str(ready_file)):
        ready_file.write_text("of another process")
    assert ready_file.read_text() == "of another process"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_cleanly(number: signal.Signals) -> None:
    """SIGTERM and SIGINT close everything, with exit code 0 and not a word on standard error."""
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ca_file = Path(json.loads(process.stdout.readline())["ca_file"])
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert not ca_file.exists()


def test_the_process_ends_with_its_parent() -> None:
    """With --exit-with-parent the end of standard input is the end, also when the parent had no time to say so."""
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys\n"
            f"child = subprocess.Popen({[*COMMAND, '--exit-with-parent']!r}, stdin=subprocess.PIPE)\n"
            "child.wait()",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    json.loads(parent.stdout.readline())
    parent.kill()
    # The child holds the other end of this pipe: it reads as ended once the child is gone.
    assert parent.stdout.read() == ""
    parent.wait(20)
    parent.stdout.close()


def test_a_process_that_cannot_start_says_so() -> None:
    """A bad option is reported on standard error, and the context manager raises with the exit code."""
    with pytest.raises(EmulatorStartError) as caught, start_emulator_process("--account-id", "12"):
        pytest.fail("it started")
    assert caught.value.exit_code == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [*COMMAND, "--port", str(taken.getsockname()[1])], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert "the port is taken: choose another by --port" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--behaviour page_span=60,refuse_continuations", "--behaviour: must be NAME=VALUE"),
        ("--behaviour page_span=60,page_span=70", "each name once"),
        ("--operation-limits ListShards=100,CreateStream", "--operation-limits: must be NAME=VALUE"),
        ("--operation-limits ListShards=nan", "--operation-limits: must be positive"),
        ("--operation-limits ListShards=many", "--operation-limits: ListShards must be a number, or none, not 'many'"),
        ("--access-keys a=secret,secret", "--access-keys: must be NAME=VALUE"),
        ("--access-keys a=secret", "--access-keys: does nothing without verify_signatures"),
        ("--no-tls --tls-port 9443", "--tls-port: does nothing without tls"),
        ("--no-tls --ca-file ca.pem", "--ca-file: does nothing without tls"),
        (
            "--no-enforce-limits --operation-limits ListShards=1",
            "--operation-limits: does nothing without enforce_limits",
        ),
        ("--subscription-lifetime inf", "--subscription-lifetime: must be a number of seconds, not 'inf'"),
        ("--retention nan", "--retention: must be a number of seconds, not 'nan'"),
        ("--shard-write-bytes-per-second lots", "must be a number, or none, not 'lots'"),
        ("--ready-file .", "--ready-file: must be a file, and '.' is a folder"),
        ("--ready-file /", "--ready-file: must be a file, and '/' is a folder"),
    ],
)
def test_what_would_do_nothing_is_refused_in_a_line(
    arguments: str, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With code 2, the flag and the cure, before anything is started; secrets are not repeated."""

    async def start(*_: object, **__: object) -> None:
        pytest.fail("it started")

    monkeypatch.setattr("penstock.emulator.__main__._run", start)
    with pytest.raises(SystemExit) as caught:
        main(arguments.split())
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert "secret" not in line


def test_the_help_says_what_each_flag_does() -> None:
    """In the words of `EmulatorConfig`, and with the default."""
    parser = build_parser()
    for action in parser._actions:
        assert len((action.help or "").partition("Default:")[0].split()) >= 3, action.option_strings
    assert "Stream consumers that one stream can have. Default: 20" in " ".join(parser.format_help().split())
