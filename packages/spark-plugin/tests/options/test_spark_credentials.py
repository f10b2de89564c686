"""Each way to give credentials, as options of the data source, against the emulator and an STS."""

import importlib
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

import botocore.session
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.aws import AwsCredentialsError, AwsOptionError, AwsOptions, AwsSession
from penstock.aws._provider import provided_credentials
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._connections import aws_options, shared_session
from penstock.spark_plugin._writing.writer import KinesisBatchWriter

ROLE = "arn:aws:iam::123456789012:role/reader"


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    """A Kinesis, and an STS."""
    with running_emulator(companions=("sts",), enforce_limits=False) as running:
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
    """A profile of the shared files."""
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


SECOND = "arn:aws:iam::123456789012:role/second"


def test_a_chain_of_roles_with_duration_and_tags(connect: Callable[..., AwsSession], sts: str) -> None:
    """The second role is assumed with the keys of the first; duration, tags and external id are the second's."""
    connect(
        roleArn=f"{ROLE}, {SECOND}",
        roleSessionName="chain",
        roleSessionDuration="30m",
        roleSessionTags="team=data,stage=prod",
        roleExternalId="a-condition",
        stsEndpointUrl=sts,
        awsAccessKeyId="SOURCEKEY",
        awsSecretAccessKey="s",
    )
    first, second = _Sts.asked
    assert (first["RoleArn"], first["signedBy"], first.get("DurationSeconds")) == (ROLE, "SOURCEKEY", None)
    assert (second["RoleArn"], second["DurationSeconds"], second["ExternalId"]) == (SECOND, "1800", "a-condition")
    assert second["signedBy"].startswith(("ASIA", "LSIA"))
    assert [second[f"Tags.member.{number}.{part}"] for number in (1, 2) for part in ("Key", "Value")] == [
        *("team", "data"),
        *("stage", "prod"),
    ]
    assert first["RoleSessionName"] == second["RoleSessionName"] == "chain"


PROVIDER = """
from datetime import UTC, datetime, timedelta
from penstock.aws import ProvidedCredentials

calls = []
life = None

def keys():
    calls.append(len(calls) + 1)
    end = None if life is None else datetime.now(UTC) + life
    return ProvidedCredentials(
        access_key_id=f"PROVIDED{len(calls)}", secret_access_key="hush", session_token="t", expires_at=end
    )

class Vault:
    def __call__(self):
        return keys()

vault = Vault()
number = 5

def away():
    raise OSError("the vault is sealed")

def wrong():
    return {"access_key": "x"}

def given(**changes):
    return ProvidedCredentials(**{"access_key_id": "KEY", "secret_access_key": "hush", **changes})

def text_for_a_time():
    return given(expires_at="2030-01-01T00:00:00Z")

def time_without_a_zone():
    return given(expires_at=datetime(2030, 1, 1))

def expired():
    return given(expires_at=datetime(2020, 1, 1, tzinfo=UTC))

def no_key():
    return given(access_key_id="")

def number_for_a_key():
    return given(access_key_id=5)

def line_break():
    return given(secret_access_key="hush\\n")
"""


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's, as it is installed on the driver and on the executors."""
    (tmp_path / "company_vault.py").write_text(PROVIDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("company_vault")
    sys.modules.pop("company_vault")


def test_a_function_gives_credentials(connect: Callable[..., AwsSession], provider: Any) -> None:
    """Its keys sign, it is called once while they live, and again when a service refuses them."""
    session = connect(credentialsProvider="company_vault:keys", awsCredentialsProvider="custom")
    found = session.frozen_credentials()
    assert (found.access_key, found.secret_key, found.token) == ("PROVIDED1", "hush", "t")
    assert provider.calls == [1]
    assert session.renew_credentials()
    assert session.frozen_credentials().access_key == "PROVIDED2"
    assert connect(credentialsProvider="company_vault:vault").frozen_credentials().access_key == "PROVIDED3"


def test_credentials_of_a_function_are_asked_for_again_before_they_expire(
    connect: Callable[..., AwsSession], provider: Any
) -> None:
    """Those that are about to expire are used until the next ones are there."""
    provider.life, now = timedelta(minutes=5), [0.0]
    session = AwsSession(connect(credentialsProvider="company_vault:keys").options, clock=lambda: now[0])
    first = session.frozen_credentials().access_key
    provider.life = timedelta(hours=1)
    deadline = time.monotonic() + 20
    while session.frozen_credentials().access_key == first:
        assert time.monotonic() < deadline
        now[0] += 100.0
        threading.Event().wait(0.01)
    before = len(provider.calls)
    now[0] += 1000.0
    assert session.frozen_credentials().access_key == f"PROVIDED{before}"
    assert len(provider.calls) == before


def test_a_role_is_assumed_with_a_functions_credentials(
    connect: Callable[..., AwsSession], provider: Any, sts: str
) -> None:
    """As Flink does with CUSTOM for the role's provider."""
    flink = {"aws.credentials.provider": "ASSUME_ROLE", "aws.credentials.provider.role.provider": "CUSTOM"}
    connect(credentialsProvider="company_vault:keys", roleArn=ROLE, stsEndpointUrl=sts, **flink)
    (call,) = _Sts.asked
    assert call["signedBy"] == "PROVIDED1"
    assert provider.calls == [1]


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("company_vault:nothing", AwsOptionError, "cannot import"),
        ("no_such_company:keys", AwsOptionError, "installed on the driver and on all executors"),
        ("company_vault:number", AwsOptionError, "not callable"),
        ("company_vault:away", AwsCredentialsError, "the vault is sealed"),
        ("company_vault:wrong", AwsCredentialsError, "ProvidedCredentials"),
        ("company_vault:text_for_a_time", AwsCredentialsError, "expires_at that is str, not datetime"),
        ("company_vault:time_without_a_zone", AwsCredentialsError, "expires_at without a time zone"),
        ("company_vault:expired", AwsCredentialsError, "expired at 2020-01-01"),
        ("company_vault:no_key", AwsCredentialsError, "access_key_id that is empty"),
        ("company_vault:number_for_a_key", AwsCredentialsError, "access_key_id that is int, not str"),
        ("company_vault:line_break", AwsCredentialsError, "secret_access_key that .* line break"),
    ],
)
def test_failing_credentials_function_is_named(
    connect: Callable[..., AwsSession], provider: Any, name: str, kind: type[Exception], told: str
) -> None:
    """No other credentials are used in its place."""
    with pytest.raises(kind, match=told) as caught:
        connect(credentialsProvider=name)
    assert name in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_function_is_called_in_tasks(
    emulator: RunningEmulator, connect: Callable[..., AwsSession], tmp_path: Path
) -> None:
    """By its name: a writer that comes from its pickle, in another process, imports it there."""
    (tmp_path / "task_vault.py").write_text(PROVIDER)
    emulator.client().create_stream(StreamName="provided", ShardCount=1)
    emulator.client().get_waiter("stream_exists").wait(StreamName="provided", WaiterConfig={"Delay": 1})
    options = {
        "streamName": "provided",
        "region": "us-east-1",
        "endpointUrl": emulator.endpoint_url,
        "allowInsecureEndpoint": "true",
        "credentialsProvider": "task_vault:keys",
    }
    schema = StructType([StructField("data", BinaryType()), StructField("partitionKey", StringType())])
    writer = tmp_path / "writer"
    writer.write_bytes(pickle.dumps(KinesisBatchWriter(KinesisOptions.parse(options), schema)))
    task = (
        "import pickle, sys, pyarrow as pa\n"
        "rows = pa.record_batch({'data': pa.array([b'row'], pa.binary()), 'partitionKey': ['k']})\n"
        "print(pickle.load(open(sys.argv[1], 'rb')).write(iter([rows])).records)\n"
        "import task_vault; print(task_vault.calls)"
    )
    done = subprocess.run(
        [sys.executable, "-c", task, str(writer)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["1", "[1]"], done.stderr


def test_the_tasks_of_a_process_assume_a_role_once(
    emulator: RunningEmulator, connect: Callable[..., AwsSession], sts: str
) -> None:
    """Each write task has a sink of its own, and all of them the same session: STS limits its calls."""
    emulator.client().create_stream(StreamName="shared", ShardCount=1)
    emulator.client().get_waiter("stream_exists").wait(StreamName="shared", WaiterConfig={"Delay": 1})
    options = {
        "streamName": "shared",
        "region": "us-east-1",
        "endpointUrl": emulator.endpoint_url,
        "roleArn": ROLE,
        "roleSessionName": "once",
        "stsEndpointUrl": sts,
        "awsAccessKeyId": "SOURCEKEY",
        "awsSecretAccessKey": "s",
    }
    schema = StructType([StructField("data", BinaryType()), StructField("partitionKey", StringType())])
    rows = pa.record_batch({"data": pa.array([b"row"], pa.binary()), "partitionKey": ["k"]})
    for _ in range(3):
        # As Spark does for each task: the writer comes from its pickle.
        writer = pickle.loads(pickle.dumps(KinesisBatchWriter(KinesisOptions.parse(options), schema)))
        assert writer.write(iter([rows])).records == 1
    assert [call["RoleSessionName"] for call in _Sts.asked] == ["once"]


def test_equal_options_share_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other options, another environment and another process make their own; old ones are dropped."""
    one, other = AwsOptions(region="eu-west-1"), AwsOptions(region="eu-west-2")
    first = shared_session(one)
    assert shared_session(one) is first
    assert shared_session(other) is not first
    with monkeypatch.context() as patch:
        patch.setenv("AWS_PROFILE_OF_SOMEBODY", "x")
        assert shared_session(one) is not first
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        assert shared_session(one) is not first
    assert shared_session(one) is first
    for number in range(20):
        shared_session(AwsOptions(region=f"eu-west-{number}"))
    assert shared_session(one) is not first


def test_the_guide_s_function_asks_databricks_for_a_service_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the guide, with a substitute for the API that Databricks has in its Python workers."""
    guide = Path(__file__).parents[4] / "docs" / "pages" / "how-to" / "databricks.md"
    (code,) = re.findall(r"```python\n(.*?)```", guide.read_text().partition("service credential of Unity")[2], re.S)[
        :1
    ]
    (tmp_path / "unity_credentials.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = []

    def give(name: str) -> botocore.session.Session:
        asked.append(name)
        session = botocore.session.Session()
        session.set_credentials("unity-key", "unity-secret", "unity-token")
        return session

    api = ModuleType("databricks.service_credentials")
    api.getServiceCredentialsProvider = give  # type: ignore[attr-defined]  # as Databricks has it
    monkeypatch.setitem(sys.modules, "databricks", ModuleType("databricks"))
    monkeypatch.setitem(sys.modules, "databricks.service_credentials", api)
    given = provided_credentials("unity_credentials:kinesis_reader").get_frozen_credentials()
    assert asked == ["kinesis-reader"]
    assert (given.access_key, given.secret_key, given.token) == ("unity-key", "unity-secret", "unity-token")
