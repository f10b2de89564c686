"""Are PySpark and its workers' Python as they should be?"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from typing import Final

from packaging.version import InvalidVersion, Version

from penstock.cli._doctor._findings import Finding, ok, problem, skipped, warning
from penstock.cli._doctor._surroundings import Surroundings

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
    """Whether there is anything of Spark here, so that what is missing of it is a problem."""
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
    """Spark's workers run PYSPARK_PYTHON, or whatever `python3` is: not this Python by itself.

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
        text = f"{named} is {python}: Spark waits for good when it starts data sources in it"
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
