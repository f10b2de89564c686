"""A series as a small picture, and in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 240, 48


@dataclass(frozen=True)
class Sparkline:
    """What a template draws.

    Attributes:
        path: of an SVG whose box is WIDTH times HEIGHT; empty when there is nothing to draw.
        label: the same in words.
    """

    path: str
    label: str


def sparkline(
    values: Sequence[float | None], what: str, words: Callable[[float], str], *, points: int, seconds: float
) -> Sparkline:
    """Draw values, oldest first, the newest at the right end; a value that is not known is a gap.

    Args:
        values: at most `points` of them.
        what: names them, for the label.
        words: says a value.
        points: that the width stands for.
        seconds: between two values.
    """
    known = [value for value in values if value is not None]
    if not known:
        return Sparkline("", f"{what}: not known yet")
    top = max(*known, 1e-9)
    step = WIDTH / max(1, points - 1)
    left = WIDTH - step * (len(values) - 1)
    # Whole numbers on a fine grid: pages hold a thousand of these. Within the box by the line's width.
    scale, bottom = (HEIGHT - 6) / top, HEIGHT - 3
    parts: list[str] = []
    pen_down = False
    for number, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        x, y = round(left + step * number), round(bottom - scale * max(0.0, value))
        parts.append(f"{x} {y}" if pen_down else f"M{x} {y}")
        if not pen_down and (number + 1 == len(values) or values[number + 1] is None):
            # A single value would not be a line.
            parts.append("h2")
        pen_down = True
    newest = values[-1]
    now = "not known" if newest is None else words(newest)
    span = span_words(seconds * max(1, len(values) - 1))
    return Sparkline(" ".join(parts), f"{what}, last {span}: now {now}, at most {words(max(known))}")


def span_words(seconds: float) -> str:
    """How long a line goes back: such as `40 seconds`, `4 minutes`, `24 hours`."""
    if seconds < 7_200:
        return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3_600:.0f} hours"
