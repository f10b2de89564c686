"""How narrow a table may become before its words are cut into pieces."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from penstock.terminal._table import Column

_SHORT: Final = 20
"""A column of such values is not folded: a name or a number in pieces is no longer one."""
_LONGEST_WORD: Final = 16
"""Longer ones, such as sequence numbers, are folded wherever they have to be."""


class Width(NamedTuple):
    """Of a column, in characters."""

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
    natural = max(cell_len(value.rstrip()) for value in values)
    if natural <= _SHORT:
        return Width(natural, natural)
    word = max((cell_len(word) for value in values for word in value.split()), default=0)
    return Width(natural, min(word, _LONGEST_WORD))
