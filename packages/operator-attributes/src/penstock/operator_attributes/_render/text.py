"""Plans, figures and stages as text."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from penstock.operator_attributes._compile.graph import Vertex, VertexKind
from penstock.operator_attributes._compile.plan import PlannedEdge, Stage, StagePlan
from penstock.operator_attributes._schedule.states import StageProgress, StageState


def shorten(text: str, length: int) -> str:
    """At most so many characters, the middle left out: names often differ at their end."""
    if len(text) <= length:
        return text
    head = length // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def place_text(call_site: str) -> str:
    """The end of a call site, which is enough to find it: `jobs/flights.py:12` of a longer path."""
    return "/".join(call_site.replace("\\", "/").split("/")[-2:])


def count(number: int, word: str) -> str:
    """`1 stage`, `2 stages`."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def seconds_text(seconds: float) -> str:
    """`0.25 s`, `12.5 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min"


def bytes_text(size_bytes: float) -> str:
    """`512 B`, `20.5 kB`, `3.2 GB`: powers of 1,000."""
    if size_bytes < 1_000:
        return f"{size_bytes:.0f} B"
    value = float(size_bytes)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1_000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value:,.1f} TB"


def kind_text(stage: Stage) -> str:
    """`batch, 2 slots, no checkpoints`."""
    kind = "batch" if stage.bounded else "stream"
    checkpoints = "checkpointed" if stage.checkpointed else "no checkpoints"
    return f"{kind}, {count(stage.slots, 'slot')}, {checkpoints}"


def progress_text(progress: StageProgress) -> str:
    """`FINISHED in 12.5 s, 1,095 rows, 20.5 kB`."""
    parts = [progress.state.value.upper()]
    if progress.attempts:
        parts[0] += f" {'in' if progress.state.ended else 'for'} {seconds_text(progress.seconds)}"
    if progress.attempts > 1:
        parts.append(f"attempt {progress.attempts}")
    if progress.rows is not None:
        parts.append(count(progress.rows, "row"))
    if progress.size_bytes is not None:
        parts.append(bytes_text(progress.size_bytes))
    return ", ".join(parts)


def role_text(vertex: Vertex) -> str:
    """What a vertex is: `bounded source`, `full-dam operator`, `sink`."""
    if vertex.kind is VertexKind.SOURCE and vertex.boundedness is not None:
        return f"{vertex.boundedness.value} source"
    return f"full-dam {vertex.kind.value}" if vertex.full_dam else vertex.kind.value


class Explanation(str):
    """A text with lines, which a notebook shows as such."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table for notebooks: without styles of its own, and with all values escaped."""
    head = "".join(f"<th>{escape(one)}</th>" for one in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(one))}</td>" for one in row) + "</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def stage_table(plan: StagePlan, progress: Mapping[str, StageProgress] | None = None) -> str:
    """The stages as a table for notebooks; with `progress` (by stage id), how far each has come too."""
    headings = ["stage", "name", "runs as", "operators", "after", "blocks because"]
    rows = []
    for stage in plan.stages:
        after = ", ".join(plan.stage(one).name for one in stage.blocking_inputs)
        row = [stage.id, stage.name, kind_text(stage), ", ".join(stage.vertices), after or "-", stage.reason or "-"]
        if progress is not None:
            row += [_progress(progress[stage.id])] if stage.id in progress else ["-"]
        rows.append(row)
    return html_table([*headings, *([] if progress is None else ["state"])], rows, plan.name)


def explain(plan: StagePlan, progress: Mapping[str, StageProgress] | None = None) -> Explanation:
    """The plan as text, a paragraph per stage; with `progress` (by stage id), how far each has come too."""
    progress = progress or {}
    vertices = {vertex.name: vertex for vertex in plan.vertices}
    reads: dict[tuple[str, str], list[PlannedEdge]] = {}
    for edge in plan.edges:
        reads.setdefault((edge.target_stage, edge.target), []).append(edge)
    stages, edges = count(len(plan.stages), "stage"), count(len(plan.blocking_edges), "blocking edge")
    lines = [f"{plan.name}: {stages}, {edges}"]
    for stage in plan.stages:
        lines += ["", *_stage(plan, stage, vertices, reads, progress.get(stage.id))]
    return Explanation("\n".join(lines) + "\n")


def _stage(
    plan: StagePlan,
    stage: Stage,
    vertices: Mapping[str, Vertex],
    reads: Mapping[tuple[str, str], list[PlannedEdge]],
    progress: StageProgress | None,
) -> list[str]:
    kind = "batch" if stage.bounded else "stream"
    lines = [f"{stage.id}  {stage.name}  [{kind}, {count(stage.slots, 'slot')}]"]
    if progress is not None:
        lines.append(f"  state: {_progress(progress)}")
    if stage.inputs:
        waits = ", ".join(f"{before} ({plan.stage(before).name})" for before in stage.blocking_inputs)
        lines.append(f"  after: {waits}")
    if stage.reasons:
        lines += [f"  blocks: {reason}" for reason in stage.reasons]
    if stage.merged:
        lines.append("  merged: its regions would have waited for each other, so it is deployed as one")
    batch = set(stage.batch_vertices)
    for name in stage.vertices:
        lines.append(f"  {_vertex(vertices[name], reads.get((stage.id, name), []), stage, in_batch=name in batch)}")
    return lines


def _vertex(vertex: Vertex, edges: list[PlannedEdge], stage: Stage, *, in_batch: bool) -> str:
    notes = []
    if vertex.kind is VertexKind.SOURCE and vertex.boundedness is not None:
        notes.append(vertex.boundedness.value)
    if vertex.full_dam:
        notes.append("full-dam")
    if in_batch:
        notes.append("batch mode")
    if any(edge.chained for edge in edges):
        notes.append("chained")
    if vertex.parallelism > 1:
        notes.append(f"parallelism {vertex.parallelism}")
    if vertex.call_site:
        notes.append(f"at {vertex.call_site}")
    text = f"{vertex.kind.value} {vertex.name}"
    if edges:
        text += " <- " + ", ".join(_read(edge, stage) for edge in edges)
    return text + (f"  ({', '.join(notes)})" if notes else "")


def _read(edge: PlannedEdge, stage: Stage) -> str:
    marks = []
    if edge.source_stage != stage.id:
        marks.append(f"blocking, {edge.source_stage}")
    elif edge.blocking:
        marks.append("blocking, within the stage")
    if edge.sorted:
        marks.append("sorted by key")
    elif edge.keyed:
        marks.append("keyed")
    return edge.source + (f" [{', '.join(marks)}]" if marks else "")


def _progress(progress: StageProgress) -> str:
    parts = [progress.state.value.upper()]
    if progress.attempts:
        parts.append(f"attempt {progress.attempts}")
        parts.append(f"{progress.seconds:.1f} s")
    if progress.rows is not None:
        parts.append(f"{progress.rows:,} rows")
    if progress.size_bytes is not None:
        parts.append(f"{progress.size_bytes:,} bytes")
    if progress.error:
        parts.append(f"again after: {progress.error}" if progress.state is StageState.RUNNING else progress.error)
    return ", ".join(parts)
