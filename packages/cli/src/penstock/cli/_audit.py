"""`penstock audit`: reads the audit logs of services, and finds in them who did what."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

from penstock.terminal import Cell, ExitCode, Parser, Row, Screen, add_json_argument, run_command

RESOURCES: Final = ("streams", "consumers", "destinations", "jobs", "stores")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def main(argv: Sequence[str]) -> int:
    """Read and filter audit logs. Returns 1 when a file holds other lines, 2 when one cannot be read."""
    parser = Parser(
        prog="penstock audit", description="Who did what, and what was refused: the audit logs of services."
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="files that --audit-log wrote; - or none: standard input"
    )
    parser.add_argument("--who", metavar="GLOB", help="of these principals; nobody is who did not get in")
    parser.add_argument("--event", metavar="GLOB", help="such as refused, acquire, release, 'open *'")
    parser.add_argument("--service", metavar="GLOB", help="such as consumer-registry")
    parser.add_argument("--about", metavar="GLOB", help="a stream, consumer, destination, job or store of this name")
    parser.add_argument("--from", dest="address", metavar="GLOB", help="from these addresses")
    parser.add_argument("--failed", action="store_true", help="only what was refused, or did not work")
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help="not before this: 90s, 15m, 2h, 7d, or 2027-01-31T00:00:00Z"
    )
    add_json_argument(parser)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _show(arguments))


def moment(text: str, now: datetime | None = None) -> datetime:
    """The moment that a text names: so long ago, or by the calendar.

    Raises:
        ArgumentTypeError: it names none.
    """
    try:
        if found := re.fullmatch(r"(\d{1,9})([smhd])", text):
            return (now or datetime.now(UTC)) - timedelta(seconds=int(found[1]) * _UNITS[found[2]])
        named = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        named = None
    if named is None or named.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of 90s, 15m, 2h, 7d, 2027-01-31T00:00:00Z")
    return named


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What is looked for; None is anything."""

    who: str | None = None
    event: str | None = None
    service: str | None = None
    about: str | None = None
    address: str | None = None
    failed: bool = False
    since: datetime | None = None

    def takes(self, line: dict[str, Any]) -> bool:
        """Whether a line is looked for."""
        for glob, name in (
            (self.who, "who"),
            (self.event, "event"),
            (self.service, "service"),
            (self.address, "from"),
        ):
            if glob is not None and not fnmatchcase(str(line.get(name, "")), glob):
                return False
        if self.about is not None and not any(fnmatchcase(one, self.about) for one in _names(line)):
            return False
        if self.failed and line.get("event") != "refused" and line.get("outcome") == "OK":
            return False
        return self.since is None or datetime.fromisoformat(line["time"]) >= self.since


def parse_line(text: str) -> dict[str, Any] | None:
    """A line of an audit log; None if it is none."""
    try:
        line = json.loads(text)
        if isinstance(line, dict) and line["event"] and datetime.fromisoformat(line["time"]).tzinfo is not None:
            return line
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _names(line: dict[str, Any]) -> list[str]:
    return [str(one) for kind in RESOURCES if isinstance(line.get(kind), list) for one in line[kind]]


def _show(arguments: argparse.Namespace) -> int:
    wanted = Filter(**{name: getattr(arguments, name) for name in Filter.__dataclass_fields__})
    screen, others = Screen(sys.stdout, as_json=arguments.json), 0
    for name in arguments.files or ["-"]:
        try:
            for text in _lines(name):
                line = parse_line(text)
                if line is None:
                    # A ready line of the service, where it writes to standard output, or what is cut off at the end.
                    others += bool(text.strip())
                elif wanted.takes(line):
                    screen.show_row(_row(line))
        except BrokenPipeError:
            raise
        except OSError as error:
            sys.stderr.write(f"penstock audit: cannot read {name}: {error.strerror}: name files of --audit-log\n")
            return ExitCode.USAGE
    screen.flush()
    if others:
        sys.stderr.write(
            f"penstock audit: {others} {'line is' if others == 1 else 'lines are'} not of an audit log, and not shown\n"
        )
        return ExitCode.FAILED
    return ExitCode.OK


def _lines(name: str) -> Iterator[str]:
    with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as file:
        for line in file:
            yield line.decode(errors="replace")


def _row(line: dict[str, Any]) -> Row:
    if "further" in line:
        words = f"{line['further']} further calls were refused, of {line.get('who', 'nobody')}"
        return Row([line["time"], str(line.get("service", "")), words], line)
    good = line.get("outcome") == "OK"
    about = " ".join(_names(line)) or str(line.get("method", ""))
    cells: list[Cell | str] = [
        Cell(str(line["time"]), style="dim"),
        str(line.get("service", "")),
        Cell(str(line.get("who", "")), style="bold cyan"),
        str(line.get("from", "")),
        Cell(str(line["event"]), style="" if line["event"] != "refused" else "bold red"),
        about,
        Cell(str(line.get("outcome", "")), style="green" if good else "red"),
        str(line.get("reason", "")),
    ]
    return Row(cells, line)
