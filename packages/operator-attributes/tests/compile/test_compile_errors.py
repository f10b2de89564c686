from typing import Any

import pytest

from penstock.operator_attributes import (
    Boundedness,
    Input,
    JobGraph,
    OperatorAttributes,
    ResultPartitionType,
    Vertex,
    VertexKind,
    compile,
)
from penstock.operator_attributes.errors import CompileError, FullDamOverUnboundedError, InvalidOptionError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def live_job() -> JobGraph:
    graph = JobGraph()
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED)
    return graph


def test_a_full_dam_operator_over_an_unbounded_input_names_operator_source_and_call_site() -> None:
    """The end of the input never comes, however far away the source is."""
    graph = live_job()
    graph.add_source("static", boundedness=Boundedness.BOUNDED)
    graph.add_operator("join", "static", "live")
    graph.add_operator("dam", "join", attributes=FULL_DAM, call_site="job.py:7")
    with pytest.raises(FullDamOverUnboundedError, match=r"'dam' \(job\.py:7\).*'live'") as caught:
        compile(graph)
    assert caught.value.operator == "dam"
    assert caught.value.call_site == "job.py:7"
    assert caught.value.unbounded_sources == ("live",)


def test_a_blocking_edge_out_of_an_unbounded_vertex_is_refused() -> None:
    """Its consumer would never be deployed."""
    graph = live_job()
    graph.add_sink("sink", Input("live", partition_type=ResultPartitionType.BLOCKING), call_site="job.py:3")
    with pytest.raises(CompileError, match="UNBOUNDED_BLOCKING_EDGE") as caught:
        compile(graph)
    facts = caught.value.facts
    assert (facts["source"], facts["target"], facts["call_site"]) == ("live", "sink", "job.py:3")


def test_a_cycle_is_named_along_its_edges() -> None:
    """The message shows the cycle, without other vertices."""
    graph = live_job()
    graph.add_operator("a", "live", "c")
    graph.add_operator("b", "a")
    graph.add_operator("c", "b")
    graph.add_sink("sink", "c")
    with pytest.raises(CompileError, match="GRAPH_CYCLE") as caught:
        compile(graph)
    assert caught.value.facts["cycle"] == ["a", "b", "c", "a"]


def test_cycle_has_the_line_of_each_vertex_once() -> None:
    graph = JobGraph()
    graph.add_operator("a", "b", call_site="job.py:1")
    graph.add_operator("b", "a", call_site="job.py:2")
    with pytest.raises(CompileError) as caught:
        compile(graph)
    assert caught.value.facts["path"] == "a (job.py:1) -> b (job.py:2) -> a"


def test_an_unknown_input_is_named_with_its_nearest_match() -> None:
    """A typing error gets the likely name."""
    graph = live_job()
    graph.add_sink("sink", "lvie", call_site="job.py:3")
    with pytest.raises(CompileError, match="UNKNOWN_INPUT") as caught:
        compile(graph)
    facts = caught.value.facts
    assert (facts["vertex"], facts["unknown"], facts["nearest"]) == ("sink", "lvie", "live")


def test_a_name_is_taken_once() -> None:
    """The error names both places."""
    graph = JobGraph()
    graph.add_source("live", boundedness=Boundedness.UNBOUNDED, call_site="job.py:1")
    with pytest.raises(CompileError, match=r"DUPLICATE_NAME.*job\.py:2.*job\.py:1"):
        graph.add_sink("live", "live", call_site="job.py:2")


def test_a_sink_cannot_be_read() -> None:
    """Sinks have no output."""
    graph = live_job()
    graph.add_sink("sink", "live")
    graph.add_operator("after", "sink")
    with pytest.raises(CompileError, match="INVALID_VERTEX"):
        compile(graph)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": VertexKind.SOURCE, "inputs": (Input("b"),), "boundedness": Boundedness.BOUNDED},
        {"kind": VertexKind.SOURCE},
        {"kind": VertexKind.SINK},
        {"kind": VertexKind.SINK, "inputs": (Input("b"),), "boundedness": Boundedness.BOUNDED},
    ],
)
def test_a_vertex_that_contradicts_its_kind_is_refused(wrong: dict[str, Any]) -> None:
    """Sources have no inputs and are bounded or not; everything else is the other way round."""
    with pytest.raises(CompileError, match="INVALID_VERTEX"):
        Vertex(name="a", **wrong)


def test_impossible_values_name_the_option() -> None:
    """Parallelism is positive, names are not empty, and a window excludes attributes."""
    graph = live_job()
    with pytest.raises(InvalidOptionError, match="parallelism"):
        graph.add_sink("sink", "live", parallelism=0)
    with pytest.raises(InvalidOptionError, match="name"):
        graph.add_sink("", "live")
