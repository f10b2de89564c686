"""Check, raise, build or try all packages: `hatch run release:check`, `release:set`, `build`, `release:matrix`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.release.artefacts import artefact_problems, build
from tools.release.matrix import read_cells, run_matrix, table_row
from tools.release.versions import Member, find_members, problems, set_version

ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 1 when there is something to put right, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="tell what keeps the packages from being released together")
    check.add_argument("--tag", help="tag of the release, such as v1.2.3: must match the version")
    commands.add_parser("set", help="write a version into all packages").add_argument("version")
    made = commands.add_parser("build", help="build all wheels and source archives, and look into them")
    made.add_argument("--out-dir", type=Path, default=ROOT / "dist", help="default: dist/")
    tried = commands.add_parser(
        "matrix", help="run the cheap tests with each Spark, each Python, and the lowest versions"
    )
    tried.add_argument("cells", nargs="*", help="such as compat.py3.12-4.2 or lowest; default: all")
    arguments = parser.parse_args(argv)
    if arguments.command == "matrix":
        return _matrix(arguments.cells)
    members = find_members(ROOT)
    if arguments.command == "set":
        return _set(arguments.version)
    if arguments.command == "build":
        return _build(members, arguments.out_dir)
    return _tell(
        problems(members, (ROOT / "LICENSE").read_text(), arguments.tag),
        f"{len(members)} packages can be released as {members[0].version}",
    )


def _set(version: str) -> int:
    try:
        changed = set_version(ROOT, version, datetime.now(UTC).date())
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.writelines(f"{path.relative_to(ROOT)}\n" for path in changed)
    return 0


def _build(members: Sequence[Member], folder: Path) -> int:
    for member in members:
        try:
            build(member, folder)
        except subprocess.CalledProcessError:
            return _tell([f"{member.name} cannot be built"], "")
    found = [line for member in members for line in artefact_problems(member, folder)]
    return _tell(found, f"{len(members)} wheels and source archives are in {folder}")


def _matrix(names: Sequence[str]) -> int:
    try:
        cells = read_cells(ROOT, names)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("| Spark | Python | tests |\n| --- | --- | --- |\n")
    code = 0
    for outcome in run_matrix(cells):
        sys.stdout.write(f"{table_row(outcome)}\n")
        sys.stdout.flush()
        code = code if outcome.passed or outcome.skipped else 1
    return code


def _tell(found: Sequence[str], fine: str) -> int:
    if found:
        sys.stderr.writelines(f"{line}\n" for line in found)
        return 1
    sys.stdout.write(f"{fine}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
