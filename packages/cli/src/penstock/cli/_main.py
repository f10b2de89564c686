"""`penstock`: dispatches to the commands of installed packages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.cli._commands import Command, CommandBrokenError, find_commands
from penstock.terminal import Cell, Column, ExitCode, Form, Row, Screen, Table, run_command

_GROUND: Final = ("pyspark", "boto3", "grpcio", "pyarrow")
_FLAGS: Final = ("--help", "-h", "--version", "-V", "--json")
USAGE: Final = "usage: penstock [--help] [--version] [--json] COMMAND ..."
_EXITS: Final = (
    "exit codes: 0 fine, 1 problem found or refused, 2 wrong usage, 3 service not reachable, 130 interrupted"
)


def main(argv: Sequence[str] | None = None, *, commands: Mapping[str, Command] | None = None) -> int:
    """Run a command. Returns the exit code.

    Args:
        argv: the arguments. Default: the arguments of the process.
        commands: instead of those that are found by entry points.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Read as gRPC is imported: its own log lines of a handshake would stand around ours, which say what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    found = find_commands() if commands is None else commands
    return run_command(lambda: _dispatch(arguments, found))


def _dispatch(arguments: Sequence[str], commands: Mapping[str, Command]) -> int:
    flags = set()
    rest = [*arguments]
    while rest and rest[0].startswith("-"):
        flags.add(rest.pop(0))
    screen = Screen(sys.stdout, as_json="--json" in flags)
    if unknown := flags - {*_FLAGS}:
        import difflib

        close = difflib.get_close_matches(min(unknown), _FLAGS, n=1)
        return _refuse(f"unknown flag {min(unknown)}{f' (did you mean {close[0]}?)' if close else ''}\n{USAGE}")
    if flags & {"--version", "-V"}:
        screen.show(_versions_table())
        return ExitCode.OK
    if flags & {"--help", "-h"} or not rest or rest == ["help"]:
        _show_commands(screen, commands)
        return ExitCode.OK if flags & {"--help", "-h", "--json"} or rest else ExitCode.USAGE
    if rest[0] == "help":
        # `penstock help lag`, as people try it.
        rest = [rest[1], "--help"]
    if "--json" in flags:
        return _refuse(f"--json comes after the command: penstock {rest[0]} --json")
    return _run(rest[0], rest[1:], commands)


def _run(name: str, arguments: Sequence[str], commands: Mapping[str, Command]) -> int:
    command = commands.get(name)
    if command is None:
        import difflib

        close = difflib.get_close_matches(name, commands, n=1)
        hint = f"did you mean {close[0]}?" if close else "see penstock --help"
        return _refuse(f"there is no command {name!r}: {hint}")
    if command.entry_point is None:
        return _refuse(f"{name} is not installed: {_pip(command)}", ExitCode.FAILED)
    try:
        run = command.load()
    except CommandBrokenError as error:
        return _refuse(f"{error}\n{_pip(command, '--force-reinstall')} may repair it", ExitCode.FAILED)
    try:
        return run(arguments)
    except SystemExit as error:
        # argparse ends a process this way.
        if isinstance(error.code, str):
            return _refuse(error.code, ExitCode.FAILED)
        return error.code or ExitCode.OK


def _show_commands(screen: Screen, commands: Mapping[str, Command]) -> None:
    if screen.form is Form.LINES:
        screen.write(f"{USAGE}\n")
    screen.say(USAGE)
    screen.say("")
    screen.show(commands_table(commands))
    if screen.form is Form.TERMINAL:
        screen.say("")
        screen.say("See penstock COMMAND --help. " + _EXITS, "dim", wrap=True)


def commands_table(commands: Mapping[str, Command]) -> Table:
    """A row per command; what is not installed is shown with what brings it."""
    rows = []
    is_whole = all(command.entry_point is not None for command in commands.values())
    for command in commands.values():
        installed = command.entry_point is not None
        note = "" if installed else _pip(command)
        document = {
            "command": command.name,
            "summary": command.summary,
            "package": command.package,
            "installed": installed,
        }
        cells: list[Cell | str] = [Cell(command.name, style="bold cyan" if installed else "dim"), command.summary]
        line = "\t".join((command.name, command.summary, note or "-"))
        rows.append(Row(cells if is_whole else [*cells, Cell(note, style="yellow")], document, line))
    columns = [Column("COMMAND"), Column("WHAT IT DOES")]
    return Table(columns=columns if is_whole else [*columns, Column("NOT INSTALLED")], rows=rows)


def _pip(command: Command, *flags: str) -> str:
    package = json.dumps(command.package) if "[" in command.package else command.package
    return " ".join(["pip install", *flags, package])


def _refuse(text: str, code: int = ExitCode.USAGE) -> int:
    sys.stderr.write(f"penstock: {text}\n")
    return code


def _is_ours(distribution: str) -> bool:
    return distribution == "penstock" or distribution.startswith("penstock-")


def _versions_table() -> Table:
    """A row with the version of each package of Penstock, and of the libraries below them."""
    # Here: no other command needs them.
    import importlib.metadata
    import platform

    from packaging.utils import canonicalize_name

    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # A folder that is not a package any more has no name.
        name = canonicalize_name(distribution.metadata["Name"] or "")
        if _is_ours(name) or name in _GROUND:
            versions.setdefault(name, distribution.version)
    order = sorted(versions, key=lambda name: (not _is_ours(name), name != "penstock-cli", name))
    found = [(name, versions[name]) for name in order] + [("python", platform.python_version())]
    rows = [Row([name, version], {"package": name, "version": version}) for name, version in found]
    return Table(columns=[Column("PACKAGE"), Column("VERSION")], rows=rows)
