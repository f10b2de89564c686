"""Lock what the repository needs from others, check the lock, or audit it: `hatch run lock`, `lock-check`, `audit`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
_COMPILE = ["uv", "pip", "compile", "-", "--universal", "--generate-hashes", "--python-version", "3.11", "--quiet"]
# Neither comments nor options: the lock says what, not from where.
_COMPILE += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--output-file", str(LOCK)]
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# The origin of a file does not matter: the hash identifies it.
_PLACE = re.compile(r"://|--index-url|--extra-index-url|--find-links|--trusted-host| @ ")
# What tools/install_hatch.sh installs, before there is an environment.
_HATCH = "hatch>=1.18"
SERVICE = "https://api.osv.dev"
_TIMEOUT_SECONDS = 10.0


def requirements_of(root: Path) -> list[str]:
    """All requirements that are not packages of the repository itself, sorted."""
    environments = tomllib.loads((root / "hatch.toml").read_text())["envs"]
    own: set[str] = set()
    wanted = {_HATCH, *environments["default"]["dependencies"], *environments["release"]["dependencies"]}
    for kind in ("packages", "services"):
        for file in (root / kind).glob("*/pyproject.toml"):
            project = tomllib.loads(file.read_text())["project"]
            own.add(canonicalize_name(project["name"]))
            wanted |= set(project.get("dependencies", []))
            wanted |= {one for extra in project.get("optional-dependencies", {}).values() for one in extra}
    return sorted(one for one in wanted if canonicalize_name(Requirement(one).name) not in own)


def named(requirements: Iterable[str]) -> dict[str, list[Requirement]]:
    """Requirements by the normalised name of what they ask for."""
    found: dict[str, list[Requirement]] = {}
    for text in requirements:
        requirement = Requirement(text)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@dataclass(frozen=True, kw_only=True)
class Locked:
    """A version that is locked, where its marker holds."""

    name: str
    version: str
    hashes: int


def read_lock(text: str) -> list[Locked]:
    """The versions of a lock.

    Raises:
        ValueError: a line is not a name and a version with `==` between them.
    """
    locked = []
    for entry in re.sub(r"\\\n\s*", " ", text).splitlines():
        line = entry.partition("#")[0].strip()
        if not line:
            continue
        try:
            requirement = Requirement(line.partition("--hash")[0].strip())
            (specifier,) = requirement.specifier
        except (InvalidRequirement, ValueError) as error:
            raise ValueError(f"{line.partition('--hash')[0].strip()!r} is not a version that is locked") from error
        if specifier.operator != "==":
            raise ValueError(f"{requirement.name} is locked by {specifier.operator}, not by ==")
        name = canonicalize_name(requirement.name)
        locked.append(Locked(name=name, version=specifier.version, hashes=len(_HASH.findall(entry))))
    return locked


def lock_problems(text: str, requirements: Sequence[str]) -> list[str]:
    """Why a lock does not match the requirements; empty if it does."""
    problems = [f"the lock says where a file lies: {found[0]!r}" for found in _PLACE.finditer(text)]
    try:
        locked = read_lock(text)
    except ValueError as error:
        return [*problems, str(error)]
    versions: dict[str, list[Locked]] = {}
    for one in locked:
        versions.setdefault(one.name, []).append(one)
        if not one.hashes:
            problems.append(f"{one.name} {one.version} has no hash")
    for name, wanted in named(requirements).items():
        if name not in versions:
            problems.append(f"{name} is not locked")
        for requirement in wanted:
            for one in versions.get(name, []):
                if not requirement.specifier.contains(one.version, prereleases=True):
                    problems.append(f"{name} is locked as {one.version}, but {requirement} is asked for")
    return problems


class AuditUnavailableError(Exception):
    """The service cannot be asked: nothing is known of what is locked."""


def advisories(locked: Sequence[Locked], service: str = SERVICE) -> dict[str, list[str]]:
    """Identifiers of known vulnerabilities, by `name version`; those without one are left out.

    Raises:
        AuditUnavailableError: it cannot be reached, or answers otherwise than its contract says.
    """
    queries = [{"package": {"name": one.name, "ecosystem": "PyPI"}, "version": one.version} for one in locked]
    request = urllib.request.Request(
        f"{service}/v1/querybatch",
        data=json.dumps({"queries": queries}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            results = json.load(answer)["results"]
        found = [sorted(one["id"] for one in result.get("vulns") or ()) for result in results]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AuditUnavailableError(str(getattr(error, "reason", None) or error)) from error
    if len(found) != len(locked):
        raise AuditUnavailableError("it did not answer all that was asked")
    return {f"{one.name} {one.version}": ids for one, ids in zip(locked, found, strict=True) if ids}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 1 when there is something to put right, 3 when it cannot be found out."""
    parser = argparse.ArgumentParser(prog="python -m tools.dependencies", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    lock = commands.add_parser("lock", help="write requirements.lock; versions in it stay where they can")
    lock.add_argument("--upgrade", action="store_true", help="take the newest versions")
    commands.add_parser("check", help="check that the lock matches all pyproject.toml; works offline")
    audit = commands.add_parser("audit", help="look for known vulnerabilities of what is locked")
    audit.add_argument("--service", default=SERVICE, help="where advisories are asked for; default: %(default)s")
    audit.add_argument("--required", action="store_true", help="fail when they cannot be asked for")
    arguments = parser.parse_args(argv)
    if arguments.command == "lock":
        return _lock(upgrade=arguments.upgrade)
    if arguments.command == "check":
        found = lock_problems(LOCK.read_text(), requirements_of(ROOT))
        return _tell(found, f"{LOCK.name} matches all packages", "run: hatch run lock")
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
