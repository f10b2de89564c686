"""What a release is made of: the packages and services of the repository."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A package or service, as its `pyproject.toml` declares it."""

    folder: Path
    name: str
    version: str
    requirements: tuple[str, ...]
    """All of them, those of extras too."""

    @property
    def wheel_stem(self) -> str:
        """What the names of its wheel and its source archive begin with."""
        return f"{self.name.replace('-', '_')}-{self.version}"


def name_of(requirement: str) -> str:
    """`penstock-rpc` of `penstock-rpc[service]>=0.1,<0.2`."""
    found = _NAME.match(requirement)
    return found.group().lower() if found else ""


def read_member(folder: Path) -> Member:
    """The member in a folder.

    Raises:
        OSError, KeyError, tomllib.TOMLDecodeError: there is none.
    """
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    requirements = [*project.get("dependencies", [])]
    for extra in project.get("optional-dependencies", {}).values():
        requirements += extra
    return Member(
        folder=folder, name=project["name"], version=project["version"], requirements=tuple(map(str, requirements))
    )


def find_members(root: Path) -> list[Member]:
    """All members below the root of the repository, by name."""
    folders = [path.parent for kind in ("packages", "services") for path in (root / kind).glob("*/pyproject.toml")]
    return sorted((read_member(folder) for folder in folders), key=lambda member: member.name)
