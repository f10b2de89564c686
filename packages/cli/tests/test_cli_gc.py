"""`penstock gc`: what processes that were really killed left behind."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.cli._gc import main
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.registration import default_store_path

HOLDER = """
import sys
from pathlib import Path
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import ReaderConfig, ReaderHost
from penstock.efo_consumer._embedded import host as home
from penstock.registration import AcquireRequest, open_registry

url, memory = sys.argv[1:]
aws = emulator_options(url)
# Other readers of this machine tidy up its shared memory.
home.MEMORY = Path(memory)
registry = open_registry(aws=aws)
lease = registry.acquire(AcquireRequest(stream_name="flights", consumer_name="left", job_id="a"))
with ReaderHost(aws=aws) as host:
    (folder,) = Path(memory).glob("penstock-reader-*")
    (folder / "0").write_bytes(b"rows")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    delays: dict[str, Any] = {"consumer_creation_delay": timedelta(0), "consumer_deletion_delay": timedelta(0)}
    with running_emulator(enforce_limits=False, **delays) as running:
        running.client().create_stream(StreamName="flights", ShardCount=1)
        yield running


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the reader makes its folder; its state is the test's own."""
    for name, value in {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


def consumers(emulator: RunningEmulator) -> list[str]:
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamARN"]
    return [one["ConsumerStatus"] for one in client.list_stream_consumers(StreamARN=arn)["Consumers"]]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code = main([*arguments, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_a_killed_process_left_is_shown_and_then_removed(
    emulator: RunningEmulator, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it lives nothing of it is touched; its lease is watched until it is known to be dead."""
    arguments = ("--folder", str(memory), "--region", "us-east-1", "--endpoint-url", emulator.endpoint_url)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, emulator.endpoint_url, str(memory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        own = [process.stdout.readline().strip()]
        assert all(Path(folder).is_dir() for folder in own)
        _, shown = run(capsys, *arguments, "--store", "none")
        assert not {one["what"] for one in shown} & set(own)
    finally:
        process.kill()
        process.wait()
    code, shown = run(capsys, *arguments)
    due = {one["what"]: one for one in shown if one["what"] in {*own, "flights/left"}}
    assert code == 0
    assert {one["kind"]: one["fate"] for one in due.values()} == {"reader": "due", "consumer": "due"}
    assert due[own[0]]["bytes"] >= 4
    assert all(Path(folder).is_dir() for folder in own)
    assert consumers(emulator) == ["ACTIVE"]
    code, removed = run(capsys, *arguments, "--remove")
    assert code == 0
    assert {one["what"] for one in removed if one["fate"] == "removed"} >= {*own, "flights/left"}
    assert not any(Path(folder).exists() for folder in own)
    assert consumers(emulator) == []
    code, left = run(capsys, *arguments, "--remove")
    assert (code, [one for one in left if one["what"] in own or one["kind"] == "consumer"]) == (0, [])


def test_folders_that_are_not_ours_to_remove_stay(memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link, a file, and a folder of before the lock that is too young to be known as dead."""
    (memory / "elsewhere").mkdir()
    (memory / "penstock-reader-link").symlink_to(memory / "elsewhere")
    (memory / "penstock-reader-file").touch()
    (memory / "penstock-reader-new").mkdir()
    old = memory / "penstock-reader-old"
    old.mkdir()
    os.utime(old, (time.time() - 3600,) * 2)
    code, shown = run(capsys, "--folder", str(memory), "--store", "none", "--remove")
    here = [one for one in shown if one["what"].startswith(str(memory))]
    assert (code, [(one["what"], one["fate"]) for one in here]) == (0, [(str(old), "removed")])
    assert len(list(memory.iterdir())) == 4


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--registry", "127.0.0.1:1", "--store", "local"], ("--registry", "--store")),
        (["--registry", "127.0.0.1:1", "--region", "eu-west-1"], ("--registry", "--region")),
        (["--registry=127.0.0.1:1", "--endpoint-url=http://127.0.0.1:1"], ("--registry", "--endpoint-url")),
        (["--store", "none", "--tls"], ("--tls", "--store")),
        (["--store", "none", "--ca-file", "nowhere"], ("--ca-file", "--store")),
        (["--store", "none", "--region", "eu-west-1"], ("--region", "--store none")),
        (["--token-file", "nowhere"], ("--token-file", "--registry")),
        (["--store", "none", "--folder", "/nope/typo"], ("--folder", "/nope/typo")),
        (["--store", "bogus"], ("--store", "bogus")),
        (["--store", "sqlite:///nope/typo.db", "--region", "us-east-1"], ("/nope/typo.db",)),
        (["--store", "local", "--endpoint-url", "ftp://127.0.0.1"], ("--endpoint-url",)),
    ],
)
def test_flags_that_are_wrong_or_contradict_each_other_are_refused(
    memory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    flags: tuple[str, ...],
) -> None:
    """By one line that names them, with code 2: none is ignored."""
    monkeypatch.delenv("PENSTOCK_REGISTRY_ENDPOINT", raising=False)
    default_store_path().parent.mkdir(parents=True)
    default_store_path().touch()
    code = main([*arguments, "--json"])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert all(flag in line for flag in flags)


@pytest.mark.parametrize("content", [None, b"", b"a diary"], ids=["none", "empty", "other"])
def test_a_file_that_is_no_store_is_neither_made_nor_changed_by_a_removal(
    memory: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    """Its path was mistyped: that nothing is left over there would be no answer."""
    path = memory.parent / "typo.db"
    if content is not None:
        path.write_bytes(content)
    store = ["--store", f"sqlite://{path}", "--region", "us-east-1"]
    assert main(store) == 2
    shown = capsys.readouterr().err
    assert main([*store, "--remove"]) == 2
    assert capsys.readouterr().err == shown
    assert str(path) in shown
    assert (path.read_bytes() if path.exists() else None) == content
    # The default file of jobs may be missing, but it must not be replaced by another file.
    default_store_path().parent.mkdir(parents=True)
    if content is not None:
        default_store_path().write_bytes(content)
    assert main(["--region", "us-east-1", "--remove"]) == (0 if content is None else 2)
    assert (default_store_path().read_bytes() if default_store_path().exists() else None) == content
