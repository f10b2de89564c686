"""Settings that the console accepts, and settings that it refuses."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from penstock.aws import AwsOptions
from penstock.rpc import RpcOptionError, ServerSecurity, ServerSettings
from penstock.services.console.__main__ import main
from penstock.services.console._settings import ConsoleSettings
from penstock.services.console._values import Kind

TOKEN = "a-long-secret-of-the-console-with-32-characters"
FIRST = "the-first-of-a-file-with-32-characters-or-more"


def settings(*flags: str, **environment: str) -> ConsoleSettings:
    parser = argparse.ArgumentParser()
    ConsoleSettings.add_arguments(parser)
    return ConsoleSettings.from_arguments(parser.parse_args(flags), environment)


def test_nothing_is_asked_by_default() -> None:
    """It listens on loopback, without any service."""
    found = settings()
    assert (found.server, found.endpoints, found.aws) == (ServerSettings(), (), None)


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"])
def test_all_streams_are_listed_where_the_environment_says_where_aws_is(variable: str) -> None:
    """Without a flag, and unless a flag says no."""
    found = settings(**{variable: "eu-west-1"})
    assert (found.aws, found.list_streams) == (AwsOptions(), True)
    assert settings("--list-shards", "false", **{variable: "eu-west-1"}).aws is None
    assert not settings("--list-streams", "false", **{variable: "eu-west-1"}).list_streams


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
    monkeypatch.setenv("PENSTOCK_CONSOLE_SERVICES_TLS", "true")
    assert [one.address for one in settings().endpoints] == ["a:1", "b:2"]
    assert all(one.tls for one in settings().endpoints)
    assert [one.address for one in settings("--sink-endpoint", "c:3").endpoints] == ["c:3"]


def test_tokens_are_of_one_service_or_of_all(tmp_path: Path) -> None:
    """They are read when a channel is opened, so that they may change; and are never shown."""
    file = tmp_path / "token"
    file.write_text(f"# of the registry\n{FIRST} 2099-01-01T00:00:00Z\n{TOKEN}\n")
    flags = ["--registry-endpoint=127.0.0.1:1", "--stages-endpoint=127.0.0.1:2", f"--registry-token-file={file}"]
    environment = {"PENSTOCK_CONSOLE_SERVICES_TOKEN": TOKEN}
    registry, stages = settings(*flags, **environment).endpoints
    source = registry.security(environment).token_source()
    assert source is not None
    assert source() == FIRST
    assert stages.security(environment).token == TOKEN
    assert TOKEN not in repr(settings(*flags, **environment))
    file.write_text(f"third-{TOKEN}\n")
    assert source() == f"third-{TOKEN}"


@pytest.mark.parametrize(
    ("flags", "option"),
    [
        (["--host", "0.0.0.0"], "host"),
        (["--registry-endpoint", "nowhere"], "registry_endpoint"),
        (["--interval-seconds", "soon"], "interval_seconds"),
        (["--interval-seconds", "0"], "interval_seconds"),
        (["--lag-alert-seconds", "nan"], "lag_alert_seconds"),
        (["--list-shards", "maybe"], "list_shards"),
        (["--port", "http"], "port"),
        (["--port", "65536"], "port"),
        (["--drain-seconds", "-1"], "drain_seconds"),
        (["--drain-seconds", "nan"], "drain_seconds"),
        (["--sink-endpoint", "127.0.0.1:99999"], "sink_endpoint"),
        (["--registry-endpoint", "127.0.0.1:1", "--services-token-file", "/nonexistent"], "services_token_file"),
        (["--stages-endpoint", "127.0.0.1:1", "--stages-token-file", "/nonexistent"], "stages_token_file"),
        (["--registry-endpoint", "a:1", "--services-certificate-file", "/nonexistent"], "services_private_key_file"),
        (["--token-file", "/nonexistent"], "token_file"),
        (["--certificate-file", "/nonexistent"], "private_key_file"),
    ],
)
def test_a_wrong_setting_is_named(flags: list[str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By its flag and its variable, with exit code 2."""
    with pytest.raises(RpcOptionError) as caught:
        settings(*flags)
    assert caught.value.option == option
    assert main(["serve", *flags]) == 2
    flag = option.replace("_", "-")
    assert f"penstock console: --{flag} (PENSTOCK_CONSOLE_{option.upper()}): " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--services-ca-file", "ca.pem"],
            "--services-ca-file (PENSTOCK_CONSOLE_SERVICES_CA_FILE): no service",
        ),
        (["--services-certificate-file", "c.pem"], "--services-certificate-file"),
        (["--services-private-key-file", "k.pem"], "--services-private-key-file"),
        (["--services-token-file", "token"], "--services-token-file"),
        (
            ["--services-tls"],
            "--services-tls (PENSTOCK_CONSOLE_SERVICES_TLS): no service is asked: give",
        ),
        (
            ["--sink-endpoint", "127.0.0.1:1", "--reader-token-file", "token"],
            "--reader-token-file (PENSTOCK_CONSOLE_READER_TOKEN_FILE): needs --reader-endpoint",
        ),
        (
            ["--allow-insecure-endpoint", "maybe"],
            "--allow-insecure-endpoint (PENSTOCK_CONSOLE_ALLOW_INSECURE_ENDPOINT): 'maybe' is neither true nor false",
        ),
        (
            ["--list-shards", "false", "--list-streams", "true"],
            "--list-streams (PENSTOCK_CONSOLE_LIST_STREAMS): does not go with --list-shards false",
        ),
        (["--list-streams", "true"], "--list-streams (PENSTOCK_CONSOLE_LIST_STREAMS): needs --region"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the setting that it needs, or does not go with."""
    with pytest.raises(RpcOptionError):
        settings(*flags)
    assert main(["serve", *flags]) == 2
    assert f"penstock console: {words}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["services_tls", "allow_plain_text"])
def test_a_switch_that_is_neither_true_nor_false_is_refused(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The services would be asked in plain text."""
    monkeypatch.setenv(f"PENSTOCK_CONSOLE_{option.upper()}", "yes")
    assert main(["serve"]) == 2
    assert f"(PENSTOCK_CONSOLE_{option.upper()}): 'yes' is neither true nor false" in capsys.readouterr().err


def test_a_host_that_is_not_there_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2, as other wrong settings."""
    assert main(["serve", "--host", "nowhere.invalid", "--allow-plain-text", "--allow-unauthenticated"]) == 2
    said = capsys.readouterr().err
    assert "nowhere.invalid" in said
    assert said.count("\n") == 1


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
