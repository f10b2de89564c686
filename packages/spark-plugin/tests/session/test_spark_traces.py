"""Spans and metrics of all processes of a query. The server of Spark Connect that runs it hands its variables on."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from connect_servers import connect_server
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from patience import PATIENCE_SECONDS

from penstock.telemetry.testing import OtlpReceiver, running_receiver

PROVIDER = """\
import os
from pathlib import Path

from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from penstock.telemetry._process import tracer_provider


class Files(SpanExporter):
    def export(self, spans):
        with (Path(os.environ["PENSTOCK_TEST_SPANS"]) / f"{os.getpid()}.jsonl").open("a") as file:
            file.writelines(span.to_json(indent=None) + "\\n" for span in spans)
        return SpanExportResult.SUCCESS


def create():
    provider = tracer_provider()  # to OTLP; beside that, each span into a file at once
    provider.add_span_processor(SimpleSpanProcessor(Files()))
    return provider
"""
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
ROOT_SPAN_ID = "00f067aa0ba902b7"


def tracing_environment(span_folder: Path, package: Path) -> dict[str, str]:
    """Variables for Spark's processes: their provider is an installed entry point, as an application's would be."""
    (package / "penstock_test_provider.py").write_text(PROVIDER)
    metadata = package / "penstock_test_provider-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-test-provider\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[opentelemetry_tracer_provider]\npenstock_test = penstock_test_provider:create\n"
    )
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")])),
        "OTEL_PYTHON_TRACER_PROVIDER": "penstock_test",
        "OTEL_PYTHON_METER_PROVIDER": "penstock",
        "OTEL_METRIC_EXPORT_INTERVAL": "3000",
        "PENSTOCK_TEST_SPANS": str(span_folder),
    }


@pytest.fixture
def span_folder(tmp_path: Path) -> Path:
    """Where Spark's processes leave their spans."""
    folder = tmp_path / "spans"
    folder.mkdir()
    return folder


@pytest.fixture
def otlp() -> Iterator[OtlpReceiver]:
    """Where Spark's processes export to."""
    with running_receiver() as receiver:
        yield receiver


@pytest.fixture
def traced(span_folder: Path, otlp: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session whose processes export."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    variables = tracing_environment(span_folder, tmp_path) | {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp.endpoint}
    with connect_server(tmp_path, **variables) as url:
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = ConnectSession.builder.remote(url).getOrCreate()
        yield session
        session.stop()


def read_spans(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


def test_one_trace_holds_a_query_in_all_of_its_processes(
    traced: Any,
    span_folder: Path,
    otlp: OtlpReceiver,
    make_stream: Callable[[int], Any],
    until: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Registration, subscription, planning, partition reads and sink submits are linked through gRPC and Spark."""
    source, target = make_stream(2), make_stream(1)
    source.put(20)
    traceparent = f"00-{TRACE_ID}-{ROOT_SPAN_ID}-01"
    options = source.options(
        traceparent=traceparent,
        initialPosition="TRIM_HORIZON",
        recordPublisher="efo",
        efoConsumerName="traced",
        registryStore=str(tmp_path / "registry.db"),
    )
    frame = traced.readStream.format("kinesis").options(**options).load().select("data", "partitionKey")
    writer = frame.writeStream.format("kinesis").options(**target.options(traceparent=traceparent))
    # A task that is interrupted takes its worker along, with metrics that are not delivered yet: it ends on its own.
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert len(target.held()) == 20

    wanted = {
        "registration.register",
        "efo_consumer.subscribe",
        "spark_plugin.start_query",
        "spark_plugin.plan_batch",
        "spark_plugin.read_partition",
        "efo_consumer.read_range",
        "spark_plugin.write_partition",
        "async_sink.submit",
    }

    def mine() -> list[dict[str, Any]]:
        return [span for span in read_spans(span_folder) if span["context"]["trace_id"] == f"0x{TRACE_ID}"]

    until(
        lambda: wanted <= {span["name"] for span in mine()},
        lambda: f"spans are missing; there are {sorted({span['name'] for span in mine()})}",
    )
    spans = mine()
    by_id = {span["context"]["span_id"]: span for span in spans}

    def ancestors(span: dict[str, Any]) -> list[str]:
        names = []
        while span["parent_id"] in by_id:
            span = by_id[span["parent_id"]]
            names.append(span["name"])
        assert span["parent_id"] == f"0x{ROOT_SPAN_ID}", f"{span['name']} hangs on nothing"
        return names

    found = {span["name"]: ancestors(span) for span in spans if span["name"] in wanted}
    assert found["registration.register"][-1] == "spark_plugin.start_query"
    assert found["efo_consumer.subscribe"][-1] == "spark_plugin.start_query"
    assert found["spark_plugin.read_partition"] == ["spark_plugin.plan_batch"]
    assert found["efo_consumer.read_range"][-2:] == ["spark_plugin.read_partition", "spark_plugin.plan_batch"]
    assert found["async_sink.submit"][-1] == "spark_plugin.write_partition"
    assert_it_is_one_trace_in_otlp(otlp, wanted)


def assert_it_is_one_trace_in_otlp(otlp: OtlpReceiver, wanted: set[str]) -> None:
    """The source and the workers, which Spark kills, have delivered theirs to the collector; metrics as well."""

    def received() -> dict[bytes, tuple[int, Span]]:
        return {
            span.span_id: (resource["process.pid"], span)
            for resource, span in list(otlp.spans)
            if span.trace_id.hex() == TRACE_ID
        }

    otlp.wait_for(lambda: wanted <= {span.name for _, span in received().values()}, "spans are not delivered")
    spans = received()
    assert len({pid for pid, _ in spans.values()}) >= 2
    (submit, *_) = (span for _, span in spans.values() if span.name == "async_sink.submit")
    parents = [submit]
    while parents[-1].parent_span_id in spans:
        parents.append(spans[parents[-1].parent_span_id][1])
    assert [span.name for span in parents][-1] == "spark_plugin.write_partition"
    assert parents[-1].parent_span_id.hex() == ROOT_SPAN_ID
    otlp.wait_for(
        lambda: {"recordsread", "numrecordsout"} <= {metric.name for _, _, metric in otlp.metrics},
        "metrics of source and workers are not delivered",
    )
