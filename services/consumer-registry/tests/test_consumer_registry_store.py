"""What jobs keep without a service is looked at in their store, which stays as it is."""

import asyncio
import json
import socket
import sqlite3
import uuid
from pathlib import Path

import pytest
from registry_process import MakeRequest

from penstock.aws import AwsOptions, AwsSession
from penstock.emulator.testing import RunningEmulator
from penstock.registration import default_store_path, open_local_registry, open_registry, open_store
from penstock.services.consumer_registry.__main__ import main


@pytest.fixture
def aws(emulator: RunningEmulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AwsOptions:
    """The store of a job, and of the command by its environment. The default store belongs to this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    options = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PENSTOCK_REGISTRY_ENDPOINT", raising=False)
    monkeypatch.setenv("PENSTOCK_REGISTRY_ENDPOINT_URL", emulator.endpoint_url)
    return AwsOptions(region="us-east-1", endpoint_url=emulator.endpoint_url)


def ls(capsys: pytest.CaptureFixture[str], url: str, *flags: str) -> tuple[int, str, str]:
    code = main(["--registry-store", url, *flags])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("place", ["local", "sqlite"])
def test_the_consumers_of_a_job_are_listed_from_its_own_file(
    aws: AwsOptions,
    request_lease: MakeRequest,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    place: str,
) -> None:
    """While it runs, and after it has died: the default file, or one that is named. Those of another region are not."""
    file = tmp_path / "leases.db"
    url = "local" if place == "local" else f"sqlite://{file}"
    with open_registry(aws=aws, store_path=None if place == "local" else file) as registry:
        lease = registry.acquire(request_lease("job-17"))
        code, out, _ = ls(capsys, url)
        assert (code, out.split("\t")[:4]) == (0, ["flights", "delays", "ACTIVE", "job-17"])
        code, out, _ = ls(capsys, url, "--json", "--no-state")
        assert (code, json.loads(out)["lease"]["fencing_token"]) == (0, lease.fencing_token)
        assert ls(capsys, url, "--no-state", "--region", "eu-west-1", "--endpoint-url", "")[:2] == (0, "")
        registry.release(lease)
    assert (file.exists(), default_store_path().exists()) == (place == "sqlite", place == "local")


def test_a_store_that_is_not_there_is_not_made(
    aws: AwsOptions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor is another file changed: code 2 for a file, 3 for a table that is not reached."""
    code, _, said = ls(capsys, "local")
    assert (code, "no job keeps its leases there" in said) == (2, True)
    assert not default_store_path().parent.exists()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE flights (carrier TEXT)")
    connection.close()
    before = other.read_bytes()
    code, _, said = ls(capsys, f"sqlite://{other}")
    assert (code, "it holds no leases" in said, other.read_bytes() == before) == (2, True, True)
    code, _, said = ls(capsys, "redis://somewhere")
    assert (code, "--registry-store: 'redis://somewhere'" in said) == (2, True)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", f"http://127.0.0.1:{bound.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        code, _, said = ls(capsys, "dynamodb://leases")
    assert (code, "dynamodb://leases" in said) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--registry-store", "local", "--endpoint", "127.0.0.1:1"], ("--endpoint", "--registry-store")),
        (["--registry-store=local", "--token-file=nowhere"], ("--token-file", "--registry-store")),
        (["--registry-store", "local", "--tls", "--json"], ("--tls", "--registry-store")),
        (["--endpoint", "127.0.0.1:1", "--region", "eu-west-1"], ("--region", "--registry-store")),
        (["--endpoint=127.0.0.1:1", "--role-arn=arn"], ("--role-arn", "--registry-store")),
        (["--ca-bundle", "nowhere"], ("--ca-bundle", "--registry-store")),
    ],
)
def test_flags_of_a_service_and_of_a_store_exclude_each_other(
    aws: AwsOptions, capsys: pytest.CaptureFixture[str], arguments: list[str], flags: tuple[str, str]
) -> None:
    """One line names both."""
    code = main(arguments)
    said = capsys.readouterr()
    assert (code, said.out, len(said.err.splitlines())) == (2, "", 1)
    assert all(flag in said.err for flag in flags)


def test_a_flag_beats_the_variables_of_the_other_side(
    aws: AwsOptions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Variables may be set together; only flags are meant for this one look."""
    for name, value in {"ENDPOINT": "127.0.0.1:1", "CA_FILE": "nowhere", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"PENSTOCK_REGISTRY_{name}", value)
    with open_registry(aws=aws, store_path=tmp_path / "leases.db") as registry:
        registry.list_consumers()
    assert ls(capsys, f"sqlite://{tmp_path}/leases.db")[0] == 0
    monkeypatch.delenv("PENSTOCK_REGISTRY_CA_FILE")
    assert main(["--endpoint", "127.0.0.1:1"]) == 3


def test_a_table_is_looked_at_and_never_made(
    aws: AwsOptions,
    dynamodb: str,
    request_lease: MakeRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing file is reported with code 1; the file of a registry is listed."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb)
    table = f"leases-{uuid.uuid4().hex[:8]}"
    code, _, said = ls(capsys, f"dynamodb://{table}")
    assert (code, "ResourceNotFoundException" in said) == (1, True)
    session = AwsSession(aws)
    assert table not in session.client("dynamodb").list_tables()["TableNames"]

    async def acquire() -> None:
        registry = open_local_registry(session, store=open_store(f"dynamodb://{table}", session))
        await registry.acquire(request_lease("job-18", consumer_name="table"))
        await registry.close()

    asyncio.run(acquire())
    code, out, _ = ls(capsys, f"dynamodb://{table}", "--no-state")
    assert (code, out.split("\t")[:4]) == (0, ["flights", "table", "?", "job-18"])
