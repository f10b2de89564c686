import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pyspark.sql import SparkSession

from penstock.telemetry.testing import OtlpReceiver

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
ROOT_SPAN_ID = "00f067aa0ba902b7"


def read_spans(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


def test_one_trace_holds_a_query_in_all_of_its_processes(
    spark: SparkSession,
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
    frame = spark.readStream.format("kinesis").options(**options).load().select("data", "partitionKey")
    writer = frame.writeStream.format("kinesis").options(**target.options(traceparent=traceparent))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    until(lambda: len(target.held()) >= 20, "the records are not written", query=query)
    # A task that is interrupted takes its worker along, with metrics that are not delivered yet.
    until(lambda: any(one["numInputRows"] for one in query.recentProgress), "no micro-batch ends", query=query)
    query.stop()

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
