"""Secrets that a service is given are seen nowhere: not in its log, spans, answers, or the list of processes."""

import ast
import json
import os
import subprocess
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import botocore.session
import grpc
import pytest

from integration_tests.security_tools import (
    CONTRACTS,
    Service,
    ask,
    environment_of,
    main_of,
    methods_of,
    path_of,
    raw_channel,
    running,
)
from penstock.aws import AwsOptionError, AwsOptions, AwsSession
from penstock.cli import main as cli_main
from penstock.efo_consumer import Consumer
from penstock.efo_consumer.errors import EfoConsumerConfigError
from penstock.emulator.testing import RunningEmulator, running_emulator, start_emulator_process
from penstock.operator_attributes import open_stage_scheduler
from penstock.operator_attributes.errors import JobStoreError
from penstock.proto.consumer_registry.v1.consumer_registry_pb2 import AcquireRequest
from penstock.registration import open_registry
from penstock.registration._stores.url import store_location
from penstock.registration.errors import LeaseStoreError, RegistrationOptionError
from penstock.rpc import ClientSecurity, RpcOptionError, abort_with, open_channel
from penstock.rpc.testing import service_process
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin.errors import OptionError
from penstock.terminal.testing import run_main

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {
    "key": "planted/secret+0f1e2d3c4b5a6978",
    "session": "planted-session-99887766554433221100",
    "token": "planted-token-5566778899-with-32-characters",
    "guess": "planted-guess-1122334455-with-32-characters",
    "external": "planted-external-0011223344",
    "proxy": "planted-proxy-0918273645",
}
# Runs a service with all loggers at DEBUG, but for those that say everything that goes over a socket.
_LOUD = """
import importlib, logging, sys
logging.getLogger().setLevel(logging.DEBUG)
sys.exit(importlib.import_module(sys.argv.pop(1) + ".__main__").main())
"""
_EXPORTER = """
import os
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

class Files(SpanExporter):
    def export(self, spans):
        with open(os.environ["PENSTOCK_TEST_SPANS"], "a") as file:
            file.writelines(span.to_json(indent=None) + "\\n" for span in spans)
        return SpanExportResult.SUCCESS
"""


@pytest.fixture(scope="module")
def kinesis() -> Iterator[RunningEmulator]:
    with running_emulator(companions=("sts",)) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH: the way in, and the exporter of spans."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "penstock_loud.py").write_text(_LOUD)
    (folder / "penstock_files_exporter.py").write_text(_EXPORTER)
    metadata = folder / "penstock_files_exporter-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-files-exporter\nVersion: 1.0\n")
    point = "[opentelemetry_traces_exporter]\npenstock_files = penstock_files_exporter:Files\n"
    (metadata / "entry_points.txt").write_text(point)
    return folder


def planted(name: str, folder: Path, modules: Path, kinesis: RunningEmulator) -> dict[str, str]:
    """Every place of the environment that may hold a secret."""
    own = {"TOKEN": SECRETS["token"], "ENDPOINT_URL": kinesis.endpoint_url, "REGION": "us-east-1"}
    own |= {"ROLE_ARN": "arn:aws:iam::123456789012:role/reader", "ROLE_EXTERNAL_ID": SECRETS["external"]}
    own |= {"STS_ENDPOINT_URL": kinesis.endpoints["sts"]}
    proxy = f"http://user:{SECRETS['proxy']}@127.0.0.1:9"
    return {
        **environment_of(name, folder, **own),
        "AWS_SECRET_ACCESS_KEY": SECRETS["key"],
        "AWS_SESSION_TOKEN": SECRETS["session"],
        "HTTPS_PROXY": proxy,
        "https_proxy": proxy,
        "NO_PROXY": "127.0.0.1",
        "OTEL_TRACES_EXPORTER": "penstock_files",
        "PENSTOCK_TEST_SPANS": str(folder / "spans.jsonl"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(modules), os.environ.get("PYTHONPATH")])),
    }


def answers_to(service: Service) -> str:
    """All that a service says to calls with the right and the wrong token, errors and their metadata included."""
    said = []
    with raw_channel(service.address) as channel:
        for method in service.methods:
            for token in (SECRETS["token"], SECRETS["guess"]):
                metadata = (("authorization", f"Bearer {token}"),)
                first = method.input_type.fields_by_number.get(1)
                text = first is not None and first.type == first.TYPE_STRING
                content = b"\x0a\x07flights" if text else b""
                call = channel.stream_stream(path_of(method), None, None)(iter([content]), metadata=metadata, timeout=2)
                try:
                    said += [repr(answer) for answer in call]
                except grpc.RpcError as error:
                    said.append(repr(error))
                said.append(repr(call.trailing_metadata()))
    return "\n".join(said)


@pytest.mark.parametrize("name", CONTRACTS)
def test_no_secret_is_seen_of_a_service(name: str, kinesis: RunningEmulator, modules: Path, tmp_path: Path) -> None:
    """Its log at DEBUG, its spans, what it answers, what it prints, and its command line are searched."""
    module = "penstock.services." + name.replace("-", "_")
    environment = planted(name, tmp_path, modules, kinesis)
    with (
        (tmp_path / "stderr.log").open("wb") as errors,
        service_process("penstock_loud", [module, "serve"], environment, errors) as process,
    ):
        service = Service(name, process, tmp_path / "stderr.log")
        (tmp_path / "answers").write_text(answers_to(service))
        pid = process.process.pid
        (tmp_path / "cmdline").write_bytes(Path(f"/proc/{pid}/cmdline").read_bytes())
        assert process.terminate() == 0
        assert process.process.stdout is not None
        (tmp_path / "stdout.log").write_text(process.process.stdout.read())
    assert "DEBUG" in service.errors.read_text()
    spans = (tmp_path / "spans.jsonl").read_text()
    assert methods_of(name)[0].name in spans
    assert "UNAUTHENTICATED" in (tmp_path / "answers").read_text()
    for path in tmp_path.rglob("*"):
        for kind, secret in SECRETS.items():
            content = path.read_bytes() if path.is_file() else b""
            at = content.find(secret.encode())
            assert at < 0, f"{kind} in {path.name}: {content[max(0, at - 300) : at + 50]!r}"


@pytest.mark.parametrize("name", CONTRACTS)
def test_secrets_are_no_flags(name: str, tmp_path: Path) -> None:
    """Every user of a machine sees command lines. The help shows no value of the environment; a URL's is not shown."""
    environment = environment_of(name, tmp_path, TOKEN=SECRETS["token"], ROLE_EXTERNAL_ID=SECRETS["external"])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_main(main_of(name), ["serve", *arguments], environ=environment)

    told = run("--help")
    assert told.returncode == 0
    assert "--token-file" in told.stdout
    refused = [run("--token", "x"), run("--secret-access-key", "x")]
    if name != "stage-scheduler":
        for url in (f"https://user:{SECRETS['key']}@127.0.0.1:1", f"https://127.0.0.1:1/?token={SECRETS['key']}"):
            refused.append(run("--endpoint-url", url))
    for ended in (told, *refused):
        assert not any(secret in ended.stdout + ended.stderr for secret in SECRETS.values())
    for ended in refused:
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("url", ["https://u:{}@host", "https://{}@host", "https://host/?token={}", "https://host#{}"])
def test_a_url_with_credentials_is_refused_and_not_shown(url: str) -> None:
    """URLs appear in errors, logs and spans. URLs of AWS and of services contain no secret."""
    secret = SECRETS["key"]
    for option in ("endpoint_url", "sts_endpoint_url"):
        role: dict[str, Any] = {"role_arn": "arn:aws:iam::123456789012:role/r"} if option.startswith("sts") else {}
        role[option] = url.format(secret)
        with pytest.raises(AwsOptionError) as refused:
            AwsOptions(**role)
        assert secret not in str(refused.value) + repr(vars(refused.value))
    with pytest.raises(RpcOptionError) as refused_too:
        open_channel(f"user:{secret}@127.0.0.1:1", ClientSecurity())
    assert secret not in str(refused_too.value)


_USER = f"user:{SECRETS['guess']},{SECRETS['key']}@127.0.0.1:9"
"""The password holds a comma, at which options with several endpoints are split."""


def _ask_registry() -> None:
    with open_registry(endpoint=_USER) as registry:
        registry.list_consumers()


def _ask_scheduler() -> None:
    with open_stage_scheduler(_USER) as scheduler:
        scheduler.list_jobs()


_PYTHON: dict[str, Callable[[], object]] = {
    "registry of a consumer": lambda: Consumer("flights", efo="app", registry=_USER),
    "registry of a consumer by URL": lambda: Consumer("flights", efo="app", registry=f"mysql://{_USER}/"),
    "store of leases": lambda: store_location(f"sqlite://{_USER}/file"),
    "client of AWS": lambda: AwsSession(AwsOptions(region="us-east-1")).aio_client(
        "glue", endpoint_url=f"http://{_USER}"
    ),
    "open_registry": _ask_registry,
    "open_stage_scheduler": _ask_scheduler,
    **{
        f"Spark's {name} {number}": partial(KinesisOptions.parse, {"streamName": "a", name: text})
        for name in ("readerEndpoint", "registryEndpoint", "sinkEndpoint")
        for number, text in enumerate((_USER, f"{_USER},{_USER}", f"unix:/a,{_USER}"))
    },
    **{
        f"Spark's {name}": partial(
            KinesisOptions.parse,
            {"streamName": "a", "roleArn": "arn:aws:iam::123456789012:role/r", name: f"http://{_USER}"},
        )
        for name in ("endpointUrl", "stsEndpointUrl")
    },
}


@pytest.mark.parametrize("use", _PYTHON)
def test_an_endpoint_with_a_password_is_refused_and_not_shown(use: str) -> None:
    """In Python and in Spark; not a part of the password, either."""
    with pytest.raises(
        (RpcOptionError, AwsOptionError, OptionError, EfoConsumerConfigError, RegistrationOptionError)
    ) as refused:
        _PYTHON[use]()
    said = "".join(traceback.format_exception(refused.value, chain=False)[-1:]) + repr(vars(refused.value))
    assert not any(secret in said for secret in SECRETS.values())


@pytest.mark.parametrize(
    ("place", "service"),
    [("environment", ""), ("environment", "dynamodb"), ("environment", "sts"), ("profile", ""), ("services", "s3")],
)
def test_a_configured_endpoint_with_a_password_is_refused_and_not_shown(
    place: str, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Botocore takes it from there, and shows it in its errors."""
    url = f"http://{_USER}"
    texts = {
        "environment": "[profile job]",
        "profile": f"[profile job]\nendpoint_url = {url}",
        "services": f"[profile job]\nservices = own\n[services own]\n{service} =\n  endpoint_url = {url}",
    }
    (tmp_path / "config").write_text(texts[place])
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if place == "environment":
        monkeypatch.setenv("_".join(filter(None, ["AWS_ENDPOINT_URL", service.upper()])), url)
    session = AwsSession(AwsOptions(region="us-east-1", profile="job"))
    uses = (lambda: session.client(service or "s3"), lambda: session.prepare_aio_client("s3", None))
    for use in (*uses, session.frozen_credentials):
        with pytest.raises(AwsOptionError) as refused:
            use()
        assert not any(secret in str(refused.value) for secret in SECRETS.values())


_COMMANDS = {
    "registry ls": ["registry", "ls", "--endpoint", _USER],
    "stages ls": ["stages", "ls", "--endpoint", _USER],
    "reader stats": ["reader", "stats", "--endpoint", _USER],
    "sink stats": ["sink", "stats", "--endpoint", _USER],
    "console": ["console", "serve", "--reader-endpoint", _USER],
    "doctor": ["doctor", "--registry", _USER, "--only", "services"],
    "doctor of a URL": ["doctor", "--endpoint-url", f"http://{_USER}"],
    "gc": ["gc", "--store", f"sqlite://{_USER}/file"],
    "gc by a service": ["gc", "--registry", _USER],
    "sink serve": ["sink", "serve", "--endpoint-aliases", f"http://{_USER}"],
    "sink serve to SQS": ["sink", "serve", "--sqs-endpoint-url", f"http://{_USER}", "--region", "us-east-1"],
    "registry serve": ["registry", "serve", "--store", f"sqlite://{_USER}/file"],
    "put": ["put", "flights", "--endpoint-url", f"http://{_USER}", "--region", "us-east-1"],
    "put by the environment": ["put", "flights", "--region", "us-east-1"],
}


@pytest.mark.parametrize("command", _COMMANDS)
def test_no_command_shows_the_password_of_an_endpoint(command: str) -> None:
    """By a flag, or by a variable of the environment."""
    environ = {**os.environ, "AWS_ENDPOINT_URL": f"http://{_USER}"} if "environment" in command else dict(os.environ)
    done = run_main(cli_main, _COMMANDS[command], environ=environ)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert not any(secret in said for secret in SECRETS.values())


def test_no_secret_is_seen_of_the_emulator(capfd: pytest.CaptureFixture[str]) -> None:
    """It checks signatures, and says nothing of what they were made with, neither accepted nor refused."""
    with start_emulator_process("--json", "--verify-signatures", "--access-keys", "AKIATEST=right") as emulator:
        for key in ("right", SECRETS["key"]):
            session = botocore.session.Session()
            session.set_credentials("AKIATEST", key, SECRETS["session"])
            client: Any = session.create_client("kinesis", endpoint_url=emulator.endpoint_url, region_name="us-east-1")
            try:
                said = json.dumps(client.list_streams(), default=str)
            except client.exceptions.ClientError as error:
                said = str(error) + json.dumps(error.response, default=str)
            assert not any(secret in said for secret in SECRETS.values())
    logged = "".join(capfd.readouterr())
    assert not any(secret in logged for secret in SECRETS.values())


def test_help_shows_no_environment() -> None:
    """`help()` writes out defaults, and with `os.environ` as one all secrets in it."""
    found = [
        f"{path.relative_to(ROOT)}:{function.lineno}"
        for kind in ("packages", "services")
        for path in (ROOT / kind).glob("*/src/**/*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for default in (*function.args.defaults, *function.args.kw_defaults)
        if default is not None and ast.unparse(default) == "os.environ"
    ]
    assert found == []


def test_clients_see_no_details_of_a_broken_store(tmp_path: Path) -> None:
    """Clients learn that it cannot be used. The log has the file and the reason."""
    name, file = "consumer-registry", tmp_path / "kept-here.sqlite"
    with running(name, tmp_path, STORE=f"sqlite:///{file}") as service, raw_channel(service.address) as channel:
        assert ask(channel, service.quick())[0] is grpc.StatusCode.OK
        for path in tmp_path.glob("kept-here.sqlite*"):
            path.write_bytes(b"no database" * 10_000)
        code, details = ask(channel, service.quick())
        assert code is not grpc.StatusCode.OK
        assert "log says why" in details
        assert "kept-here" not in details
        assert "not a database" not in details
        assert "kept-here" in service.errors.read_text()


@pytest.mark.parametrize(
    "settings",
    ["credential_process = cat {}", "role_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = {}"],
    ids=["process", "token"],
)
def test_clients_see_no_details_of_a_broken_credentials_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """Clients learn that there are none. The log has the file or process, and the reason."""
    (tmp_path / "config").write_text("[profile job]\n" + settings.format(tmp_path / "kept-here"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    own = {"REGION": "us-east-1", "PROFILE": "job", "ENDPOINT_URL": "http://127.0.0.1:9"}
    with running("consumer-registry", tmp_path, **own) as service, raw_channel(service.address) as channel:
        acquire = next(path_of(method) for method in service.methods if method.name == "Acquire")
        asked = AcquireRequest(stream_name="flights", consumer_name="job", job_id="job")
        code, details = ask(channel, acquire, asked.SerializeToString())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "cannot fetch AWS credentials" in details
        assert str(tmp_path) not in details
        assert "kept-here" not in details
        assert "kept-here" in service.errors.read_text()


@pytest.mark.parametrize("name", ["consumer-registry", "shard-reader", "sink-gateway"])
def test_a_service_does_not_start_with_files_of_aws_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """The operator gets an error without a traceback. Clients would otherwise see the path."""
    (tmp_path / "config").write_text("[default\nnonsense")
    environment = environment_of(name, tmp_path, REGION="us-east-1")
    for setting, words in (("AWS_CONFIG_FILE", "Unable to parse"), ("AWS_CA_BUNDLE", "cannot be read as a PEM file")):
        refused = run_main(main_of(name), ["serve"], environ={**environment, setting: str(tmp_path / "config")})
        assert refused.returncode == 2, refused.stderr
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "error",
    [
        LeaseStoreError(store="/srv/kept-here", reason="file is not a database"),
        JobStoreError("/srv/kept-here", "disk I/O error"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_errors_of_stores_have_messages_for_clients(error: Exception) -> None:
    """In the message and in the fields that travel along."""
    sent: list[tuple[object, ...]] = []

    class Context:
        async def abort(self, *answer: object) -> None:
            sent.append(answer)
            raise RuntimeError

    context: Any = Context()
    with pytest.raises(RuntimeError):
        await abort_with(context, error, {type(error): grpc.StatusCode.INTERNAL})
    assert type(error).__name__ in str(sent)
    assert "kept-here" not in str(sent)
    assert "Errno" not in str(sent)


_AWAY = {
    "consumer-registry": ("REGISTRY", ("ENDPOINT_URL", "STS_ENDPOINT_URL")),
    "shard-reader": ("READER", ("ENDPOINT_URL", "STS_ENDPOINT_URL")),
    "sink-gateway": ("SINK", ("ENDPOINT_URL", "DYNAMODB_ENDPOINT_URL", "SQS_ENDPOINT_URL")),
    "console": ("CONSOLE", ("ENDPOINT_URL",)),
}


@pytest.mark.parametrize("name", _AWAY)
def test_credentials_do_not_leave_for_an_endpoint_without_tls(name: str, tmp_path: Path) -> None:
    """A service does not start with such an endpoint, from its settings or botocore's, unless a flag allows it."""
    prefix, settings = _AWAY[name]
    module = f"penstock.services.{name.replace('-', '_')}"
    environment = {
        **os.environ,
        "PENSTOCK_REGISTRY_STORE": f"sqlite:///{tmp_path / 'registry.db'}",
        f"PENSTOCK_{prefix}_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "AKIA" + "X" * 16,
        "AWS_SECRET_ACCESS_KEY": SECRETS["key"],
    }
    url = "http://kinesis.internal:4567"
    for variable in (*(f"PENSTOCK_{prefix}_{one}" for one in settings), "AWS_ENDPOINT_URL_KINESIS"):
        # An endpoint of STS is for those who assume a role.
        role = {f"PENSTOCK_{prefix}_ROLE_ARN": "arn:aws:iam::123456789012:role/r"} if "STS" in variable else {}
        refused = run_main(main_of(name), ["serve"], environ={**environment, **role, variable: url})
        assert refused.returncode == 2, refused.stderr
        assert "would go to kinesis.internal without encryption" in refused.stderr
        assert "--allow-insecure-endpoint" in refused.stderr
        assert SECRETS["key"] not in refused.stderr
    for further in (
        {f"PENSTOCK_{prefix}_ALLOW_INSECURE_ENDPOINT": "true"},
        {"AWS_ACCESS_KEY_ID": "emulator", "AWS_SECRET_ACCESS_KEY": "emulator"},
    ):
        allowed = {**environment, f"PENSTOCK_{prefix}_{settings[0]}": url, **further}
        with service_process(module, ["serve"], allowed) as process:
            assert process.terminate() == 0
