"""`penstock telemetry`: list what Penstock emits."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from penstock.telemetry._reference import reference


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line that says why, as the other commands have it: the usage is a screenful."""
        self.exit(2, f"{self.prog}: {message}: see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """List all spans and metrics. Returns the exit code: 2 for wrong usage."""
    parser = _Parser(prog="penstock telemetry", description="Spans and metrics of Penstock.")
    parser.add_argument("--json", action="store_true", help="as JSON rather than Markdown")
    arguments = parser.parse_args(argv)
    found = reference()
    sys.stdout.write(json.dumps(dataclasses.asdict(found), indent=2) + "\n" if arguments.json else found.markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
