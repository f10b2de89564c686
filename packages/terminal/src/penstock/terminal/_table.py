"""What a command has found, before anybody knows how it will be shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


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
