"""Each way to give credentials, as options of the data source, against the emulator and an STS."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

import pytest

from penstock.aws import AwsSession
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._connections import aws_options

ROLE = "arn:aws:iam::123456789012:role/reader"


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    """A Kinesis, and an STS."""
    with running_emulator(companions=("sts",)) as running:
        yield running


class _Sts(BaseHTTPRequestHandler):
    """Notes what STS is asked, and passes it on."""

    target: ClassVar[str] = ""
    asked: ClassVar[list[dict[str, str]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        call = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        self.asked.append({**call, "signedBy": _key_of(self.headers.get("Authorization", ""))})
        headers = {key: value for key, value in self.headers.items() if key != "Host"}
        with urlopen(Request(self.target, body, headers), timeout=20) as answer:
            content = answer.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def _key_of(authorization: str) -> str:
    return authorization.partition("Credential=")[2].partition("/")[0]


@pytest.fixture
def sts(emulator: RunningEmulator) -> Iterator[str]:
    """The URL of an STS whose calls are in `_Sts.asked`."""
    _Sts.target = emulator.endpoints["sts"]
    _Sts.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sts)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def connect(emulator: RunningEmulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., AwsSession]:
    """A session by options, which has called Kinesis once; the environment has nothing of its own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "credentials").write_text("[other]\naws_access_key_id = PROFILEKEY\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def make(**options: str) -> AwsSession:
        given = {"streamName": "s", "region": "us-east-1", "endpointUrl": emulator.endpoint_url, **options}
        session = AwsSession(aws_options(KinesisOptions.parse(given)))
        session.client("kinesis").list_streams()
        return session

    return make


def test_keys_with_and_without_a_token(connect: Callable[..., AwsSession]) -> None:
    """They sign, by the names of each connector."""
    found = connect(awsAccessKeyId="K", awsSecretAccessKey="s", awsSessionToken="t").frozen_credentials()
    assert (found.access_key, found.secret_key, found.token) == ("K", "s", "t")
    for key, secret in (
        ("awsAccessKey", "awsSecretKey"),
        ("kinesis.awsAccessKeyId", "kinesis.awsSecretKey"),
        ("aws.credentials.provider.basic.accesskeyid", "aws.credentials.provider.basic.secretkey"),
        ("aws.credentials.basic.accesskeyid", "aws.credentials.basic.secretkey"),
    ):
        found = connect(**{key: "K2", secret: "s2"}).frozen_credentials()
        assert (found.access_key, found.secret_key, found.token) == ("K2", "s2", None)


def test_a_profile(connect: Callable[..., AwsSession]) -> None:
    """Of the shared files."""
    assert connect(awsProfile="other").frozen_credentials().access_key == "PROFILEKEY"
    options = {"aws.credentials.provider": "PROFILE", "aws.credentials.provider.profile.name": "other"}
    assert connect(**options).frozen_credentials().access_key == "PROFILEKEY"


def test_the_default_chain(connect: Callable[..., AwsSession], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given: the environment has it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert connect().frozen_credentials().access_key == "ENVKEY"
    assert connect(**{"aws.credentials.provider": "ENV_VAR"}).frozen_credentials().access_key == "ENVKEY"


@pytest.mark.parametrize("dialect", ["penstock", "databricks", "flink", "aws"])
def test_a_role_with_session_name_and_external_id(connect: Callable[..., AwsSession], sts: str, dialect: str) -> None:
    """It is assumed at the given STS with the given keys, and its own keys sign the calls to Kinesis."""
    flink = "aws.credentials.provider.role"
    names = {
        "penstock": (
            "roleArn",
            "roleSessionName",
            "roleExternalId",
            "stsEndpointUrl",
            "awsAccessKeyId",
            "awsSecretAccessKey",
        ),
        "databricks": ("roleArn", "roleSessionName", "roleExternalId", "stsEndpoint", "awsAccessKey", "awsSecretKey"),
        "flink": (
            *(f"{flink}.{name}" for name in ("arn", "sessionName", "externalId", "stsEndpoint")),
            *(f"{flink}.provider.basic.{name}" for name in ("accesskeyid", "secretkey")),
        ),
        "aws": (
            *("kinesis.stsRoleArn", "kinesis.stsSessionName", "roleExternalId", "kinesis.stsEndpointUrl"),
            *("kinesis.awsAccessKeyId", "kinesis.awsSecretKey"),
        ),
    }[dialect]
    values = (ROLE, "nightly", "a-condition", sts, "SOURCEKEY", "s")
    session = connect(**dict(zip(names, values, strict=True)))
    (call,) = _Sts.asked
    assert (call["Action"], call["RoleArn"], call["signedBy"]) == ("AssumeRole", ROLE, "SOURCEKEY")
    assert (call["RoleSessionName"], call["ExternalId"]) == ("nightly", "a-condition")
    found = session.frozen_credentials()
    assert found.access_key != "SOURCEKEY"
    assert found.token


def test_a_web_identity(connect: Callable[..., AwsSession], sts: str, tmp_path: Path) -> None:
    """The token of the file is exchanged for the role's keys, with no others."""
    (tmp_path / "token").write_text("a.web.token")
    options = {"webIdentityTokenFile": str(tmp_path / "token"), "awsCredentialsProvider": "web_identity_token"}
    session = connect(roleArn=ROLE, roleSessionName="pod", stsEndpointUrl=sts, **options)
    (call,) = _Sts.asked
    assert (call["Action"], call["WebIdentityToken"]) == ("AssumeRoleWithWebIdentity", "a.web.token")
    assert (call["RoleSessionName"], call["signedBy"]) == ("pod", "")
    assert session.frozen_credentials().token
