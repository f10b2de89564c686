import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from penstock.operator_attributes import Boundedness, JobGraph, OperatorAttributes, compile
from penstock.operator_attributes.errors import CompileError


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


def test_compiling_makes_a_span_with_the_size_of_the_job(spans: InMemorySpanExporter, provider: TracerProvider) -> None:
    """A trace shows what was planned without looking at the plan."""
    graph = JobGraph("flights")
    graph.add_source("source", boundedness=Boundedness.BOUNDED)
    graph.add_operator("dam", "source", attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    graph.add_sink("sink", "dam")
    compile(graph, tracer=provider.get_tracer("test"))
    (span,) = spans.get_finished_spans()
    assert span.name == "operator_attributes.compile"
    assert dict(span.attributes or {}) == {
        "penstock.job.name": "flights",
        "penstock.job.vertices": 3,
        "penstock.job.stages": 2,
        "penstock.job.blocking_edges": 1,
    }


def test_a_graph_that_cannot_be_compiled_marks_its_span(spans: InMemorySpanExporter, provider: TracerProvider) -> None:
    """The error is recorded where it happened."""
    graph = JobGraph()
    graph.add_sink("sink", "nothing")
    with pytest.raises(CompileError, match="UNKNOWN_INPUT"):
        compile(graph, tracer=provider.get_tracer("test"))
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
