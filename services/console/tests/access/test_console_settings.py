"""What the console is told, and what it refuses to be told."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from penstock.rpc import RpcOptionError, ServerSecurity, ServerSettings
from penstock.services.console.__main__ import main
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._values import Kind
from penstock.services.console.errors import ConsoleOptionError

TOKEN = "a-long-secret-of-the-console"


def settings(*flags: str, **environment: str) -> ConsoleSettings:
    parser = argparse.ArgumentParser()
    ConsoleSettings.add_arguments(parser)
    return ConsoleSettings.from_arguments(parser.parse_args(flags), environment)


def test_nothing_is_asked_and_nothing_may_be_done_by_default() -> None:
    """It listens on loopback, without any service."""
    found = settings()
    assert (found.server.host, found.endpoints, found.aws, found.allow_actions) == ("127.0.0.1", (), None, False)


def test_several_readers_come_from_flags_and_commas() -> None:
    """Each once, in their order."""
    flags = ["--reader-endpoint", "a:1,b:2", "--reader-endpoint", "c:3", "--reader-endpoint=a:1"]
    found = settings(*flags, "--registry-endpoint", "[::1]:4")
    assert [(one.kind, one.address) for one in found.endpoints] == [
        (Kind.REGISTRY, "[::1]:4"),
        (Kind.READER, "a:1"),
        (Kind.READER, "b:2"),
        (Kind.READER, "c:3"),
    ]


def test_variables_stand_behind_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags replace what the environment says."""
    monkeypatch.setenv("PENSTOCK_CONSOLE_SINK_ENDPOINT", "a:1,b:2")
    monkeypatch.setenv("PENSTOCK_CONSOLE_ALLOW_ACTIONS", "true")
    assert [one.address for one in settings().endpoints] == ["a:1", "b:2"]
    assert settings().allow_actions
    assert [one.address for one in settings("--sink-endpoint", "c:3").endpoints] == ["c:3"]


def test_tokens_are_of_one_service_or_of_all(tmp_path: Path) -> None:
    """They are read when a channel is opened, so that they may change; and are never shown."""
    file = tmp_path / "token"
    file.write_text("# of the registry\nfirst 2099-01-01T00:00:00Z\nsecond\n")
    flags = ["--registry-endpoint=127.0.0.1:1", "--stages-endpoint=127.0.0.1:2", f"--registry-token-file={file}"]
    environment = {"PENSTOCK_CONSOLE_SERVICES_TOKEN": TOKEN}
    registry, stages = settings(*flags, **environment).endpoints
    source = registry.security(environment).token_source()
    assert source is not None
    assert source() == "first"
    assert stages.security(environment).token == TOKEN
    assert TOKEN not in repr(settings(*flags, **environment))
    file.write_text("third\n")
    assert source() == "third"


@pytest.mark.parametrize(
    ("flags", "option"),
    [
        (["--host", "0.0.0.0"], "host"),
        (["--registry-endpoint", "nowhere"], "registry_endpoint"),
        (["--interval-seconds", "soon"], "interval_seconds"),
        (["--interval-seconds", "0"], "interval_seconds"),
        (["--history-points", "nan"], "history_points"),
        (["--list-shards", "maybe"], "list_shards"),
        (["--dead-letters", "orders"], "dead_letters"),
        (["--dead-letters", "orders="], "dead_letters"),
        (["--dead-letters", "=letters"], "dead_letters"),
        (["--dead-letters", "orders=letters", "--dead-letters", "orders=others"], "dead_letters"),
        (["--dead-letters", "orders=s3://bucket/letters"], "dead_letters"),
        (["--registry-endpoint", "127.0.0.1:1", "--services-token-file", "/nonexistent"], "token_file"),
        (["--registry-endpoint", "a:1", "--services-certificate-file", "/nonexistent"], "private_key_file"),
    ],
)
def test_a_wrong_setting_is_named(flags: list[str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2."""
    with pytest.raises((ConsoleOptionError, RpcOptionError)) as caught:
        settings(*flags)
    assert isinstance(caught.value, ConsoleOptionError | RpcOptionError)
    assert caught.value.option == option
    assert main(["serve", *flags]) == 2
    assert f"penstock-console: {option}: " in capsys.readouterr().err


def test_a_socket_is_refused_because_browsers_know_none() -> None:
    """The services' flag for it would do nothing here."""
    with pytest.raises(RpcOptionError) as refused:
        settings("--socket-path", "/run/penstock/console")
    assert refused.value.option == "socket_path"


def test_it_is_not_shown_to_other_machines_without_a_proof() -> None:
    """A token does, a certificate alone does not: any browser could read."""
    pair: dict[str, Any] = {"certificate_file": Path("a.pem"), "private_key_file": Path("a.key")}
    with pytest.raises(RpcOptionError, match="client_ca_file"):
        ServerSettings(host="0.0.0.0", security=ServerSecurity(**pair))
    with pytest.raises(RpcOptionError, match="plain text"):
        settings("--host", "0.0.0.0", PENSTOCK_CONSOLE_TOKEN=TOKEN)
    behind = settings("--host", "0.0.0.0", "--allow-plain-text", PENSTOCK_CONSOLE_TOKEN=TOKEN)
    assert behind.server.host == "0.0.0.0"
    mutual = ServerSecurity(**pair, client_ca_file=Path("ca.pem"))
    assert ConsoleSettings(server=ServerSettings(host="0.0.0.0", security=mutual)).server.security == mutual


def test_a_token_is_not_sent_in_plain_text() -> None:
    """To another machine, that is."""
    with pytest.raises(RpcOptionError, match="plain text"):
        settings("--registry-endpoint", "10.0.0.1:5", PENSTOCK_CONSOLE_SERVICES_TOKEN=TOKEN)
