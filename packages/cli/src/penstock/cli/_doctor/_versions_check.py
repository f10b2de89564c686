"""Do the installed packages fit each other?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import InvalidVersion

from penstock.cli._doctor._findings import Finding, ok, problem
from penstock.cli._doctor._surroundings import Surroundings

_LOOKED_AT: Final = ("penstock-", "grpcio", "googleapis-common-protos", "opentelemetry-", "pyspark", "boto3")


def check_requirements(surroundings: Surroundings) -> Iterator[Finding]:
    """What Penstock's packages, gRPC and PySpark need is there, in versions that they take.

    gRPC's own parts have to be of one kind: a `grpcio-status` of another release brings a protobuf that the rest
    refuses.
    """
    installed: dict[NormalizedName, str] = {}
    needs: list[tuple[str, str, Requirement]] = []
    for distribution in surroundings.distributions():
        name = canonicalize_name(distribution.metadata["Name"] or "")
        if not name or name in installed:
            continue
        installed[name] = distribution.version
        if name.startswith(_LOOKED_AT):
            needs += [(name, distribution.version, need) for need in _requirements(distribution.requires or [])]
    found = False
    for package, version, need in needs:
        needed = canonicalize_name(need.name)
        there = installed.get(needed)
        text = f"{package} {version} needs {need.name}{need.specifier}"
        if there is None:
            found = True
            yield problem("Packages", f"{text}, which is not installed", f"pip install '{need.name}{need.specifier}'")
        elif not _fits(need, there):
            found = True
            cure = f"pip install --upgrade '{need.name}{need.specifier}' {package}"
            yield problem("Packages", f"{text}, but {there} is installed", cure)
    if not found:
        grpc = installed.get(canonicalize_name("grpcio"))
        yield ok("Packages", f"{len(needs)} requirements fit{f'; gRPC {grpc}' if grpc else ''}")


def _requirements(lines: list[str]) -> Iterator[Requirement]:
    for line in lines:
        try:
            need = Requirement(line)
        except InvalidRequirement:
            continue
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            yield need


def _fits(need: Requirement, version: str) -> bool:
    try:
        return need.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return True
