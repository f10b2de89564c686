"""Where a picture puts its boxes and edges."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.operator_attributes._render.layout import Layout, layered

Sizes = list[tuple[float, float]]
Edges = list[tuple[int, int]]
GAP = 40.0


@st.composite
def drawings(draw: st.DrawFn) -> tuple[Sizes, Edges]:
    """Boxes of any size, edges from lower to higher ones."""
    sizes = draw(st.lists(st.tuples(st.floats(0, 300), st.floats(1, 200)), min_size=1, max_size=12))
    pairs = st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, len(sizes) - 1))
    edges = draw(st.lists(pairs.filter(lambda pair: pair[0] < pair[1]), max_size=20, unique=True)) if sizes[1:] else []
    return sizes, edges


def lay_out(sizes: Sizes, edges: Edges, last: frozenset[int] = frozenset()) -> Layout:
    return layered(sizes, edges, column_gap=GAP, row_gap=10.0, last=last)


@given(drawing=drawings())
def test_boxes_neither_overlap_nor_leave_the_picture(drawing: tuple[Sizes, Edges]) -> None:
    """Whatever their sizes and edges."""
    sizes, edges = drawing
    layout = lay_out(sizes, edges)
    for number, ((x, y), (width, height)) in enumerate(zip(layout.boxes, sizes, strict=True)):
        assert -1e-6 <= x <= x + width <= layout.width + 1e-6
        assert -1e-6 <= y <= y + height <= layout.height + 1e-6
        for (left, top), (wide, high) in list(zip(layout.boxes, sizes, strict=True))[number + 1 :]:
            apart_x = x + width <= left + 1e-6 or left + wide <= x + 1e-6
            assert (apart_x and x != left) or y + height <= top + 1e-6 or top + high <= y + 1e-6


@given(drawing=drawings())
def test_edges_lead_to_the_right_all_the_way(drawing: tuple[Sizes, Edges]) -> None:
    """From one end over each point between to the other: an arrow never turns back."""
    sizes, edges = drawing
    layout = lay_out(sizes, edges)
    for (source, target), route in zip(edges, layout.routes, strict=True):
        begin, end = layout.boxes[source][0] + sizes[source][0], layout.boxes[target][0]
        xs = [begin, *(x for x, _ in route), end]
        assert xs == sorted(xs)
        assert end - begin >= GAP - 1e-6


@given(drawing=drawings())
def test_the_same_drawing_is_laid_out_alike(drawing: tuple[Sizes, Edges]) -> None:
    """Pictures can be compared."""
    assert lay_out(*drawing) == lay_out(*drawing)


def test_an_edge_over_a_column_goes_round_what_stands_there() -> None:
    """It has a lane of its own, beside the box that it passes."""
    layout = lay_out([(100.0, 50.0)] * 3, [(0, 1), (1, 2), (0, 2)])
    (_, lane), _ = layout.routes[2]
    top = layout.boxes[1][1]
    assert not top <= lane <= top + 50


def test_boxes_that_are_to_be_last_stand_behind_all_others() -> None:
    """Though they are read from the first column."""
    layout = lay_out([(10.0, 10.0)] * 4, [(0, 1), (1, 2), (0, 3)], frozenset({3}))
    assert layout.boxes[3][0] > layout.boxes[2][0]


def test_nothing_has_no_size() -> None:
    """An empty plan is an empty picture."""
    layout = lay_out([], [])
    assert (layout.width, layout.height, layout.boxes) == (0.0, 0.0, ())
