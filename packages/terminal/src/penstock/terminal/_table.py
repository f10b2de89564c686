"""What a command has found, and its values as people read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of a table."""

    text: str
    """As people read it."""
    style: str = ""
    """Colours and weight on a terminal, such as `bold red`; see rich's styles."""
    raw: str | None = None
    """As programs read it, in a pipe; the text when left out."""
    share: float | None = None
    """Draw a bar behind the text, filled to this share between 0 and 1; on a terminal only."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    heading: str
    justify: Literal["left", "right"] = "left"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table."""

    cells: Sequence[Cell | str]
    """A cell per column."""
    document: Mapping[str, object] = field(default_factory=dict)
    """The same as a JSON object, with all there is to know."""
    line: str | None = None
    """The line in a pipe; the cells with tabs between them when left out."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    """Above the headings, on a terminal."""
    empty: str = "nothing to show"
    """In place of a table without rows, on a terminal."""


_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def plain(text: str) -> str:
    """Text that can neither end a line or a cell, nor steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def age(seconds: float) -> str:
    """The two largest units: `3d 4h`, `5m 10s`, `0s`."""
    rest = int(seconds)
    parts: list[str] = []
    for size_, unit in _UNITS:
        count, rest = divmod(rest, size_)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def size(count: float) -> str:
    """Bytes in powers of 1,024: `0 B`, `1.5 KiB`, `20.0 MiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def bar(share: float, width: int = 12, *, ascii_only: bool = False) -> str:
    """A bar of `width` characters, filled to a share between 0 and 1; what is not nothing shows."""
    share = min(1.0, max(0.0, share))
    if ascii_only:
        return ("#" * (max(1, round(share * width)) if share else 0)).ljust(width)
    eighths = max(1, round(share * width * 8)) if share else 0
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)
