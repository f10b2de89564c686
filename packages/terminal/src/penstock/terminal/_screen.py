"""Where a command writes: a terminal, a pipe, or a program that reads JSON."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from penstock.terminal._table import Cell, Column, Row, Table, bar, plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


Sleep = Callable[[float], Awaitable[None]]


async def watch(
    screen: Screen,
    look: Callable[[], Awaitable[Sequence[Table]]],
    seconds: float | None,
    *,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Look and show once, or without end every so many seconds.

    Ends by cancellation, or by an error of `look`; the terminal is left as it was, with the last table on it.
    """
    if seconds is None:
        screen.show(*await look())
        return
    if screen.form is not Form.TERMINAL or screen.console.is_dumb_terminal:
        while True:
            screen.show(*await look())
            await sleep(seconds)
    # Here: a command that answers once, and a service, draw nothing.
    from rich.live import Live

    first = await look()
    with Live(screen.render(*first), console=screen.console, auto_refresh=False) as live:
        while True:
            await sleep(seconds)
            live.update(screen.render(*await look()), refresh=True)


_BAR_CHARACTERS = 12
_GAP = 1
_DUMB = ("dumb", "unknown")


class Form(Enum):
    """How a command's results are written."""

    TERMINAL = "terminal"
    """Tables, with colours unless `NO_COLOR` is set or `TERM` is `dumb`."""
    LINES = "lines"
    """A line per row, cells with tabs between them, no headings."""
    JSON = "json"
    """A JSON object per row and line."""


class Screen:
    """Writes rows in the form that suits who reads them.

    Args:
        out: where to; a terminal is known by `isatty()`.
        as_json: what `--json` says.
        environ: `NO_COLOR`, `TERM` and `COLUMNS` are respected.
    """

    def __init__(self, out: TextIO, *, as_json: bool = False, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._out = out
        if isinstance(out, io.TextIOWrapper) and not out.encoding.lower().startswith("utf"):
            # A name or a mark that the encoding has not is better shown as a question mark than not at all.
            out.reconfigure(errors="replace")
        terminal = out.isatty()
        self.form = Form.JSON if as_json else Form.TERMINAL if terminal else Form.LINES

    @cached_property
    def console(self) -> Console:
        """What draws, on a terminal."""
        # Here: a pipe needs nothing that draws.
        from rich.console import Console

        environ, terminal = self._environ, self._out.isatty()
        # rich would take FORCE_COLOR for a terminal: scripts are to get the same lines everywhere.
        return Console(
            file=self._out,
            force_terminal=terminal,
            # Not rich's own `no_color`, which leaves bold and dim: without colours means plain text.
            color_system=None if environ.get("NO_COLOR") else "auto",
            width=_width(environ) if terminal else None,
            # Without it, a width is not heard of where TERM is dumb.
            height=shutil.get_terminal_size().lines if environ.get("TERM") in _DUMB else None,
            highlight=False,
            emoji=False,
            _environ={name: value for name, value in environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")},
        )

    @property
    def ascii_only(self) -> bool:
        """Whether the terminal's encoding has no bars nor lines."""
        return not self.console.encoding.lower().startswith("utf")

    def show(self, *tables: Table) -> None:
        """Write tables."""
        if self.form is Form.TERMINAL:
            self.console.print(self.render(*tables), soft_wrap=False)
        else:
            self.write("".join(self.line_of(row) + "\n" for table in tables for row in table.rows))
        self._out.flush()

    def show_row(self, row: Row) -> None:
        """Write one row without a table: of a stream that has no end, or in which columns have no width."""
        if self.form is Form.TERMINAL:
            from rich.text import Text

            self.console.print(Text(" ").join(self._texts(row.cells)), soft_wrap=True)
        else:
            self.write(self.line_of(row) + "\n")

    def say(self, text: str, style: str = "", *, wrap: bool = False) -> None:
        """A sentence for people: on a terminal only. Without `wrap` in one piece, so that it can be copied."""
        if self.form is Form.TERMINAL:
            from rich.text import Text

            self.console.print(Text(plain(text), style=style), soft_wrap=not wrap)

    def write(self, text: str) -> None:
        """Write text as it is."""
        self._out.write(text)

    def flush(self) -> None:
        """Let the reader have what was written."""
        self._out.flush()

    def line_of(self, row: Row) -> str:
        """A row as a pipe gets it, without the end of the line."""
        if self.form is Form.JSON:
            return json.dumps(row.document)
        if row.line is not None:
            return plain_keeping_tabs(row.line)
        return "\t".join(plain(_raw(cell)) for cell in row.cells)

    def render(self, *tables: Table) -> RenderableType:
        """Tables as rich draws them."""
        from rich.console import Group

        return Group(*(part for table in tables for part in self._render(table)))

    def _render(self, table: Table) -> Iterable[RenderableType]:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        if table.title:
            yield Text(plain(table.title), style="bold")
        if not table.rows:
            yield Text(table.empty, style="dim")
            return
        rows = [self._texts(row.cells) for row in table.rows]
        widths = column_widths(table.columns, rows)
        # Between columns there is a space, and the box's own blank.
        if sum(width.least for width in widths) + (_GAP + 1) * (len(widths) - 1) > self.console.width:
            yield from self._records(table.columns, rows)
            return
        drawn = RichTable(
            box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False
        )
        for column, width in zip(table.columns, widths, strict=True):
            drawn.add_column(
                Text(column.heading), justify=column.justify, overflow="fold", no_wrap=width.least == width.natural
            )
        for cells in rows:
            drawn.add_row(*cells)
        yield drawn

    def _records(self, columns: Sequence[Column], rows: Iterable[Sequence[Text]]) -> Iterable[RenderableType]:
        """A line per cell behind its heading: columns as narrow as they would be cut their words into pieces."""
        from rich.table import Table as RichTable
        from rich.text import Text

        for index, cells in enumerate(rows):
            drawn = RichTable.grid(padding=(0, _GAP + 1, 0, 0))
            drawn.add_column(style="bold", no_wrap=True)
            drawn.add_column(overflow="fold")
            for column, cell in zip(columns, cells, strict=True):
                drawn.add_row(column.heading, cell)
            if index:
                yield Text()
            yield drawn

    def _texts(self, cells: Sequence[Cell | str]) -> list[Text]:
        from rich.text import Text

        texts = []
        for cell in cells:
            one = Cell(cell) if isinstance(cell, str) else cell
            text = Text(plain(one.text), style=one.style)
            if one.share is not None:
                text = Text(bar(one.share, _BAR_CHARACTERS, ascii_only=self.ascii_only) + " ", style=one.style) + text
            texts.append(text)
        return texts


def _width(environ: Mapping[str, str]) -> int | None:
    """The terminal's width where rich does not look for it; None where it does, also when it changes."""
    if environ.get("COLUMNS", "").isdigit():
        return max(1, int(environ["COLUMNS"]))
    return shutil.get_terminal_size().columns if environ.get("TERM") in _DUMB else None


def plain_keeping_tabs(text: str) -> str:
    """As `plain`, but tabs stay: they are between cells."""
    return "\t".join(map(plain, text.split("\t")))


def _raw(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return cell
    return cell.text if cell.raw is None else cell.raw


_SHORT: Final = 20
"""A column of such values is not folded: a name or a number in pieces is no longer one."""
_LONGEST_WORD: Final = 16
"""Longer ones, such as sequence numbers, are folded wherever they have to be."""


class Width(NamedTuple):
    """The width of a column, in characters."""

    natural: int
    """With each value on a line."""
    least: int
    """With values folded at their spaces."""


def column_widths(columns: Sequence[Column], rows: Iterable[Sequence[Text]]) -> list[Width]:
    """The widths of the columns of a table."""
    values = [[column.heading] for column in columns]
    for cells in rows:
        for column, cell in zip(values, cells, strict=True):
            column.append(cell.plain)
    return [_width_of(column) for column in values]


def _width_of(values: Sequence[str]) -> Width:
    from rich.cells import cell_len

    natural = max(cell_len(value.rstrip()) for value in values)
    if natural <= _SHORT:
        return Width(natural, natural)
    word = max((cell_len(word) for value in values for word in value.split()), default=0)
    return Width(natural, min(word, _LONGEST_WORD))
