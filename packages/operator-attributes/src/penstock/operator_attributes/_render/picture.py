"""A plan as an SVG picture, and as an HTML page that loads nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from penstock.operator_attributes._compile.graph import Vertex
from penstock.operator_attributes._compile.plan import PlannedEdge, Stage, StagePlan
from penstock.operator_attributes._render.layout import Layout, Point, layered
from penstock.operator_attributes._render.text import (
    bytes_text,
    kind_text,
    progress_text,
    role_text,
    seconds_text,
    shorten,
)
from penstock.operator_attributes._render.theme import render
from penstock.operator_attributes._schedule.estimate import Estimate
from penstock.operator_attributes._schedule.states import StageProgress

_NODE_HEIGHT = 48.0
_PADDING = 20.0
_MARGIN = 16.0
_TITLE = 50.0
_BADGE = 30.0
_NAME_LENGTH = 26


@dataclass(frozen=True, slots=True)
class _Box:
    """A stage: what is in it, and where, from its own left upper corner."""

    stage: Stage
    facts: str
    inside: Layout
    nodes: dict[str, int]
    ports_in: dict[str, int]
    """By the vertex, of another stage, whose result comes in."""
    ports_out: dict[str, int]
    """By the vertex whose result goes out."""
    edges: Mapping[tuple[int, int], PlannedEdge | None]
    """By the ends that they have inside; None from or to a port."""
    routes: Mapping[tuple[int, int], tuple[Point, ...]]
    head: float
    width: float
    height: float


def svg(
    plan: StagePlan,
    progress: Mapping[str, StageProgress] | None = None,
    *,
    estimate: Estimate | None = None,
    linked: bool = False,
) -> str:
    """The plan as an SVG picture that needs nothing else; it follows the reader's light or dark preference.

    With `progress`, how far each stage has come; with `estimate`, what staging saves; with `linked`, the title of each
    stage leads to the element whose id is the stage's, on the page around it.
    """
    progress = progress or {}
    vertices = {vertex.name: vertex for vertex in plan.vertices}
    within: dict[str, list[PlannedEdge]] = {stage.id: [] for stage in plan.stages}
    for edge in plan.edges:
        if edge.source_stage == edge.target_stage:
            within[edge.source_stage].append(edge)
    saved = {one.stage_id: one.slot_seconds for one in estimate.stages} if estimate is not None else {}
    boxes = [
        _box(stage, vertices, within[stage.id], _facts(stage, saved), _badge(progress.get(stage.id)))
        for stage in plan.stages
    ]
    number = {box.stage.id: place for place, box in enumerate(boxes)}
    between = sorted({(number[one.stage_id], number[box.stage.id]) for box in boxes for one in box.stage.inputs})
    outside = layered(
        [(box.width, box.height) for box in boxes], between, column_gap=100.0, row_gap=30.0, lane_height=26.0
    )
    lines, tags = _between(boxes, outside, between)
    return render(
        "plan.svg",
        plan=plan,
        linked=linked,
        width=round(outside.width + 2 * _MARGIN),
        height=round(outside.height + 2 * _MARGIN),
        margin=_MARGIN,
        padding=_PADDING,
        stages=[
            _stage(box, corner, vertices, progress.get(box.stage.id))
            for box, corner in zip(boxes, outside.boxes, strict=True)
        ],
        lines=lines,
        tags=tags,
    )


def _facts(stage: Stage, saved: Mapping[str, float]) -> str:
    slot_seconds = saved.get(stage.id, 0.0)
    return kind_text(stage) + (f", saves {slot_seconds:,.0f} slot-seconds" if slot_seconds else "")


def _title(stage: Stage) -> str:
    return shorten(f"{stage.id}  {stage.name}", 46)


def _badge(progress: StageProgress | None) -> str:
    return "" if progress is None else shorten(progress_text(progress), 60)


def _badge_width(words: str) -> float:
    return 36 + 7.6 * len(words)


def _node_width(vertex: Vertex) -> float:
    # No font is measured: these are the widths of a wide one, so that the words of any fit.
    return max(34.0 + 8.2 * len(shorten(vertex.name, _NAME_LENGTH)), 30.0 + 6.8 * len(role_text(vertex)))


def _box(stage: Stage, vertices: Mapping[str, Vertex], edges: list[PlannedEdge], facts: str, badge: str) -> _Box:
    ports_in = {name: place for place, name in enumerate(dict.fromkeys(one.source for one in stage.inputs))}
    nodes = {name: len(ports_in) + place for place, name in enumerate(stage.vertices)}
    first_out = len(ports_in) + len(nodes)
    ports_out = {name: first_out + place for place, name in enumerate(stage.outputs)}
    links: dict[tuple[int, int], PlannedEdge | None] = {
        (nodes[edge.source], nodes[edge.target]): edge for edge in edges
    }
    links.update(dict.fromkeys(((ports_in[one.source], nodes[one.target]) for one in stage.inputs), None))
    links.update(dict.fromkeys(((nodes[name], port) for name, port in ports_out.items()), None))
    port = (0.0, 20.0)
    sizes = [
        *([port] * len(ports_in)),
        *((_node_width(vertices[name]), _NODE_HEIGHT) for name in stage.vertices),
        *([port] * len(ports_out)),
    ]
    inside = layered(sizes, list(links), column_gap=44.0, row_gap=16.0, last=frozenset(ports_out.values()))
    head = _TITLE + (_BADGE if badge else 0.0)
    title = 8.6 * len(_title(stage))
    wide = max(inside.width, title, 6.8 * len(facts), _badge_width(badge))
    return _Box(
        stage,
        facts,
        inside,
        nodes,
        ports_in,
        ports_out,
        links,
        dict(zip(links, inside.routes, strict=True)),
        head,
        wide + 2 * _PADDING,
        head + inside.height + 2 * _PADDING - 8,
    )


def _place(box: _Box, corner: Point, point: Point) -> Point:
    """A point of the inside of a stage, in the whole picture."""
    shift = (box.width - 2 * _PADDING - box.inside.width) / 2
    return corner[0] + _PADDING + shift + point[0], corner[1] + box.head + _PADDING - 8 + point[1]


def _stage(
    box: _Box, corner: Point, vertices: Mapping[str, Vertex], progress: StageProgress | None
) -> dict[str, object]:
    lines = []
    for (source, target), edge in box.edges.items():
        if edge is not None:
            points = [
                *_leave(box, corner, source),
                *(_place(box, corner, one) for one in box.routes[source, target]),
                _side(box, corner, target, right=False),
            ]
            lines.append(_line("blocking" if edge.blocking else "flow", points))
    nodes = []
    for name, node in box.nodes.items():
        x, y = _place(box, corner, box.inside.boxes[node])
        vertex = vertices[name]
        nodes.append(
            {"vertex": vertex, "x": x, "y": y, "width": _node_width(vertex), "name": shorten(name, _NAME_LENGTH)}
        )
    badge = _badge(progress)
    return {
        "stage": box.stage,
        "x": corner[0],
        "y": corner[1],
        "width": box.width,
        "height": box.height,
        "title": _title(box.stage),
        "facts": box.facts,
        "state": progress.state if progress is not None else None,
        "badge": badge,
        "badge_width": _badge_width(badge),
        "lines": lines,
        "nodes": nodes,
    }


def _side(box: _Box, corner: Point, node: int, *, right: bool) -> Point:
    """The middle of a node's right or left side; a port is a point."""
    x, y = _place(box, corner, box.inside.boxes[node])
    if not 0 <= node - len(box.ports_in) < len(box.nodes):
        return x, y + 10.0
    width = box.inside.widths[node]
    return x + (width if right else 0.0), y + _NODE_HEIGHT / 2


def _leave(box: _Box, corner: Point, node: int) -> tuple[Point, Point]:
    """From a node's right side to the right side of its column: an edge turns only beyond all nodes of the column."""
    side = _side(box, corner, node, right=True)
    return side, (_place(box, corner, (box.inside.rights[node], 0.0))[0], side[1])


def _between(
    boxes: list[_Box], outside: Layout, between: list[tuple[int, int]]
) -> tuple[list[dict[str, str]], list[Point]]:
    number = {box.stage.id: place for place, box in enumerate(boxes)}
    route_of = dict(zip(between, outside.routes, strict=True))
    lines: list[dict[str, str]] = []
    tags: list[Point] = []
    for target, box in enumerate(boxes):
        corner = outside.boxes[target]
        drawn: set[tuple[str, str, str]] = set()
        for one in box.stage.inputs:
            if (one.stage_id, one.source, one.target) in drawn:
                continue
            drawn.add((one.stage_id, one.source, one.target))
            source = number[one.stage_id]
            leaving, start = boxes[source], outside.boxes[source]
            out, port = leaving.ports_out[one.source], box.ports_in[one.source]
            lane = [_place(leaving, start, at) for at in leaving.routes[leaving.nodes[one.source], out]]
            exit_y = _side(leaving, start, out, right=True)[1]
            # As `_leave`, of a stage: the widest one of its column ends here.
            away = (outside.rights[source], exit_y)
            across = list(route_of[source, target])
            onto = (corner[0], _side(box, corner, port, right=False)[1])
            inner = [_place(box, corner, at) for at in box.routes[port, box.nodes[one.target]]]
            last = _side(box, corner, box.nodes[one.target], right=False)
            lines.append(
                _line(
                    "blocking",
                    [
                        *_leave(leaving, start, leaving.nodes[one.source]),
                        *lane,
                        _side(leaving, start, out, right=False),
                        away,
                        *across,
                        onto,
                        *_leave(box, corner, port),
                        *inner,
                        last,
                    ],
                )
            )
            after = across[0] if across else onto
            tags.append(((away[0] + after[0]) / 2, (away[1] + after[1]) / 2))
    return lines, tags


def _line(css: str, points: list[Point]) -> dict[str, str]:
    steps = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (next_x, next_y) in pairwise(points):
        if abs(y - next_y) < 0.5:
            steps.append(f"L{next_x:.1f} {next_y:.1f}")
        else:
            middle = (x + next_x) / 2
            steps.append(f"C{middle:.1f} {y:.1f} {middle:.1f} {next_y:.1f} {next_x:.1f} {next_y:.1f}")
    return {"css": css, "d": "".join(steps)}


def html(
    plan: StagePlan, progress: Mapping[str, StageProgress] | None = None, *, estimate: Estimate | None = None
) -> str:
    """The plan as one HTML page that needs nothing else: picture, stages, edges, call sites and savings.

    Whatever the user named is text in it, never markup.
    """
    progress = progress or {}
    return render(
        "plan.html",
        plan=plan,
        progress=progress,
        estimate=estimate,
        tiles=_tiles(plan, progress, estimate),
        vertices={vertex.name: vertex for vertex in plan.vertices},
        longest=max((one.seconds for one in progress.values()), default=0.0),
        picture=svg(plan, progress, estimate=estimate, linked=True),
    )


def _tiles(plan: StagePlan, progress: Mapping[str, StageProgress], estimate: Estimate | None) -> list[tuple[str, str]]:
    tiles = [("Stages", f"{len(plan.stages):,}"), ("Blocking edges", f"{len(plan.blocking_edges):,}")]
    if progress:
        done = sum(one.state.committed for one in progress.values())
        tiles.append(("Committed", f"{done:,} of {len(plan.stages):,}"))
        tiles.append(("Time in stages", seconds_text(sum(one.seconds for one in progress.values()))))
    if estimate is not None:
        tiles.append(("Slot-seconds saved", f"{estimate.slot_seconds:,.0f}"))
        tiles.append(("State not held", bytes_text(estimate.state_bytes)))
        tiles.append(("Saved per batch", seconds_text(estimate.recomputed_seconds_per_batch)))
    return tiles
