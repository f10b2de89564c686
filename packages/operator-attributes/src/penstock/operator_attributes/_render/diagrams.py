"""A plan as a picture: Mermaid and Graphviz, blocking edges bold."""

from collections.abc import Mapping

from penstock.operator_attributes._compile.graph import Vertex, VertexKind
from penstock.operator_attributes._compile.plan import Stage, StagePlan
from penstock.operator_attributes._render.theme import LIGHT, STATES
from penstock.operator_attributes._schedule.states import StageProgress

_MERMAID_SHAPES = {
    VertexKind.SOURCE: ('(["', '"])'),
    VertexKind.OPERATOR: ('["', '"]'),
    VertexKind.SINK: ('[["', '"]]'),
}
_DOT_SHAPES = {VertexKind.SOURCE: "oval", VertexKind.OPERATOR: "box", VertexKind.SINK: "cds"}


def mermaid(plan: StagePlan, progress: Mapping[str, StageProgress] | None = None) -> str:
    """The plan as a Mermaid flowchart, a subgraph per stage; blocking edges are thick and labelled."""
    progress = progress or {}
    ids = _node_ids(plan)
    vertices = {vertex.name: vertex for vertex in plan.vertices}
    lines = ["flowchart LR"]
    for number, stage in enumerate(plan.stages, 1):
        lines.append(f'    subgraph s{number}["{_mermaid_text(_title(stage, progress.get(stage.id)))}"]')
        for vertex in (vertices[name] for name in stage.vertices):
            before, after = _MERMAID_SHAPES[vertex.kind]
            lines.append(f"        {ids[stage.id, vertex.name]}{before}{_mermaid_text(_label(vertex))}{after}")
        lines.append("    end")
    for edge in plan.edges:
        arrow = "==>|blocking|" if edge.blocking else "-->"
        lines.append(f"    {ids[edge.source_stage, edge.source]} {arrow} {ids[edge.target_stage, edge.target]}")
    for number, stage in enumerate(plan.stages, 1):
        if stage.id in progress:
            # Mermaid writes in white for readers who prefer dark pages; these colours are for light ones.
            lines.append(f"    style s{number} fill:{STATES[progress[stage.id].state][1][1]},color:{LIGHT['ink']}")
    return "\n".join(lines) + "\n"


def graphviz(plan: StagePlan, progress: Mapping[str, StageProgress] | None = None) -> str:
    """The plan in Graphviz's DOT language, a cluster per stage; blocking edges are bold."""
    progress = progress or {}
    ids = _node_ids(plan)
    vertices = {vertex.name: vertex for vertex in plan.vertices}
    lines = [
        f"digraph {_dot_text(plan.name)} {{",
        "    rankdir=LR;",
        '    node [fontname="Helvetica"];',
        '    edge [fontname="Helvetica"];',
    ]
    for number, stage in enumerate(plan.stages, 1):
        current = progress.get(stage.id)
        lines.append(f"    subgraph cluster_{number} {{")
        lines.append(f"        label={_dot_text(_title(stage, current))};")
        if current is not None:
            lines.append(f'        style=filled; fillcolor="{STATES[current.state][1][1]}";')
        for vertex in (vertices[name] for name in stage.vertices):
            lines.append(
                f"        {ids[stage.id, vertex.name]} "
                f"[label={_dot_text(_label(vertex))}, shape={_DOT_SHAPES[vertex.kind]}];"
            )
        lines.append("    }")
    for edge in plan.edges:
        style = ' [style=bold, penwidth=3, label="blocking"]' if edge.blocking else ""
        lines.append(f"    {ids[edge.source_stage, edge.source]} -> {ids[edge.target_stage, edge.target]}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def _node_ids(plan: StagePlan) -> dict[tuple[str, str], str]:
    places = [(stage.id, vertex) for stage in plan.stages for vertex in stage.vertices]
    return {place: f"n{number}" for number, place in enumerate(places, 1)}


def _title(stage: Stage, progress: StageProgress | None) -> str:
    kind = "batch" if stage.bounded else "stream"
    state = f", {progress.state.value.upper()}" if progress is not None else ""
    return f"{stage.id}: {stage.name} ({kind}{state})"


def _label(vertex: Vertex) -> str:
    if vertex.full_dam:
        return f"{vertex.name} (full-dam)"
    if vertex.boundedness is not None:
        return f"{vertex.name} ({vertex.boundedness.value})"
    return vertex.name


def _mermaid_text(text: str) -> str:
    # Mermaid reads entities inside of quotes, and "#" begins one of its own.
    for plain, entity in (
        ("&", "&amp;"),
        ("#", "#35;"),
        ('"', "#quot;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("\n", " "),
        ("`", "#96;"),
    ):
        text = text.replace(plain, entity)
    return text


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
