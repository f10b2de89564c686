"""What Penstock's commands share: tables on a terminal, plain lines in a pipe, JSON lines, and exit codes."""

from penstock.terminal._arguments import (
    Parser,
    add_json_argument,
    positive_count,
    positive_seconds,
    run_command,
    told_by_flag,
    with_default,
)
from penstock.terminal._exit_codes import ExitCode
from penstock.terminal._screen import Form, Screen
from penstock.terminal._table import Cell, Column, Row, Table
from penstock.terminal._text import age, bar, plain, size
from penstock.terminal._watch import watch

__all__ = [
    "Cell",
    "Column",
    "ExitCode",
    "Form",
    "Parser",
    "Row",
    "Screen",
    "Table",
    "add_json_argument",
    "age",
    "bar",
    "plain",
    "positive_count",
    "positive_seconds",
    "run_command",
    "size",
    "told_by_flag",
    "watch",
    "with_default",
]
