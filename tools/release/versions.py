"""What a release is made of, and its rules: one version, bounds of siblings, a heading in each changelog."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(?:a|b|rc)\d+)?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_UNRELEASED = "## Unreleased"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A package or service, as its `pyproject.toml` declares it."""

    folder: Path
    name: str
    version: str
    requirements: tuple[str, ...]
    """All requirements, including the extras."""

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
        OSError, KeyError, tomllib.TOMLDecodeError: the folder holds no member.
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


def sibling_bounds(version: str) -> str:
    """Which siblings a wheel of this version works with: this one and later patches.

    Before 1.0 a minor version may break, from then on a major one.

    Raises:
        ValueError: not a version as releases have it.
    """
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ValueError(f"{version!r} is not a version such as 1.2.3 or 1.2.3rc1")
    major, minor = int(found[1]), int(found[2])
    return f">={version},<{major + 1}" if major else f">={version},<0.{minor + 1}"


def problems(members: Sequence[Member], licence: str, tag: str | None = None) -> list[str]:
    """What keeps the members from being released together, one line each, with what to do.

    A tag, such as `v1.2.3`, must match the members' version.
    """
    found = []
    versions = sorted({member.version for member in members})
    if len(versions) > 1:
        found.append(f"versions differ: {', '.join(versions)}; run: hatch run release:set {versions[-1]}")
    if tag is not None and tag != f"v{versions[-1]}":
        found.append(f"the tag {tag} is not v{versions[-1]}, the version of the packages")
    names = {member.name for member in members}
    for member in members:
        found += _member_problems(member, names, licence)
    return found


def _member_problems(member: Member, names: Iterable[str], licence: str) -> list[str]:
    bounds = sibling_bounds(member.version)
    found = [
        f"{member.name}: {requirement!r} has to end with {bounds}; run: hatch run release:set {member.version}"
        for requirement in member.requirements
        if name_of(requirement) in names and requirement.partition(";")[0].strip() != _pinned(requirement, bounds)
    ]
    changelog = member.folder / "CHANGELOG.md"
    headings = changelog.read_text().splitlines() if changelog.exists() else []
    if not any(re.match(rf"## {re.escape(member.version)}(\s|$)", line) for line in headings):
        found.append(f"{member.name}: CHANGELOG.md has no heading '## {member.version}'")
    copy = member.folder / "LICENSE"
    if not copy.exists() or copy.read_text() != licence:
        found.append(f"{member.name}: LICENSE is missing or differs from the root's; copy it")
    return found


def _pinned(requirement: str, bounds: str) -> str:
    name = re.split(r"[<>=!~; ]", requirement)[0]
    return f"{name}{bounds}"


def with_version(pyproject: str, version: str, names: Iterable[str]) -> str:
    """The text of a `pyproject.toml` with the version, and with its siblings pinned to it."""
    bounds = sibling_bounds(version)
    text = re.sub(r'^version = ".*"$', f'version = "{version}"', pyproject, count=1, flags=re.MULTILINE)
    for name in names:
        text = re.sub(rf'(?<!= )"({re.escape(name)}(?:\[[\w,-]+\])?)(?:[<>=!~ ][^";]*)?"', rf'"\1{bounds}"', text)
    return text


def with_heading(changelog: str, version: str, today: date) -> str:
    """The text of a changelog whose unreleased entries belong to the version.

    They join those of a heading that is there already, which gets a date. A changelog without any entries says so:
    every package gets the version, also one that did not change.
    """
    heading = f"## {version} ({today.isoformat()})"
    if found := re.search(rf"^## {re.escape(version)}(?:\s.*)?$\n*", changelog, flags=re.MULTILINE):
        before, _, entries = changelog[: found.start()].partition(_UNRELEASED)
        entries = entries.strip() + "\n" if entries.strip() else ""
        there = found[0].strip()
        return f"{before}{there if '(' in there else heading}\n\n{entries}{changelog[found.end() :]}"
    if _UNRELEASED in changelog:
        return changelog.replace(_UNRELEASED, heading, 1)
    title, _, rest = changelog.partition("\n")
    return f"{title}\n\n{heading}\n\n- No changes of its own.\n{rest}"


def chart_with_version(chart: str, version: str) -> str:
    """The text of a `Chart.yaml` with the version, which Helm wants as semantic versions have it: `0.2.0-rc.1`."""
    semantic = re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)
    text = re.sub(r"^version: .*$", f"version: {semantic}", chart, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f"appVersion: {version}", text, flags=re.MULTILINE)


def recipe_with_version(recipe: str, version: str) -> str:
    """The text of a recipe of conda with the version."""
    return re.sub(r'^  version: ".*"$', f'  version: "{version}"', recipe, flags=re.MULTILINE)


def set_version(root: Path, version: str, today: date) -> list[Path]:
    """Write the version into all members below the root, the chart and the recipe. Returns the files that changed."""
    members = find_members(root)
    names = [member.name for member in members]
    changes: dict[Path, Callable[[str], str]] = {}
    for member in members:
        changes[member.folder / "pyproject.toml"] = lambda text: with_version(text, version, names)
        changes[member.folder / "CHANGELOG.md"] = lambda text: with_heading(text, version, today)
    changes[root / "deploy/helm/penstock/Chart.yaml"] = lambda text: chart_with_version(text, version)
    changes[root / "deploy/conda/recipe.yaml"] = lambda text: recipe_with_version(text, version)
    changed = []
    for path, change in changes.items():
        text = path.read_text()
        if (written := change(text)) != text:
            path.write_text(written)
            changed.append(path)
    return changed
