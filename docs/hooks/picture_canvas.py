"""Boxes, arrows and words as SVG, in the colours of plans; they follow the reader's light or dark page."""

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from penstock.operator_attributes._render.theme import variables

_STYLE = (
    variables(".ps") + ".ps{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;"
    "font-size:13px}.ps text{fill:var(--ink)}.ps .soft{fill:var(--soft);font-size:11.5px}.ps .strong{font-weight:700}"
    ".ps .node{fill:var(--node);stroke:var(--node-line)}.ps .batch{fill:var(--batch);stroke:var(--batch-line)}"
    ".ps .stream{fill:var(--stream);stroke:var(--stream-line)}.ps .card{fill:none;stroke:var(--line)}"
    ".ps .flow{fill:none;stroke:var(--flow);stroke-width:1.75}.ps .head{fill:var(--flow)}"
    ".ps .dashed{stroke-dasharray:5 4}.ps .dam{stroke:var(--dam);fill:none}.ps .dam-text{fill:var(--dam)}"
    ".ps .accent{stroke:var(--accent);fill:none}.ps .accent-text{fill:var(--accent)}.ps .grid{stroke:var(--line)}"
)
_HEAD = (
    '<defs><marker id="{name}-head" class="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
    'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 10 5 0 10z"/></marker></defs>'
)
_LINE_HEIGHT = 17


class Canvas:
    """A picture of so many pixels; everything is placed by its centre or its ends."""

    def __init__(self, name: str, title: str, width: int, height: int) -> None:
        self._name = name
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="ps" role="img" aria-label={quoteattr(title)} '
            f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"><style>{_STYLE}</style>'
            + _HEAD.format(name=name)
        ]

    def text(self, x: float, y: float, words: str, *, kind: str = "", anchor: str = "middle") -> None:
        """A line of words."""
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, lines: Sequence[str] = (), *, kind: str = "node"
    ) -> None:
        """A box with lines of words, the first one strong."""
        left, top = x - width / 2, y - height / 2
        self._parts.append(
            f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="6"/>'
        )
        first = y - (len(lines) - 1) * _LINE_HEIGHT / 2 + 4.5
        for number, line in enumerate(lines):
            self.text(x, first + number * _LINE_HEIGHT, line, kind="soft" if number else "strong")

    def arrow(self, points: Sequence[tuple[float, float]], words: str = "", *, kind: str = "") -> None:
        """An arrow along points, with words above the middle of its first part."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline class="flow {kind}" points="{path}" marker-end="url(#{self._name}-head)"/>')
        if words:
            (x, y), (to_x, to_y) = points[0], points[1]
            self.text((x + to_x) / 2, (y + to_y) / 2 - 6, words, kind="soft")

    def line(self, points: Sequence[tuple[float, float]], *, kind: str) -> None:
        """A line without ends."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        width = "" if kind == "grid" else ' stroke-width="2"'
        self._parts.append(f'<polyline class="{kind}" fill="none"{width} points="{path}"/>')

    def svg(self) -> str:
        """The whole."""
        return "".join([*self._parts, "</svg>\n"])
