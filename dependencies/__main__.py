"""Lock what the repository needs, check the lock, or audit it: `hatch run lock`, `lock-check`, `audit`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dependencies._audit import SERVICE, AuditUnavailableError, advisories
from dependencies._lock import lock_problems, read_lock
from dependencies._requirements import requirements_of

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
_COMPILE = ["uv", "pip", "compile", "-", "--universal", "--generate-hashes", "--python-version", "3.11", "--quiet"]
# Neither comments nor options: the lock says what, not from where.
_COMPILE += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--output-file", str(LOCK)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 1 when there is something to put right, 3 when it cannot be found out."""
    parser = argparse.ArgumentParser(prog="python -m dependencies", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    lock = commands.add_parser("lock", help="write requirements.lock; versions in it stay where they can")
    lock.add_argument("--upgrade", action="store_true", help="take the newest versions")
    commands.add_parser("check", help="tell whether the lock is that of all pyproject.toml; asks nobody")
    audit = commands.add_parser("audit", help="look for known vulnerabilities of what is locked")
    audit.add_argument("--service", default=SERVICE, help="where advisories are asked for; default: %(default)s")
    audit.add_argument("--required", action="store_true", help="fail when they cannot be asked for")
    arguments = parser.parse_args(argv)
    if arguments.command == "lock":
        return _lock(upgrade=arguments.upgrade)
    if arguments.command == "check":
        found = lock_problems(LOCK.read_text(), requirements_of(ROOT))
        return _tell(found, f"{LOCK.name} is that of all packages", "run: hatch run lock")
    return _audit(arguments.service, required=arguments.required)


def _lock(*, upgrade: bool) -> int:
    wanted = "\n".join(requirements_of(ROOT))
    return subprocess.run(
        [*_COMPILE, *(["--upgrade"] if upgrade else [])], input=wanted, text=True, check=False
    ).returncode


def _audit(service: str, *, required: bool) -> int:
    locked = read_lock(LOCK.read_text())
    try:
        found = advisories(locked, service)
    except AuditUnavailableError as error:
        sys.stderr.write(
            f"NOT AUDITED: {service} cannot be asked ({error}); nothing is known of {len(locked)} versions\n"
        )
        return 3 if required else 0
    lines = [f"{version}: {', '.join(ids)}" for version, ids in found.items()]
    return _tell(lines, f"{len(locked)} versions have no known vulnerability", "raise them: hatch run lock --upgrade")


def _tell(found: Sequence[str], fine: str, cure: str) -> int:
    sys.stdout.write("\n".join([*found, cure] if found else [fine]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
