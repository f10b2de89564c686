"""Secrets in options are seen nowhere: not in plans, offsets, logs, the event log, the UI, spans or errors."""

import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin.testing import endpoint_options

DRIVER = Path(__file__).parents[1] / "secrets_driver.py"
SECRETS = {
    "awsSecretAccessKey": "planted/key+0f1e2d3c4b5a69788796a5b4",
    "awsSessionToken": "plantedTOKEN99887766554433221100==",
    "roleExternalId": "planted-external-0011223344",
    "serviceToken": "planted-service-5566778899-with-32-characters",
}
PASSWORD = "planted-password-1029384756"


_PROVIDER = """\
import os
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class Files(SpanExporter):
    def export(self, spans):
        with (Path(os.environ["PENSTOCK_TEST_SPANS"]) / f"spans-{os.getpid()}.jsonl").open("a") as file:
            file.writelines(span.to_json(indent=None) + "\\n" for span in spans)
        return SpanExportResult.SUCCESS


def create():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Files()))
    return provider
"""


def provider(package: Path) -> dict[str, str]:
    """Variables for Spark's processes, which then write their spans to files."""
    (package / "penstock_secrets_provider.py").write_text(_PROVIDER)
    metadata = package / "penstock_secrets_provider-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-secrets-provider\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[opentelemetry_tracer_provider]\npenstock_secrets = penstock_secrets_provider:create\n"
    )
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "OTEL_PYTHON_TRACER_PROVIDER": "penstock_secrets"}


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    """With an STS to assume roles at."""
    with running_emulator(companions=("sts",)) as running:
        yield running


@pytest.fixture(scope="module")
def run(emulator: RunningEmulator, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """What the driver left, and what it did."""
    folder = tmp_path_factory.mktemp("secrets")
    client = emulator.client()
    client.create_stream(StreamName="flights", ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName="flights", WaiterConfig={"Delay": 1})
    client.put_records(StreamName="flights", Records=[{"Data": b"1", "PartitionKey": "a"}] * 5)
    options = endpoint_options(
        emulator.endpoint_url,
        "flights",
        roleArn="arn:aws:iam::123456789012:role/reader",
        roleSessionName="reader",
        stsEndpointUrl=emulator.endpoints["sts"],
    )
    options |= SECRETS | {"awsAccessKeyId": "ASIAPLANTED000000001"}
    options["endpointUrl with a password"] = f"https://user:{PASSWORD}@127.0.0.1:9"
    proxy = {"HTTPS_PROXY": f"http://user:{PASSWORD}@127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    environment = {
        **os.environ,
        **proxy,
        **provider(tmp_path_factory.mktemp("provider")),
        "PENSTOCK_TEST_SPANS": str(folder),
    }
    output = subprocess.run(
        [sys.executable, str(DRIVER), str(folder)],
        input=json.dumps(options),
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    (folder / "stdout.log").write_text(output.stdout)
    (folder / "stderr.log").write_text(output.stderr)
    assert output.returncode == 0, output.stderr[-3000:]
    return folder, json.loads((folder / "done.json").read_text())


def test_no_secret_is_seen_anywhere(run: tuple[Path, dict[str, object]]) -> None:
    """A read, a write, a stream, a view of SQL and failures: all that they leave is searched."""
    folder, did = run
    assert did["done"] == [
        "read 5",
        "written",
        "streamed",
        "view True",
        "failed readerEndpoint",
        "failed streamName",
        "failed maxPartitions",
        "failed awsSecretAccesKey",
        "failed endpointUrl",
    ]
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name, value in (SECRETS | {"a URL's password": PASSWORD}).items():
        spellings = {value, urllib.parse.quote(value, safe=""), json.dumps(value)[1:-1].replace("/", "\\/")}
        for path, content in files.items():
            for spelling in spellings:
                at = content.find(spelling.encode())
                assert at < 0, f"{name} in {path.relative_to(folder)}: {content[max(0, at - 200) : at + 50]!r}"


def test_the_search_looks_at_what_matters(run: tuple[Path, dict[str, object]]) -> None:
    """Each place has what it is searched for, redacted: otherwise nothing would be found there anyway."""
    folder, did = run
    pages = "".join(path.read_text() for path in folder.glob("page-*.html"))
    events = "".join(path.read_text() for path in (folder / "events").rglob("*") if path.is_file())
    assert isinstance(did["pages"], int)
    assert did["pages"] >= 12
    assert "redacted" in (folder / "stdout.log").read_text()
    assert "kinesis" in pages
    assert "SparkListenerSQLExecutionStart" in events
    assert "org.apache.spark.sql" in (folder / "log4j.log").read_text()
    assert "spark_plugin.start_query" in "".join(path.read_text() for path in folder.glob("spans-*.jsonl"))
    assert (folder / "checkpoint" / "offsets" / "0").exists()
