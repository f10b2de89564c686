"""What the repository asks for: of its packages with all extras, and of the environment of its tests."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def requirements_of(root: Path) -> list[str]:
    """All requirements that are not packages of the repository itself, sorted."""
    own, wanted = set(), set(tomllib.loads((root / "hatch.toml").read_text())["envs"]["default"]["dependencies"])
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
