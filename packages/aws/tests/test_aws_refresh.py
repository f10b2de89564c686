"""Credentials that expire, and an STS that is away for a while."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from botocore.exceptions import CredentialRetrievalError

from penstock.aws import AwsCredentialsError, AwsOptions, AwsSession, ErrorKind, JsonClient, classify
from penstock.aws.testing import Sts, running_sts


@pytest.fixture
def sts() -> Iterator[Sts]:
    with running_sts() as running:
        yield running


@asynccontextmanager
async def kinesis(revoked: str = "") -> AsyncIterator[tuple[str, list[str]]]:
    """A service that takes any signature but of a revoked key; its URL, and the access keys that signed."""
    signers: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        signers.append(request.headers["Authorization"].partition("Credential=")[2].partition("/")[0])
        if signers[-1] == revoked:
            return web.json_response({"__type": "ExpiredTokenException", "message": "revoked"}, status=400)
        return web.json_response({"StreamNames": []}, content_type="application/x-amz-json-1.1")

    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}", signers
    finally:
        await runner.cleanup()


async def test_old_credentials_are_used_while_sts_is_away(sts: Sts, caplog: pytest.LogCaptureFixture) -> None:
    """STS is asked again with back-off, one warning names the cause, and the new ones are used once they come."""
    caplog.set_level(logging.WARNING)
    sts.lifetime = timedelta(minutes=5)
    now = [0.0]
    async with kinesis() as (url, signers):
        session = AwsSession(sts.options(url), clock=lambda: now[0])
        async with JsonClient(session) as client:
            await client.call("ListStreams", {})
            sts.refusal = (503, "ServiceUnavailable")
            sts.lifetime = timedelta(hours=1)
            before = sts.asked
            async with asyncio.timeout(60):
                # One refresh is two attempts of botocore's; until it has ended no other one begins.
                while sts.asked < before + 6:
                    now[0] += 60.0
                    await client.call("ListStreams", {})
                while (sts.asked - before) % 2:
                    await client.call("ListStreams", {})
            asked = sts.asked
            await client.call("ListStreams", {})
            assert sts.asked == asked, "asked again before its time"
            assert set(signers) == {"ASIA1"}
            (warning,) = [one.getMessage() for one in caplog.records]
            assert "ServiceUnavailable" in warning
            sts.refusal = None
            async with asyncio.timeout(20):
                while signers[-1] != "ASIA2":
                    now[0] += 60.0
                    await client.call("ListStreams", {})
            assert sts.given == 2


async def test_revoked_credentials_are_an_error_that_passes_while_sts_is_away(sts: Sts) -> None:
    """Though they would be valid for an hour: other credentials may not exist yet."""
    now = [0.0]
    async with kinesis(revoked="ASIA1") as (url, signers):
        session = AwsSession(sts.options(url), clock=lambda: now[0])
        async with JsonClient(session) as client, session.aio_client("kinesis") as aio:
            session.frozen_credentials()
            sts.refusal = (503, "ServiceUnavailable")
            for _ in range(2):
                for call in (client.call("ListStreams", {}), aio.call("list_streams")):
                    with pytest.raises(AwsCredentialsError, match="ServiceUnavailable") as caught:
                        await call
                    assert classify(caught.value) is ErrorKind.RETRYABLE
                now[0] += 60.0
            sts.refusal = None
            await client.call("ListStreams", {})
            await aio.call("list_streams")
            assert signers == ["ASIA1", "ASIA2", "ASIA2"]


def test_refused_credentials_are_taken_away_under_their_callers(sts: Sts) -> None:
    """While others sign with them: these get credentials or the error that passes, and nothing else."""
    session = AwsSession(sts.options("http://127.0.0.1:1"), clock=lambda: 0.0)
    session.frozen_credentials()
    found: list[object] = []
    stop = threading.Event()

    def sign() -> None:
        while not stop.is_set():
            try:
                found.append(session.frozen_credentials().access_key)
            except Exception as error:
                found.append(type(error))

    signers = [threading.Thread(target=sign) for _ in range(4)]
    for thread in signers:
        thread.start()
    sts.refusal = (503, "ServiceUnavailable")
    assert session.renew_credentials()
    stop.set()
    for thread in signers:
        thread.join()
    with pytest.raises(AwsCredentialsError):
        session.frozen_credentials()
    assert set(found) <= {"ASIA1", AwsCredentialsError}


async def test_expired_credentials_are_an_error_that_passes(sts: Sts) -> None:
    """Many who ask at once ask STS once; the error names its answer, and later calls succeed."""
    sts.lifetime = timedelta(seconds=0.5)
    now = [0.0]
    async with kinesis() as (url, signers):
        session = AwsSession(sts.options(url), clock=lambda: now[0])
        async with JsonClient(session) as client, session.aio_client("kinesis") as aio:
            await client.call("ListStreams", {})
            sts.refusal = (503, "ServiceUnavailable")
            async with asyncio.timeout(20):
                while not session.must_fetch_credentials:  # noqa: ASYNC110  # they expire by the system's clock
                    await asyncio.sleep(0.01)
            asked = sts.asked
            failures = await asyncio.gather(
                *(client.call("ListStreams", {}) for _ in range(5)),
                *(session.signed("POST", url, {}, b"") for _ in range(5)),
                asyncio.to_thread(session.client("kinesis").list_streams),
                aio.call("list_streams"),
                return_exceptions=True,
            )
            for failure in failures:
                assert isinstance(failure, AwsCredentialsError)
                assert classify(failure) is ErrorKind.RETRYABLE
                assert failure.code == "ServiceUnavailable"
                assert "AssumeRole" in str(failure)
            # botocore itself asks once more.
            assert sts.asked - asked == 2
            sts.refusal, sts.lifetime = None, timedelta(hours=1)
            now[0] += 60.0
            await client.call("ListStreams", {})
            await aio.call("list_streams")
            assert signers == ["ASIA1", "ASIA2", "ASIA2"]


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [((403, "AccessDenied"), ErrorKind.FATAL), ((500, "InternalFailure"), ErrorKind.RETRYABLE)],
)
def test_what_sts_says_decides_whether_it_passes(sts: Sts, refusal: tuple[int, str], kind: ErrorKind) -> None:
    """A role that must not be assumed raises at once."""
    sts.refusal = refusal
    with pytest.raises(AwsCredentialsError, match=refusal[1]) as caught:
        AwsSession(sts.options("http://127.0.0.1:1")).frozen_credentials()
    assert classify(caught.value) is kind


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ("credential_process = cat {}", "CredentialRetrievalError", "the credential process failed"),
        ("credential_process = {}", "FileNotFoundError", "No such file or directory"),
        (
            "role_arn = arn:aws:iam::123456789012:role/r\nweb_identity_token_file = {}",
            "FileNotFoundError",
            "No such file or directory",
        ),
    ],
    ids=["process", "no process", "token"],
)
def test_a_source_of_this_host_that_fails_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    settings: str,
    code: str,
    words: str,
) -> None:
    """Its path, and what a process of it said, are in the log alone: services pass errors on to their clients."""
    (tmp_path / "config").write_text("[profile job]\n" + settings.format(tmp_path / "nowhere") + "\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    session = AwsSession(AwsOptions(region="us-east-1", profile="job"))
    with pytest.raises(AwsCredentialsError, match=f"{code}: {words}") as caught:
        session.frozen_credentials()
    assert isinstance(caught.value.__cause__, CredentialRetrievalError | FileNotFoundError)
    assert classify(caught.value) is ErrorKind.RETRYABLE
    assert "nowhere" not in str(caught.value) + repr(vars(caught.value))
    assert [line for line in caplog.messages if f"cannot fetch AWS credentials: {code}: " in line and "nowhere" in line]


def test_a_missing_login_raises_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A new login does not happen automatically."""
    (tmp_path / "config").write_text(
        "[profile job]\nsso_start_url = https://sso.invalid\nsso_region = us-east-1\nsso_account_id = 123456789012\n"
        "sso_role_name = reader\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(AwsCredentialsError, match="SSO") as caught:
        AwsSession(AwsOptions(region="us-east-1", profile="job")).frozen_credentials()
    assert classify(caught.value) is ErrorKind.FATAL


@pytest.mark.parametrize("place", ["profile", "source profile"])
def test_a_credential_process_does_not_inherit_the_tokens_of_services(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    """All other variables it does."""
    seen = tmp_path / "seen"
    command = tmp_path / "command"
    command.write_text(f"#!/bin/sh\nenv > {seen}\nexit 1\n")
    command.chmod(0o700)
    profiles = {
        "profile": f"[profile job]\ncredential_process = {command}\n",
        "source profile": "[profile job]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = base\n"
        f"[profile base]\ncredential_process = {command}\n",
    }
    (tmp_path / "config").write_text(profiles[place])
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    tokens = ("PENSTOCK_REGISTRY_TOKEN", "PENSTOCK_READER_TOKEN_FILE", "PENSTOCK_CONSOLE_SERVICES_TOKEN")
    for name in (*tokens, "PENSTOCK_READER_HOST"):
        monkeypatch.setenv(name, "planted")
    with pytest.raises(AwsCredentialsError):
        AwsSession(AwsOptions(region="us-east-1", profile="job")).frozen_credentials()
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert not names & set(tokens)
    assert {"PENSTOCK_READER_HOST", "AWS_CONFIG_FILE"} <= names
