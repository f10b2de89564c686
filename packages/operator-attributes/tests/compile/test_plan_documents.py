import json
import re

import pytest

from penstock.operator_attributes import (
    Boundedness,
    GlobalWindows,
    JobGraph,
    StageProgress,
    StageState,
    compile,
    explain,
    graphviz,
    mermaid,
)
from penstock.operator_attributes.errors import CompileError, InvalidDocumentError


def flights_job() -> JobGraph:
    graph = JobGraph("flights")
    graph.add_source("weather", boundedness=Boundedness.BOUNDED, call_site="job.py:1")
    graph.add_source("flights", boundedness=Boundedness.UNBOUNDED, parallelism=2, call_site="job.py:2")
    graph.add_operator(
        "daily",
        "weather",
        window=GlobalWindows.create_with_end_of_stream_trigger(),
        keyed=True,
        call_site="job.py:3",
    )
    graph.add_operator("joined", "flights", "daily", call_site="job.py:4")
    graph.add_sink("delays", "joined", call_site="job.py:5")
    return graph


EXPLAINED = """\
flights: 2 stages, 1 blocking edge

stage-1  daily  [batch, 1 slot]
  blocks: 'daily' emits only after the end of its input (job.py:3)
  source weather  (bounded, at job.py:1)
  operator daily <- weather [sorted by key]  (full-dam, batch mode, at job.py:3)

stage-2  delays  [stream, 2 slots]
  after: stage-1 (daily)
  source flights  (unbounded, parallelism 2, at job.py:2)
  operator joined <- flights, daily [blocking, stage-1]  (at job.py:4)
  sink delays <- joined  (at job.py:5)
"""


def test_explain_shows_stages_reasons_inputs_and_call_sites() -> None:
    """The text shows why a stage waits."""
    assert explain(compile(flights_job())) == EXPLAINED


def test_explain_shows_how_far_each_stage_has_come() -> None:
    """With progress, the text shows state, attempt, time, rows, bytes and error."""
    progress = {
        "stage-1": StageProgress(state=StageState.FINISHED, attempts=2, seconds=1.25, rows=1095, size_bytes=20480),
        "stage-2": StageProgress(state=StageState.RUNNING, attempts=1, seconds=60.0, error="lost a task"),
    }
    text = explain(compile(flights_job()), progress)
    assert "state: FINISHED, attempt 2, 1.2 s, 1,095 rows, 20,480 bytes" in text
    assert "state: RUNNING, attempt 1, 60.0 s, again after: lost a task" in text


def test_mermaid_draws_blocking_edges_thick() -> None:
    """One subgraph per stage; exactly the blocking edge has the thick arrow."""
    text = mermaid(compile(flights_job()))
    assert text.startswith("flowchart LR\n")
    assert re.findall(r"(\w+) ==>\|blocking\| (\w+)", text) == [("n2", "n4")]
    assert 'n2["daily (full-dam)"]' in text
    assert text.count("subgraph") == 2
    assert text.count("-->") == 3


def test_graphviz_draws_blocking_edges_bold() -> None:
    """One cluster per stage; exactly the blocking edge is bold."""
    text = graphviz(compile(flights_job()))
    assert re.findall(r"(\w+) -> (\w+) \[style=bold", text) == [("n2", "n4")]
    assert text.count("subgraph cluster_") == 2
    assert text.startswith('digraph "flights" {')


def test_pictures_colour_stages_by_state() -> None:
    """A failed stage has its own colour, readable on light and dark pages."""
    plan = compile(flights_job())
    progress = {"stage-1": StageProgress(state=StageState.FAILED)}
    assert re.search(r"style s1 fill:#[0-9a-f]{6},color:#[0-9a-f]{6}", mermaid(plan, progress))
    assert "FAILED" in mermaid(plan, progress)
    assert "fillcolor=" in graphviz(plan, progress)
    assert "fillcolor=" not in graphviz(plan)


def test_names_cannot_break_a_picture() -> None:
    """Quotes, brackets and line ends are text like any other."""
    graph = JobGraph('a"b')
    graph.add_source('x"] --> y\n<b>', boundedness=Boundedness.BOUNDED)
    graph.add_sink("back\\slash", 'x"] --> y\n<b>')
    plan = compile(graph)
    assert '(["x#quot;] --&gt; y &lt;b&gt; (bounded)"])' in mermaid(plan)
    assert 'label="x\\"] --> y <b> (bounded)"' in graphviz(plan)
    assert 'label="back\\\\slash"' in graphviz(plan)


def test_a_graph_can_be_written_by_hand() -> None:
    """Only what differs from the defaults must be said."""
    graph = JobGraph.from_json(
        """{"version": 1, "name": "job", "vertices": [
            {"name": "s", "kind": "source", "boundedness": "bounded"},
            {"name": "t", "kind": "sink", "inputs": [{"source": "s"}]}]}"""
    )
    assert compile(graph).stages[0].vertices == ("s", "t")


def test_a_plan_gives_back_its_graph() -> None:
    """Compiled again, it is the same plan."""
    plan = compile(flights_job())
    assert compile(plan.graph) == plan


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("no json", "$"),
        ('{"version": 1, "name": "job"}', "$"),
        ('{"version": 2, "name": "job", "vertices": []}', "$.version"),
        ('{"version": 1, "name": "job", "vertices": [{"name": "a", "kind": "river"}]}', "$.vertices[0].kind"),
        (
            '{"version": 1, "name": "j", "vertices": '
            '[{"name": "a", "kind": "source", "boundedness": "bounded", "parallelism": 0}]}',
            "$.vertices[0]",
        ),
    ],
)
def test_an_invalid_document_is_refused_with_the_place(text: str, path: str) -> None:
    """The error says where the document differs from what was expected."""
    with pytest.raises(InvalidDocumentError) as caught:
        JobGraph.from_json(text)
    assert caught.value.path == path


def test_names_in_a_document_are_checked_like_any_other() -> None:
    """Two vertices of one name are refused."""
    document = json.loads(flights_job().to_json())
    document["vertices"].append(document["vertices"][0])
    with pytest.raises(CompileError, match="DUPLICATE_NAME"):
        JobGraph.from_json(json.dumps(document))
