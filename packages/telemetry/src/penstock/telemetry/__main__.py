"""`penstock-telemetry`: draw a trace, or list what Penstock emits."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from penstock.telemetry._reference import reference
from penstock.telemetry._waterfall import waterfall


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line that says why, as the other commands have it: the usage is a screenful."""
        self.exit(2, f"{self.prog}: {message}: see {self.prog} --help\n")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 1 when there is nothing to draw, 2 for wrong usage."""
    parser = _Parser(prog="penstock-telemetry", description="Spans and metrics of Penstock.")
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("waterfall", help="draw a trace as SVG, from spans as JSON lines")
    draw.add_argument("file", type=Path, help="such as penstock-demo/spans.jsonl")
    draw.add_argument("--trace", help="id of the trace; default: the one of the most spans")
    draw.add_argument("--rows", type=_count, default=40, help="bars at most; default: 40")
    draw.add_argument("--output", type=Path, help="file to write; default: standard output")
    listed = commands.add_parser("reference", help="list all spans and metrics")
    listed.add_argument("--json", action="store_true", help="as JSON rather than Markdown")
    arguments = parser.parse_args(argv)
    if arguments.command == "reference":
        found = reference()
        sys.stdout.write(json.dumps(dataclasses.asdict(found), indent=2) + "\n" if arguments.json else found.markdown())
        return 0
    try:
        with arguments.file.open(encoding="utf-8") as lines:
            picture = waterfall(lines, trace_id=arguments.trace, max_rows=arguments.rows)
        if arguments.output is not None:
            arguments.output.write_text(picture, encoding="utf-8")
        else:
            sys.stdout.write(picture)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"penstock-telemetry: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
