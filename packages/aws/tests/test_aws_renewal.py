"""Credentials that a service refuses before their time: looked up again, once."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from moto.server import ThreadedMotoServer

from penstock.aws import AwsCredentialsError, AwsOptions, AwsServiceError, AwsSession, JsonClient
from penstock.aws.testing import running_sts


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class Keys:
    """A shared credentials file with one profile, which can be rewritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("AKIAOLD")

    def write(self, access_key: str) -> None:
        self.path.write_text(f"[job]\naws_access_key_id = {access_key}\naws_secret_access_key = hush\n")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Keys:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return Keys(tmp_path / "credentials")


class Service:
    """Answers those who sign with the keys that it knows."""

    def __init__(self, known: Callable[[str], bool], code: str) -> None:
        self.url = ""
        self.signers: list[str] = []
        self._known = known
        self._code = code

    async def answer(self, request: web.Request) -> web.Response:
        signer = request.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        self.signers.append(signer)
        content_type = "application/x-amz-json-1.1"
        if self._known(signer):
            return web.Response(body=json.dumps({"StreamNames": []}), content_type=content_type)
        body = json.dumps({"__type": self._code, "message": "The security token included in the request is expired"})
        return web.Response(status=400, body=body, content_type=content_type)


@asynccontextmanager
async def service(
    known: Callable[[str], bool] = lambda signer: signer != "AKIAOLD",
    code: str = "ExpiredTokenException",
    make: type[Service] = Service,
) -> AsyncIterator[Service]:
    served = make(known, code)
    application = web.Application()
    application.router.add_post("/", served.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    served.url = f"http://{host}:{port}"
    try:
        yield served
    finally:
        await runner.cleanup()


def profile(url: str) -> AwsOptions:
    return AwsOptions(region="us-east-1", endpoint_url=url, profile="job")


@pytest.mark.parametrize("code", ["ExpiredTokenException", "ExpiredToken", "UnrecognizedClientException"])
async def test_a_file_that_was_rewritten_is_read_again(keys: Keys, code: str) -> None:
    """A refused call is signed with the new keys and made once more, and those after it have them at once."""
    async with service(code=code) as served, JsonClient(AwsSession(profile(served.url))) as client:
        with pytest.raises(AwsServiceError):
            await client.call("ListStreams", {})
        assert served.signers == ["AKIAOLD"]
    async with service(code=code) as served, JsonClient(AwsSession(profile(served.url))) as client:
        assert client.session.frozen_credentials().access_key == "AKIAOLD"
        keys.write("AKIANEW")
        assert await client.call("ListStreams", {}) == {"StreamNames": []}
        await client.call("ListStreams", {})
        assert served.signers == ["AKIAOLD", "AKIANEW", "AKIANEW"]


async def test_other_keys_that_are_refused_too_raise(keys: Keys) -> None:
    """One renewal and one more try, no more."""
    async with service(known=lambda signer: False) as served, JsonClient(AwsSession(profile(served.url))) as client:
        client.session.frozen_credentials()
        keys.write("AKIANEW")
        with pytest.raises(AwsServiceError, match="expired"):
            await client.call("ListStreams", {})
        assert served.signers == ["AKIAOLD", "AKIANEW"]


def test_a_role_is_assumed_again(moto_url: str) -> None:
    """Temporary credentials that are refused are replaced by others of the same role."""
    options = AwsOptions(
        region="us-east-1",
        access_key_id="test",
        secret_access_key="test",
        role_arn="arn:aws:iam::123456789012:role/reader",
        sts_endpoint_url=moto_url,
    )
    session = AwsSession(options)
    before = session.frozen_credentials()
    assert session.renew_credentials()
    after = session.frozen_credentials()
    assert after.access_key is not None
    assert after.access_key.startswith("ASIA")
    assert (before.access_key, before.token) != (after.access_key, after.token)
    assert session.sign("POST", "https://x/", {}, b"")["X-Amz-Security-Token"] == after.token


def test_a_web_identity_that_was_renewed_on_disk_is_used(moto_url: str, tmp_path: Path) -> None:
    """The token file is read at each renewal."""
    token = tmp_path / "token"
    token.write_text("first")
    options = AwsOptions(
        region="us-east-1",
        role_arn="arn:aws:iam::123456789012:role/reader",
        web_identity_token_file=str(token),
        sts_endpoint_url=moto_url,
    )
    session = AwsSession(options)
    before = session.frozen_credentials()
    token.write_text("second")
    assert session.renew_credentials()
    assert session.frozen_credentials().token != before.token
    token.unlink()
    held = session.frozen_credentials()
    assert session.renew_credentials(), "others were found a moment ago"
    assert session.frozen_credentials() == held


def test_many_callers_that_are_refused_at_once_renew_once(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within seconds everybody gets the first one's answer; later credentials are looked for again."""
    now = [0.0]
    session = AwsSession(AwsOptions(region="us-east-1", profile="job"), clock=lambda: now[0])
    session.frozen_credentials()
    found: list[bool] = []
    looked: list[None] = []
    find = session._credentials._find

    def counted() -> object:
        looked.append(None)
        return find()

    monkeypatch.setattr(session._credentials, "_find", counted)
    keys.write("AKIANEW")
    threads = [threading.Thread(target=lambda: found.append(session.renew_credentials())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 20
    assert len(looked) == 1
    now[0] = 5.0
    assert not session.renew_credentials()
    assert len(looked) == 2


async def test_a_call_that_was_signed_before_a_renewal_is_made_again(keys: Keys) -> None:
    """Its refusal comes late, when others are in use already: looking again finds nothing else."""
    now, arrived, held = [0.0], asyncio.Event(), asyncio.Event()

    class Slow(Service):
        async def answer(self, request: web.Request) -> web.Response:
            if not arrived.is_set():
                arrived.set()
                await held.wait()
            return await super().answer(request)

    async with service(make=Slow) as served:
        session = AwsSession(profile(served.url), clock=lambda: now[0])
        async with JsonClient(session) as client:
            late = asyncio.create_task(client.call("ListStreams", {}))
            await asyncio.wait_for(arrived.wait(), 10)
            keys.write("AKIANEW")
            await client.call("ListStreams", {})
            now[0] = 6.0
            held.set()
            assert await late == {"StreamNames": []}


def test_a_look_that_finds_nothing_is_repeated_soon(keys: Keys) -> None:
    """After 1, 2, 4 and then every 5 seconds: what replaces a token may be late."""
    now = [0.0]
    session = AwsSession(AwsOptions(region="us-east-1", profile="job"), clock=lambda: now[0])
    session.frozen_credentials()
    assert not session.has_fixed_credentials
    for wait in (1.0, 2.0, 4.0, 5.0):
        assert not session.renew_credentials()
        keys.write("AKIANEW")
        now[0] += wait - 0.1
        assert not session.renew_credentials()
        keys.write("AKIAOLD")
        now[0] += 0.1
    keys.write("AKIANEW")
    assert session.renew_credentials()


def test_sts_refuses_a_web_identity_for_a_while(tmp_path: Path) -> None:
    """Its file is written by others, often some seconds late. A role that is denied stays denied."""
    token = tmp_path / "token"
    token.write_text("first")
    now = [0.0]
    with running_sts() as sts:
        options = AwsOptions(
            region="us-east-1",
            role_arn="arn:aws:iam::123456789012:role/reader",
            web_identity_token_file=str(token),
            sts_endpoint_url=sts.url,
        )
        for refusal, is_retryable in (("ExpiredTokenException", True), ("AccessDenied", False)):
            sts.refusal = (400, refusal)
            with pytest.raises(AwsCredentialsError) as caught:
                AwsSession(options, clock=lambda: now[0]).frozen_credentials()
            assert (caught.value.code, caught.value.is_retryable) == (refusal, is_retryable)
