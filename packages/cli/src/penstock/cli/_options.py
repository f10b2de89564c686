"""`penstock options`: the options of the Spark data source, searched, and what those of other connectors are here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from penstock.terminal import Cell, Column, ExitCode, Form, Parser, Row, Screen, Table, add_json_argument

_COLUMNS: Final = (Column("OPTION"), Column("DEFAULT"), Column("TYPE"), Column("MEANING"), Column("OTHER NAMES"))
_OF_OTHERS: Final = (Column("OPTION"), Column("CONNECTOR"), Column("HERE"), Column("WHY"))


def main(argv: Sequence[str]) -> int:
    """Search the options. Returns 1 when none is found."""
    parser = Parser(
        prog="penstock options",
        description="Options of the data source kinesis, by words in any of it, and what options of other connectors "
        "are here, by words in their names.",
    )
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="all of them must be found; all options of ours when left out"
    )
    add_json_argument(parser)
    arguments = parser.parse_args(argv)
    screen = Screen(sys.stdout, as_json=arguments.json)
    try:
        # It imports PySpark: only for those who ask.
        from penstock.spark_plugin import migration_tables, options_table
    except ImportError as error:
        # The plugin, which leaves PySpark to platforms, says itself how to get that.
        cure = "" if "pip install" in str(error) else ': pip install "penstock-cli[spark]"'
        sys.stderr.write(f"penstock options: {error}{cure}\n")
        return ExitCode.FAILED
    words = arguments.words
    theirs = [(connector, one) for connector, text in migration_tables().items() for one in options_rows(text)]
    ours = []
    for option in options_rows(options_table()):
        names = (one["option"] for _, one in theirs if _stem(one["here"]) == _stem(option["option"]))
        if _has([*option.values(), *names], words, option["option"]):
            ours.append(_row(option))
    others = [
        _row_of_other(connector, one)
        for connector, one in theirs
        if words and _has([one["option"], connector], words, one["option"])
    ]
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


def _row(option: dict[str, str]) -> Row:
    others = {name: option[name] for name in ("Flink", "Databricks", "AWS connector") if option.get(name)}
    document = {
        "option": option["option"],
        "type": option["type"],
        "default": option["default"] or None,
        "meaning": option["meaning"],
        "otherNames": others,
    }
    names = ", ".join(dict.fromkeys(others.values()))
    cells: list[Cell | str] = [
        Cell(option["option"], style="bold cyan"),
        option["default"] or "-",
        option["type"],
        option["meaning"],
        Cell(names or "-", style="dim"),
    ]
    return Row(cells, document)


def _row_of_other(connector: str, option: dict[str, str]) -> Row:
    name, here, why = option["option"], option["here"], option[""]
    document = {"option": name, "connector": connector, "here": here, "why": why}
    return Row([Cell(name, style="bold"), connector, Cell(here, style="cyan"), why or "-"], document)


def _stem(name: str) -> str:
    return name.removesuffix(".<stream>")


def _has(texts: Iterable[str], words: Sequence[str], name: str) -> bool:
    """Whether all words are in the texts, or are the name, in which `*` and `<stream>` are what a user has there."""
    text, pattern = " ".join(texts).lower(), name.lower().replace("<stream>", "*")
    return all(word.lower() in text or fnmatchcase(word.lower(), pattern) for word in words)
