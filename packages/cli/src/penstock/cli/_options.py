"""`penstock options`: the options of the Spark data source, searched."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from penstock.terminal import Cell, Column, ExitCode, Form, Parser, Row, Screen, Table, add_json_argument

_COLUMNS: Final = (Column("OPTION"), Column("DEFAULT"), Column("TYPE"), Column("MEANING"), Column("OTHER NAMES"))


def main(argv: Sequence[str]) -> int:
    """Search the options. Returns 1 when none is found."""
    parser = Parser(prog="penstock options", description="Options of the data source kinesis, by words in any of it.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="all of them must be found; all options when left out")
    add_json_argument(parser)
    arguments = parser.parse_args(argv)
    screen = Screen(sys.stdout, as_json=arguments.json)
    try:
        # It imports PySpark: only for those who ask.
        from penstock.spark_plugin import options_table
    except ImportError as error:
        # The plugin, which leaves PySpark to platforms, says itself how to get that.
        cure = "" if "pip install" in str(error) else ': pip install "penstock-cli[spark]"'
        sys.stderr.write(f"penstock options: {error}{cure}\n")
        return ExitCode.FAILED
    rows = [row for row in map(_row, options_rows(options_table())) if _has(row, arguments.words)]
    screen.show(Table(columns=_COLUMNS, rows=rows, empty="no option has these words"))
    if not rows and screen.form is not Form.TERMINAL:
        sys.stderr.write(f"penstock options: no option has the words {' '.join(arguments.words)}\n")
    return ExitCode.OK if rows else ExitCode.FAILED


def options_rows(markdown: str) -> list[dict[str, str]]:
    """The rows of Markdown tables, by the headings of each."""
    rows: list[dict[str, str]] = []
    headings: list[str] = []
    for line in markdown.splitlines():
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
    plain = {name: value.replace("`", "") for name, value in option.items()}
    others = {name: plain[name] for name in ("Flink", "Databricks", "AWS connector") if plain.get(name)}
    document = {
        "option": plain["option"],
        "type": plain["type"],
        "default": plain["default"] or None,
        "meaning": plain["meaning"],
        "otherNames": others,
    }
    names = ", ".join(dict.fromkeys(others.values()))
    cells: list[Cell | str] = [
        Cell(plain["option"], style="bold cyan"),
        plain["default"] or "-",
        plain["type"],
        plain["meaning"],
        Cell(names or "-", style="dim"),
    ]
    return Row(cells, document)


def _has(row: Row, words: Sequence[str]) -> bool:
    text = " ".join(cell.text if isinstance(cell, Cell) else cell for cell in row.cells).lower()
    return all(word.lower() in text for word in words)
