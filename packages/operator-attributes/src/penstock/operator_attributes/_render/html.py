"""A plan as one HTML page: no script, no other file, nothing loaded from anywhere."""

from collections.abc import Iterable, Mapping

from penstock.operator_attributes._compile.plan import PlannedEdge, Stage, StagePlan
from penstock.operator_attributes._graph.graph import Vertex
from penstock.operator_attributes._render.svg import svg
from penstock.operator_attributes._render.theme import STATES, variables
from penstock.operator_attributes._render.words import bytes_text, count, escape, place_text, role_text, seconds_text
from penstock.operator_attributes._schedule.estimate import Estimate, StageSavings
from penstock.operator_attributes._schedule.progress import StageProgress

_STYLE = (
    variables(":root") + "*{box-sizing:border-box}html{color-scheme:light dark}"
    "body{margin:0;background:var(--page);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    "main{max-width:1320px;margin:0 auto;padding:28px 20px 48px}"
    "h1{font-size:26px;line-height:1.25;margin:0;overflow-wrap:anywhere}h2{font-size:18px;margin:36px 0 10px}"
    ".lead{margin:4px 0 0;color:var(--soft)}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(158px,1fr));gap:12px;margin:22px 0 0;padding:0}"
    ".tiles>div{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 15px}"
    ".tiles dt{color:var(--soft);font-size:13px}.tiles dd{margin:2px 0 0;font-size:21px;font-weight:650;"
    "white-space:nowrap}"
    ".scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:12px}"
    ".scroll:focus-visible{outline:3px solid var(--accent);outline-offset:2px}"
    ".scroll svg{display:block;margin:0 auto;height:auto}"
    ".legend{display:flex;flex-wrap:wrap;gap:6px 22px;color:var(--soft);font-size:13.5px;margin:10px 2px 0;padding:0;"
    "list-style:none}.legend li{display:flex;align-items:center;gap:8px}"
    ".legend i{display:inline-block;width:30px;border-top:2px solid var(--flow)}"
    ".legend i.b{border-top:5px solid var(--dam)}.legend i.d{width:7px;height:18px;border:0;background:var(--dam);"
    "border-radius:2px}.legend i.s{height:16px;width:24px;border:1px solid;border-radius:5px}"
    ".legend i.batch{background:var(--batch);border-color:var(--batch-line)}"
    ".legend i.stream{background:var(--stream);border-color:var(--stream-line)}"
    "table{border-collapse:collapse;width:100%;font-size:14px}"
    "caption{text-align:left;color:var(--soft);padding:12px 15px}"
    "th,td{text-align:left;vertical-align:top;padding:9px 16px;border-top:1px solid var(--line)}"
    "thead th{color:var(--soft);font-weight:600;font-size:13px;white-space:nowrap}"
    "tbody th{font-weight:600}.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"
    ".kind{white-space:nowrap}.id{color:var(--soft);font-weight:400;white-space:nowrap}.name{overflow-wrap:anywhere}"
    "code{font:13px ui-monospace,'SFMono-Regular',Menlo,'DejaVu Sans Mono',monospace;color:var(--soft);"
    "overflow-wrap:anywhere}"
    ".operators{margin:0;padding:0;list-style:none}.operators li+li{margin-top:3px}.role{color:var(--soft)}"
    ".badge{display:inline-block;border-radius:11px;padding:1px 10px;font-size:13px;font-weight:600;white-space:nowrap}"
    "tbody th.name{min-width:230px}td.name{min-width:150px}.operators{min-width:250px}"
    "tr:target{background:var(--batch)}"
    "a{color:inherit;text-underline-offset:3px}.bar{display:block;height:5px;margin:4px 0 0 auto;border-radius:3px;"
    "background:var(--accent);min-width:2px}"
    ".error{color:var(--failed);margin-top:4px}.why{color:var(--soft);margin-top:4px;font-weight:400}"
    ".blocks td,.blocks th{font-weight:700}.blocks .mode{color:var(--dam)}"
    "footer{margin-top:36px;color:var(--soft);font-size:13px}"
    "@media print{.scroll{overflow:visible;border:0}.scroll svg{max-width:100%;height:auto}}"
    + "".join(f".{state.value}{{color:var(--{state.value});background:var(--{state.value}-fill)}}" for state in STATES)
)


def html(
    plan: StagePlan, progress: Mapping[str, StageProgress] | None = None, *, estimate: Estimate | None = None
) -> str:
    """The plan as one HTML page that needs nothing else: picture, stages, edges, call sites and savings.

    Whatever the user named is text in it, never markup.
    """
    progress = progress or {}
    name = escape(plan.name)
    batch = sum(stage.bounded for stage in plan.stages)
    lead = f"{count(batch, 'batch stage')}, {count(len(plan.stages) - batch, 'live stage')}"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{name}: stages</title><style>{_STYLE}</style></head><body><main>",
        f'<header><h1>{name}</h1><p class="lead">{lead}</p></header>',
        _tiles(plan, progress, estimate),
        '<h2 id="plan">Plan</h2><div class="scroll" tabindex="0" role="region" aria-labelledby="plan">',
        svg(plan, progress, estimate=estimate, linked=True).rstrip(),
        "</div>",
        _LEGEND,
        _stages(plan, progress),
        _edges(plan),
        "" if estimate is None else _savings(estimate),
        "<footer>A blocking edge hands its records over when its producer has finished; the stage behind it is "
        "deployed then, and holds no slots before.</footer>",
        "</main></body></html>\n",
    ]
    return "".join(parts)


_LEGEND = (
    '<ul class="legend" aria-label="Legend"><li><i></i>records flow as they come</li>'
    '<li><i class="b"></i>blocking edge</li>'
    '<li><i class="d"></i>full-dam operator: emits after the end of its input</li>'
    '<li><i class="s batch"></i>batch stage</li><li><i class="s stream"></i>live stage</li></ul>'
)


def _tiles(plan: StagePlan, progress: Mapping[str, StageProgress], estimate: Estimate | None) -> str:
    tiles = [("Stages", f"{len(plan.stages):,}"), ("Blocking edges", f"{len(plan.blocking_edges):,}")]
    if progress:
        done = sum(one.state.committed for one in progress.values())
        tiles.append(("Committed", f"{done:,} of {len(plan.stages):,}"))
        tiles.append(("Time in stages", seconds_text(sum(one.seconds for one in progress.values()))))
    if estimate is not None:
        tiles.append(("Slot-seconds saved", f"{estimate.slot_seconds:,.0f}"))
        tiles.append(("State not held", bytes_text(estimate.state_bytes)))
        tiles.append(("Saved per batch", seconds_text(estimate.recomputed_seconds_per_batch)))
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{items}</dl>'


def _stages(plan: StagePlan, progress: Mapping[str, StageProgress]) -> str:
    vertices = {vertex.name: vertex for vertex in plan.vertices}
    longest = max((one.seconds for one in progress.values()), default=0.0)
    rows = [_stage(stage, vertices, progress.get(stage.id), longest) for stage in plan.stages]
    numbers = [("Time", True), ("Rows", True), ("Size", True)] if progress else []
    columns = [("Stage", False), ("Runs as", False), *([("State", False)] if progress else []), ("After", False)]
    return _table("Stages", "In an order in which they can run.", [*columns, ("Operators", False), *numbers], rows)


def _stage(stage: Stage, vertices: Mapping[str, Vertex], progress: StageProgress | None, longest: float) -> str:
    kind = ("batch" if stage.bounded else "stream") + f"<br>{count(stage.slots, 'slot')}"
    kind += f'<br><span class="role">{"checkpointed" if stage.checkpointed else "no checkpoints"}</span>'
    why = "".join(
        f'<div class="why">{escape(reason.words())}{_place(reason.call_site)}</div>' for reason in stage.reasons
    )
    if stage.merged:
        why += '<div class="why">merged: its regions would have waited for each other</div>'
    cells = [
        f'<th scope="row" class="name"><span class="id">{escape(stage.id)}</span> {escape(stage.name)}{why}</th>',
        f'<td class="kind">{kind}</td>',
    ]
    if progress is not None:
        error = f'<div class="error">{escape(progress.error)}</div>' if progress.error else ""
        attempts = f'<div class="role">attempt {progress.attempts}</div>' if progress.attempts > 1 else ""
        cells.append(f"<td>{_badge(progress)}{attempts}{error}</td>")
    links = (f'<a href="#{escape(one)}">{escape(one)}</a>' for one in stage.blocking_inputs)
    after = "<br>".join(links) or '<span class="role">nothing</span>'
    operators = "".join(
        f"<li>{escape(name)} <span class='role'>{role_text(vertices[name])}</span>"
        + _place(vertices[name].call_site)
        + "</li>"
        for name in stage.vertices
    )
    cells += [f'<td class="id">{after}</td>', f'<td><ul class="operators">{operators}</ul></td>']
    if progress is not None:
        ran = progress.attempts > 0
        # Bars are measured by the stage that takes longest, which 84 pixels stand for.
        width = 84 * progress.seconds / longest if longest else 0.0
        bar = f'<i class="bar" style="width:{width:.0f}px"></i>' if ran else ""
        cells.append(f'<td class="number">{seconds_text(progress.seconds) if ran else "–"}{bar}</td>')
        cells.append(f'<td class="number">{"–" if progress.rows is None else f"{progress.rows:,}"}</td>')
        size = "–" if progress.size_bytes is None else bytes_text(progress.size_bytes)
        cells.append(f'<td class="number">{size}</td>')
    return f'<tr id="{escape(stage.id)}">{"".join(cells)}</tr>'


def _place(call_site: str) -> str:
    """The end of the path is enough to find a line; all of it shows up under the pointer."""
    return f' <code title="{escape(call_site)}">{escape(place_text(call_site))}</code>' if call_site else ""


def _badge(progress: StageProgress) -> str:
    mark, _, _ = STATES[progress.state]
    state = progress.state.value
    return f'<span class="badge {state}"><span aria-hidden="true">{mark}</span> {state.upper()}</span>'


def _edges(plan: StagePlan) -> str:
    rows = [_edge(edge) for edge in sorted(plan.edges, key=lambda edge: not edge.blocking)]
    columns = [("From", False), ("To", False), ("Exchange", False), ("Input", False), ("Stages", False)]
    return _table("Edges", "Blocking ones first, in bold.", columns, rows)


def _edge(edge: PlannedEdge) -> str:
    mode = "blocking" if edge.blocking else ("chained" if edge.chained else "pipelined")
    how = "sorted by key" if edge.sorted else ("keyed" if edge.keyed else "as it is")
    stages = " → ".join(dict.fromkeys((edge.source_stage, edge.target_stage)))
    return (
        f'<tr{" class=blocks" if edge.blocking else ""}><td class="name">{escape(edge.source)}</td>'
        f'<td class="name">{escape(edge.target)}</td><td class="mode">{mode}</td><td>{how}</td>'
        f"<td>{escape(stages)}</td></tr>"
    )


def _savings(estimate: Estimate) -> str:
    saving = (one for one in estimate.stages if one.slot_seconds or one.state_bytes or one.recomputed_seconds)
    rows = [_saving(one) for one in saving]
    text = (
        "Estimated. Slot-seconds are slots times the seconds for which a stage is held back; state is what would "
        "arrive meanwhile and what a streaming join would hold; a micro-batch does not compute again what is above it."
    )
    columns = [
        ("Stage", False),
        ("Slots × held back", True),
        ("Slot-seconds", True),
        ("Arriving + joined", True),
        ("State", True),
        ("Per micro-batch", True),
        ("Batches to pay back", True),
    ]
    return _table("What staging saves", text, columns, rows)


def _saving(one: StageSavings) -> str:
    even = "never" if one.break_even_batches is None else f"{one.break_even_batches:,}"
    cells = [
        f"{one.slots} × {seconds_text(one.blocking_seconds)}",
        f"{one.slot_seconds:,.1f}",
        f"{bytes_text(one.arriving_bytes)} + {bytes_text(one.joined_bytes)}" if one.live else "–",
        bytes_text(one.state_bytes) if one.live else "–",
        seconds_text(one.recomputed_seconds) if one.live else "–",
        even if one.live else "–",
    ]
    name = f'<th scope="row" class="name"><span class="id">{escape(one.stage_id)}</span> {escape(one.name)}</th>'
    return f"<tr>{name}{''.join(f'<td class=number>{cell}</td>' for cell in cells)}</tr>"


def _table(title: str, caption: str, columns: Iterable[tuple[str, bool]], rows: list[str]) -> str:
    anchor = title.lower().replace(" ", "-")
    head = "".join(f'<th scope="col"{" class=number" if right else ""}>{name}</th>' for name, right in columns)
    return (
        f'<h2 id="{anchor}">{title}</h2><div class="scroll" tabindex="0" role="region" aria-labelledby="{anchor}">'
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
