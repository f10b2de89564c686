"""The lock: one version of each distribution, with the hashes of its files, for all platforms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from dependencies._requirements import named

_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# Where a file came from is nobody's business: the hash says which it is.
_PLACE = re.compile(r"://|--index-url|--extra-index-url|--find-links|--trusted-host| @ ")


@dataclass(frozen=True, kw_only=True)
class Locked:
    """A version that is locked, where its marker holds."""

    name: str
    version: str
    hashes: int


def read_lock(text: str) -> list[Locked]:
    """The versions of a lock.

    Raises:
        ValueError: a line is no version with `==`.
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
            raise ValueError(f"{line.partition('--hash')[0].strip()!r} is no version that is locked") from error
        if specifier.operator != "==":
            raise ValueError(f"{requirement.name} is locked by {specifier.operator}, not by ==")
        name = canonicalize_name(requirement.name)
        locked.append(Locked(name=name, version=specifier.version, hashes=len(_HASH.findall(entry))))
    return locked


def lock_problems(text: str, requirements: Sequence[str]) -> list[str]:
    """Why a lock is not that of the requirements; nothing when it is."""
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
