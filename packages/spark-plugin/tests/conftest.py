import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import configure, ensure_java

SPANS = "PENSTOCK_TEST_SPANS"
_PROVIDER = """\
import os
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class Files(SpanExporter):
    def export(self, spans):
        folder = os.environ.get("PENSTOCK_TEST_SPANS")
        if folder:
            with (Path(folder) / f"{os.getpid()}.jsonl").open("a") as file:
                file.writelines(span.to_json(indent=None) + "\\n" for span in spans)
        return SpanExportResult.SUCCESS


def create():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Files()))
    return provider
"""


def pytest_configure() -> None:
    """Let all processes of Spark find the Java and the Python of the tests, before any session."""
    ensure_java()


@pytest.fixture(scope="session")
def span_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every process leaves its spans: the provider is an installed entry point, as an application's would be."""
    folder = tmp_path_factory.mktemp("spans")
    package = tmp_path_factory.mktemp("provider")
    (package / "penstock_test_provider.py").write_text(_PROVIDER)
    metadata = package / "penstock_test_provider-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-test-provider\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[opentelemetry_tracer_provider]\npenstock_test = penstock_test_provider:create\n"
    )
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    os.environ["OTEL_PYTHON_TRACER_PROVIDER"] = "penstock_test"
    os.environ[SPANS] = str(folder)
    return folder


@pytest.fixture(scope="session")
def spark(span_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests: starting one takes seconds."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    builder = configure(SparkSession.builder.master("local[2]").appName("penstock tests"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kinesis() -> Iterator[RunningEmulator]:
    """One embedded Kinesis for all tests; each makes streams of its own."""
    with running_emulator() as emulator:
        yield emulator
