# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._arguments import (
    POSITIONS,
    ExitCode,
    Parser,
    add_json_argument,
    describe_by_flag,
    positive_count,
    positive_seconds,
    run_command,
    seconds_ago,
    with_default,
)
from ._screen import Form, Screen, watch
from ._table import Cell, Column, Row, Table, age, bar, plain, size

__all__ = [
    "POSITIONS",
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
    "describe_by_flag",
    "plain",
    "positive_count",
    "positive_seconds",
    "run_command",
    "seconds_ago",
    "size",
    "watch",
    "with_default",
]
