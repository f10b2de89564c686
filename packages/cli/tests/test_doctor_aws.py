"""`penstock doctor` on region, credentials, endpoint, clock and permissions, over the emulator, broken on purpose."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from doctor_world import has_cure, the, world

from penstock.cli import Verdict
from penstock.cli._doctor._aws import check_credentials, check_endpoint, check_region, judge_clock
from penstock.cli._doctor._command import main
from penstock.cli._doctor._run import GROUPS
from penstock.cli._doctor._stream import check_stream
from penstock.emulator.testing import RunningEmulator, running_emulator

PROBLEM, WARNING, OK, SKIPPED = Verdict.PROBLEM, Verdict.WARNING, Verdict.OK, Verdict.SKIPPED
SECRET = "wJalrXUtnFEMI-never-to-be-seen"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine: no profile, no variable, no instance."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CREDENTIAL_EXPIRATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningEmulator]:
    with running_emulator(consumer_creation_delay=timedelta(0), enforce_limits=False) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="flights", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
        arn = client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamARN"]
        client.register_stream_consumer(StreamARN=arn, ConsumerName="delays")
        yield emulator


@pytest.fixture
def emulator(shared: RunningEmulator) -> Iterator[RunningEmulator]:
    yield shared
    shared.faults.clear()


def at(emulator: RunningEmulator, **options: Any) -> Any:
    return world(region="us-east-1", endpoint_url=emulator.endpoint_url, stream="flights", **options)


def test_the_region_is_missing_or_none() -> None:
    """Before anything else can be said."""
    assert has_cure(the(check_region(world())), PROBLEM, "not set", "AWS_REGION")
    assert has_cure(the(check_region(world(region="mars one"))), PROBLEM, "mars one")
    assert the(check_region(world(region="eu-west-1"))).verdict is OK
    assert the(check_endpoint(world())).verdict is SKIPPED


def test_credentials_are_missing_or_expired(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that gives old ones, a variable that says their end, a profile that is not there."""
    assert has_cure(the(check_credentials(world())), PROBLEM, "none", "aws configure")
    for check in (check_credentials, check_region):
        assert has_cure(the(check(world(profile="nobody"))), PROBLEM, "nobody", "--profile")
    old = {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": SECRET, "Expiration": "2020-01-01T00:00:00Z"}
    (tmp_path / "old.json").write_text(json.dumps(old))
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {tmp_path / 'old.json'}\n")
    expired = the(check_credentials(world()))
    assert has_cure(expired, PROBLEM, "aws sso login")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2020-01-01T00:00:00Z")
    exported = the(check_credentials(world()))
    assert has_cure(exported, PROBLEM, "expired")
    assert SECRET not in f"{expired}{exported}"


def process_of_credentials(tmp_path: Path, code: str) -> None:
    """The only source of credentials: a Python process with this code."""
    (tmp_path / "process.py").write_text(code)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {sys.executable} {tmp_path / 'process.py'}\n")


@pytest.mark.parametrize(
    "printed",
    [
        "{broken",
        "[]",
        '{"Version": 1}',
        '{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S", "Expiration": "x"}',
    ],
)
def test_a_credential_process_that_answers_nonsense_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: str
) -> None:
    """Whatever botocore raises for it, no job can sign a request."""
    process_of_credentials(tmp_path, f"print({printed!r})")
    arguments = ["--only", "aws", "--only", "stream", "--stream", "flights", "--region", "us-east-1"]
    assert main([*arguments, "--endpoint-url", "http://127.0.0.1:1", "--json"]) == 1
    findings = {one["check"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    for check in ("Credentials", "IAM"):
        assert (findings[check]["verdict"], bool(findings[check]["cure"])) == ("problem", True)


def test_the_provider_of_credentials_is_told_and_they_are_not(keys: None, tmp_path: Path) -> None:
    """By name of where they are from."""
    assert "variables of the environment" in the(check_credentials(world())).text
    (tmp_path / "credentials").write_text(f"[work]\naws_access_key_id = A\naws_secret_access_key = {SECRET}\n")
    finding = the(check_credentials(world(profile="work")))
    assert (finding.verdict, "shared credentials file" in finding.text) == (OK, True)
    assert SECRET not in repr(finding)


class Dated(BaseHTTPRequestHandler):
    ahead = timedelta(0)

    def do_GET(self) -> None:
        self.send_response_only(400)
        self.send_header("Date", format_datetime(datetime.now(UTC) - self.ahead, usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(
    ("ahead", "verdict", "word"), [(0, OK, ""), (90, WARNING, "ahead of"), (-900, PROBLEM, "behind")]
)
def test_the_clock_is_compared_with_the_services(ahead: int, verdict: Verdict, word: str) -> None:
    """By the Date header of its answer, whatever it answers."""
    handler = type("Handler", (Dated,), {"ahead": timedelta(seconds=ahead)})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        endpoint, clock = check_endpoint(world(region="us-east-1", endpoint_url=url))
        thread.join()
    assert (endpoint.verdict, clock.verdict) == (OK, verdict)
    assert verdict is OK or has_cure(clock, verdict, word, "NTP")
    assert judge_clock("yesterday", 0.0).verdict is SKIPPED
    assert judge_clock(None, 0.0).verdict is SKIPPED


def test_the_endpoint_cannot_be_reached(emulator: RunningEmulator) -> None:
    """Refused, unknown, silent, an authority that is not trusted, no TLS: told apart."""
    with socket.socket() as bound, socket.socket() as silent:
        bound.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        cases = {
            f"http://127.0.0.1:{bound.getsockname()[1]}": "nobody listens",
            "http://no-such-host.invalid": "no such host",
            f"http://127.0.0.1:{silent.getsockname()[1]}": "no answer in time",
            emulator.tls_endpoint_url: "not trusted",
            emulator.endpoint_url.replace("http:", "https:"): "does not speak TLS",
        }
        for url, word in cases.items():
            surroundings = world(region="us-east-1", endpoint_url=url, timeout_seconds=1.0)
            assert has_cure(the(check_endpoint(surroundings)), PROBLEM, word), url
    trusted = world(region="us-east-1", endpoint_url=emulator.tls_endpoint_url, ca_bundle=str(emulator.ca_file))
    assert next(iter(check_endpoint(trusted))).verdict is OK


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1", "127.0.0.1:1", "http://user:password@127.0.0.1:1", "http://a..b"])
@pytest.mark.parametrize("is_flag", [True, False])
def test_an_endpoint_that_cannot_be_one_is_a_problem(
    keys: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, *, is_flag: bool
) -> None:
    """By a flag or a variable; the cure names them, and the region is fine."""
    arguments = ["--only", "aws", "--only", "stream", "--stream", "flights", "--region", "us-east-1", "--json"]
    if is_flag:
        arguments += ["--endpoint-url", url]
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    assert main(arguments) == 1
    out = capsys.readouterr().out
    findings = {one["check"]: one for one in map(json.loads, out.splitlines())}
    assert (findings["Region"]["verdict"], findings["Credentials"]["verdict"]) == ("ok", "ok")
    assert findings["Endpoint"]["verdict"] == "problem"
    if url != "http://a..b":
        assert "--endpoint-url" in findings["Endpoint"]["cure"]
        assert "AWS_ENDPOINT_URL" in findings["Endpoint"]["cure"]
        assert findings["IAM"]["verdict"] == "problem"
    assert "password@" not in out


def test_each_action_is_tried_and_nothing_is_changed(emulator: RunningEmulator, keys: None) -> None:
    """SubscribeToShard as a dry run; putting only on request."""
    findings = {finding.check: finding for finding in check_stream(at(emulator, consumer="delays"))}
    allowed = ["DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords", "ListStreamConsumers"]
    allowed += ["DescribeStreamConsumer", "SubscribeToShard"]
    assert [findings[action].verdict for action in allowed] == [OK] * 7
    assert "dry run" in findings["SubscribeToShard"].text
    assert has_cure(findings["PutRecords"], SKIPPED, "--write")
    assert findings["RegisterStreamConsumer"].verdict is SKIPPED
    shard = emulator.kinesis.streams["flights"].shards[0]
    before = len(shard.records)
    written = {finding.check: finding for finding in check_stream(at(emulator, write=True))}
    assert written["PutRecords"].verdict is OK
    assert len(shard.records) == before + 1


@pytest.mark.parametrize(
    "action",
    ["DescribeStreamSummary", "ListShards", "GetRecords", "ListStreamConsumers", "SubscribeToShard", "PutRecords"],
)
def test_a_missing_permission_is_named(emulator: RunningEmulator, keys: None, action: str) -> None:
    """With the action for the policy; the others are tried all the same."""
    emulator.faults.add("error", operation=action, code="AccessDeniedException", message="no identity-based policy")
    findings = {finding.check: finding for finding in check_stream(at(emulator, consumer="delays", write=True))}
    assert has_cure(findings[action], PROBLEM, "denied", f"kinesis:{action}")
    assert [finding.check for finding in findings.values() if finding.verdict is PROBLEM] == [action]
    # What could not be tried because of it is said, and with which action it can.
    for check in {"ListShards": ["GetShardIterator", "SubscribeToShard"]}.get(action, []):
        assert (findings[check].verdict, "without ListShards" in findings[check].text) == (SKIPPED, True)
    if action == "ListStreamConsumers":
        assert findings["SubscribeToShard"].verdict is OK
    if action == "SubscribeToShard":
        assert "on the consumer, …:stream/flights/consumer/*" in findings[action].cure


def test_a_healthy_set_up_has_no_problem(
    emulator: RunningEmulator,
    keys: None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All checks, of this very environment, by the command: exit code 0, and the same as JSON lines."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # The environment of tests need not be activated.
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    for name in ("JAVA_HOME", "PENSTOCK_READER_HOST", "PENSTOCK_REGISTRY_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    arguments = ["--json", "--region", "us-east-1", "--endpoint-url", emulator.endpoint_url]
    arguments += ["--stream", "flights", "--consumer", "delays", "--write"]
    code = main(arguments)
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [finding for finding in findings if finding["verdict"] == "problem"] == []
    assert code == 0
    assert {finding["group"] for finding in findings} == set(GROUPS)
    assert all(set(finding) == {"group", "check", "verdict", "text", "cure"} for finding in findings)
    assert SECRET not in json.dumps(findings)


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--consumer", "delays"], ["--consumer", "--stream"]),
        (["--write"], ["--write", "--stream"]),
        (["--tls"], ["--tls", "--registry"]),
        (["--only", "aws", "--stream", "flights", "--write"], ["--stream", "--only stream"]),
        (["--only", "stream", "--stream=flights", "--reader-host=here"], ["--reader-host", "--only spark-session"]),
        (["--only", "packages", "--registry", "127.0.0.1:1", "--tls"], ["--registry", "--only services"]),
        (["--only", "services", "--conf", "a=b"], ["--conf", "--only spark-session or --only machine"]),
        (["--only", "services", "--spark-conf", "none"], ["--spark-conf", "--only spark-session"]),
        (["--only", "services", "--state-folder", "none"], ["--state-folder", "--only machine"]),
        (["--only", "machine", "--region", "us-east-1"], ["--region", "--only aws or --only stream"]),
        (["--only", "machine", "--timeout", "9"], ["--timeout", "--only aws or --only services"]),
        (["--stream", ""], ["--stream must not be empty"]),
        (["--stream=flights", "--consumer="], ["--consumer must not be empty"]),
        (["--sink", ""], ["--sink must not be empty"]),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], flags: list[str]
) -> None:
    """With the flag that it goes with, or the group that looks at it; a variable counts as the flag."""
    for name in ("REGISTRY", "READER", "SINK", "STAGES"):
        monkeypatch.delenv(f"PENSTOCK_{name}_ENDPOINT", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(flag in line for flag in flags)
    monkeypatch.setenv("PENSTOCK_SINK_ENDPOINT", "127.0.0.1:1")
    assert main(["--tls", "--only", "services"]) == 1
    assert main(["--only", "packages", "--quiet"]) == 0
