"""A layered layout: boxes in columns, edges from left to right, without a program that draws graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

_SWEEPS = 8
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are, in pixels."""

    boxes: tuple[Point, ...]
    """Per box: its left upper corner."""
    widths: tuple[float, ...]
    """Per box: its width, as given."""
    rights: tuple[float, ...]
    """Per box: the right side of its column, up to which nothing else is at the box's height."""
    routes: tuple[tuple[Point, ...], ...]
    """Per edge: points between its ends through which it goes, one for each column that it crosses."""
    width: float
    height: float


def layered(
    sizes: Sequence[Point],
    edges: Sequence[tuple[int, int]],
    *,
    column_gap: float,
    row_gap: float,
    lane_height: float = 10.0,
    last: frozenset[int] = frozenset(),
) -> Layout:
    """Lay out boxes of these sizes; edges lead from a lower number to a higher one.

    A box is placed one column after the last box that it reads. Within a column boxes are ordered by the middle of
    their neighbours, in a few sweeps (Sugiyama's method); an edge over several columns has a lane in each of them.
    Boxes in `last`, which nothing reads, are placed in a last column.
    """
    column = [0] * len(sizes)
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        column[target] = max(column[target], column[source] + 1)
    end = 1 + max((place for box, place in enumerate(column) if box not in last), default=-1)
    column = [end if box in last else place for box, place in enumerate(column)]
    heights = [height for _, height in sizes]
    columns: list[list[int]] = [[] for _ in range(max(column, default=-1) + 1)]
    for box, place in enumerate(column):
        columns[place].append(box)
    before: list[list[int]] = [[] for _ in sizes]
    after: list[list[int]] = [[] for _ in sizes]
    lanes: dict[tuple[int, int], list[int]] = {}
    for source, target in edges:
        if (source, target) in lanes:
            continue
        lanes[source, target] = []
        previous = source
        for place in range(column[source] + 1, column[target]):
            lane = len(heights)
            heights.append(lane_height)
            column.append(place)
            columns[place].append(lane)
            before.append([])
            after.append([])
            lanes[source, target].append(lane)
            _link(before, after, previous, lane)
            previous = lane
        _link(before, after, previous, target)
    _order(columns, before, after)
    top = _heights(columns, heights, before, after, row_gap)
    left, x = [], 0.0
    widths = [max((sizes[box][0] for box in boxes if box < len(sizes)), default=0.0) for boxes in columns]
    for width in widths:
        left.append(x)
        x += width + column_gap
    return Layout(
        boxes=tuple((left[column[box]], top[box]) for box in range(len(sizes))),
        widths=tuple(width for width, _ in sizes),
        rights=tuple(left[column[box]] + widths[column[box]] for box in range(len(sizes))),
        routes=tuple(
            tuple(
                point
                for lane in lanes[edge]
                for point in (
                    (left[column[lane]], top[lane] + lane_height / 2),
                    (left[column[lane]] + widths[column[lane]], top[lane] + lane_height / 2),
                )
            )
            for edge in edges
        ),
        width=max(0.0, x - column_gap),
        height=max((top[box] + heights[box] for box in range(len(heights))), default=0.0),
    )


def _link(before: list[list[int]], after: list[list[int]], source: int, target: int) -> None:
    after[source].append(target)
    before[target].append(source)


def _order(columns: list[list[int]], before: list[list[int]], after: list[list[int]]) -> None:
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        neighbours = before if forward else after
        place = {box: index for boxes in columns for index, box in enumerate(boxes)}
        for boxes in columns if forward else reversed(columns):
            middle = {
                box: sum(place[one] for one in neighbours[box]) / len(neighbours[box])
                if neighbours[box]
                else float(place[box])
                for box in boxes
            }
            boxes.sort(key=lambda box: middle[box])
            place.update({box: index for index, box in enumerate(boxes)})


def _heights(
    columns: list[list[int]],
    heights: list[float],
    before: list[list[int]],
    after: list[list[int]],
    row_gap: float,
) -> list[float]:
    """Tops: each box near the middle of its neighbours, in the order of its column, none over another."""
    top = [0.0] * len(heights)
    for boxes in columns:
        y = 0.0
        for box in boxes:
            top[box] = y
            y += heights[box] + row_gap
    for sweep in range(_SWEEPS):
        neighbours = before if sweep % 2 == 0 else after
        for boxes in columns if sweep % 2 == 0 else reversed(columns):
            wanted = {
                box: sum(top[one] + heights[one] / 2 for one in neighbours[box]) / len(neighbours[box])
                - heights[box] / 2
                if neighbours[box]
                else top[box]
                for box in boxes
            }
            _place(boxes, wanted, heights, row_gap, top)
    highest = min(top, default=0.0)
    return [y - highest for y in top]


def _place(boxes: list[int], wanted: dict[int, float], heights: list[float], row_gap: float, top: list[float]) -> None:
    """Put boxes where they are wanted, as a block where they would overlap, centred on what its members want."""
    blocks: list[tuple[float, float, list[int]]] = []
    for box in boxes:
        y, height, members = wanted[box], heights[box], [box]
        # Two blocks that overlap become one, between the places that both want.
        while blocks and blocks[-1][0] + blocks[-1][1] + row_gap > y:
            upper_y, upper_height, upper = blocks.pop()
            shifted = y - upper_height - row_gap
            count = len(upper) + len(members)
            y = (upper_y * len(upper) + shifted * len(members)) / count
            height += upper_height + row_gap
            members = upper + members
        blocks.append((y, height, members))
    for y, _, members in blocks:
        for box in members:
            top[box] = y
            y += heights[box] + row_gap
