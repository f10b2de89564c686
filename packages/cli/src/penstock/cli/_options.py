"""`penstock options`: search the options of the Spark data source, also by the names of other connectors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from penstock.terminal import Cell, Column, ExitCode, Form, Parser, Row, Screen, Table, add_json_argument

_COLUMNS: Final = (Column("OPTION"), Column("DEFAULT"), Column("TYPE"), Column("MEANING"), Column("OTHER NAMES"))
_CONNECTORS: Final = ("Flink", "Databricks", "AWS connector")
_OF_OTHERS: Final = (Column("OPTION"), Column("CONNECTOR"), Column("HERE"), Column("WHY"))


class _Theirs(NamedTuple):
    """An option of another connector."""

    name: str
    connector: str
    here: str
    why: str


def main(argv: Sequence[str]) -> int:
    """Search the options. Returns 1 when none is found."""
    parser = Parser(
        prog="penstock options",
        description="Search the options of the data source kinesis by words, and find the options that replace the "
        "options of other connectors by their names.",
    )
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="all of them must be found; without words, all options"
    )
    add_json_argument(parser)
    arguments = parser.parse_args(argv)
    screen = Screen(sys.stdout, as_json=arguments.json)
    try:
        # It imports PySpark: only for those who ask.
        from penstock.spark_plugin import migration_table, options_table
    except ImportError as error:
        # The plugin, which leaves PySpark to platforms, says itself how to get that.
        cure = "" if "pip install" in str(error) else ': pip install "penstock-spark-plugin[pyspark]"'
        sys.stderr.write(f"penstock options: {error}{cure}\n")
        return ExitCode.FAILED
    words = arguments.words
    theirs = [
        _Theirs(name, connector, one["here"], one[""])
        for one in options_rows(migration_table())
        for connector in _CONNECTORS
        for name in one[connector].split(", ")
        if name
    ]
    ours = []
    for option in options_rows(options_table()):
        same = [one for one in theirs if one.here == option["option"]]
        if _has([*option.values(), *(one.name for one in same)], words, option["option"]):
            ours.append(_row(option, same))
    others = [_row_of_other(one) for one in theirs if words and _has([one.name, one.connector], words, one.name)]
    tables = [
        Table(columns=_COLUMNS, rows=ours, empty="no option has these words"),
        Table(columns=_OF_OTHERS, rows=others, title="options of other connectors"),
    ]
    screen.show(*([table for table in tables if table.rows] or tables[:1]))
    if ours or others:
        return ExitCode.OK
    if screen.form is not Form.TERMINAL:
        sys.stderr.write(f"penstock options: no option has the words {' '.join(words)}\n")
    return ExitCode.FAILED


def options_rows(markdown: str) -> list[dict[str, str]]:
    """The rows of Markdown tables, by the headings of each, without the marks of code."""
    rows: list[dict[str, str]] = []
    headings: list[str] = []
    for line in markdown.replace("`", "").splitlines():
        if not line.startswith("|"):
            headings = []
            continue
        cells = [cell.replace("\0", "|").strip() for cell in line.replace("\\|", "\0").strip("|").split("|")]
        if not headings:
            headings = cells
        elif not set("".join(cells)) <= set("- "):
            rows.append(dict(zip(headings, cells, strict=False)))
    return rows


def _row(option: dict[str, str], theirs: Sequence[_Theirs]) -> Row:
    others = {connector: [one.name for one in theirs if one.connector == connector] for connector in _CONNECTORS}
    document = {
        "option": option["option"],
        "type": option["type"],
        "default": option["default"] or None,
        "meaning": option["meaning"],
        "otherNames": {connector: names for connector, names in others.items() if names},
    }
    names = ", ".join(dict.fromkeys(one.name for one in theirs))
    cells: list[Cell | str] = [
        Cell(option["option"], style="bold cyan"),
        option["default"] or "-",
        option["type"],
        option["meaning"],
        Cell(names or "-", style="dim"),
    ]
    return Row(cells, document)


def _row_of_other(one: _Theirs) -> Row:
    document = {"option": one.name, "connector": one.connector, "here": one.here, "why": one.why}
    return Row([Cell(one.name, style="bold"), one.connector, Cell(one.here, style="cyan"), one.why or "-"], document)


def _has(texts: Iterable[str], words: Sequence[str], name: str) -> bool:
    """Whether all words are in the texts, or are the name, in which `*` and `<stream>` are what a user has there."""
    text, pattern = " ".join(texts).lower(), name.lower().replace("<stream>", "*")
    return all(word.lower() in text or fnmatchcase(word.lower(), pattern) for word in words)
