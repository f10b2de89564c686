"""A Python that cannot do Spark's work is reported before anything is started in it."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark_plugin import configure
from penstock.spark_plugin._interpreters import check_builder, check_environment, check_session
from penstock.spark_plugin.errors import SparkPluginError


def program(folder: Path, script: str, name: str = "python3") -> str:
    """A program that takes the place of a Python."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def of_version(folder: Path, version: str) -> str:
    """A Python of another version that has the package, and counts how often it is started."""
    return program(folder, f"echo started >> {folder}/starts\necho noise\necho '[[{version}], \"\"]'")


def session(environ: dict[str, str], *, master: str = "local[2]", python: str = sys.executable) -> Any:
    """What is looked at of a session, with a JVM of this environment."""
    system = SimpleNamespace(getenv=environ.get)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    return SimpleNamespace(_sc=SimpleNamespace(_jvm=jvm, master=master, pythonExec=python))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "it is not there"),
        ("sleep 600", "it does not answer in 0.2 s"),
        ("echo 'jupyter: unrecognized arguments: -c' >&2; exit 2", "not a Python that works: jupyter: unrecognized"),
        (f'exec {sys.executable} -S "$@"', "cannot import penstock.spark_plugin .ModuleNotFoundError"),
    ],
    ids=["gone", "silent", "no Python", "without packages"],
)
def test_python_that_cannot_run_sources_is_reported_with_its_variable(
    tmp_path: Path, script: str | None, reason: str
) -> None:
    """The error says which variable named it, why it is of no use, and what to export: also without a variable."""
    python = str(tmp_path / "python3") if script is None else program(tmp_path, script)
    patience = 0.2 if script == "sleep 600" else 60.0
    with pytest.raises(
        SparkPluginError, match=rf"PYTHON_UNUSABLE.*PYSPARK_PYTHON={python}: .*{reason}.*Export PYSPARK_PYTHON=/"
    ):
        check_environment({"PYSPARK_PYTHON": python, "PATH": os.defpath}, patience=patience)
    # As Spark has it: the driver's first, `python3` of the PATH last.
    with pytest.raises(SparkPluginError, match=rf"PYTHON_UNUSABLE.*PYSPARK_DRIVER_PYTHON={python}: ") as caught:
        check_environment({"PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": sys.executable}, patience=patience)
    assert (caught.value.facts["setting"], caught.value.facts["python"]) == ("PYSPARK_DRIVER_PYTHON", python)
    with pytest.raises(
        SparkPluginError, match=r"PYTHON_UNUSABLE.*'python3' \(PYSPARK_PYTHON is not set\).*ensure_java"
    ):
        check_environment({"PATH": str(tmp_path)}, patience=patience)


def test_functions_need_the_version_of_the_driver_where_the_master_is_local(tmp_path: Path) -> None:
    """On a cluster the path is one of the executors, of which the driver knows nothing."""
    other, environ = of_version(tmp_path, "3, 9"), {"PYSPARK_DRIVER_PYTHON": sys.executable}
    here = ".".join(map(str, sys.version_info[:2]))
    words = rf"functions in tasks in .*python3.* Python 3\.9, and the driver's {here}\. Export PYSPARK_PYTHON"
    with pytest.raises(SparkPluginError, match=f"PYTHON_UNUSABLE.*{words}"):
        check_session(session(environ, python=other))
    with pytest.raises(SparkPluginError, match=r"PYTHON_UNUSABLE.*/gone/python.*not there"):
        check_session(session(environ, python="/gone/python"))
    check_session(session(environ, python=other, master="yarn"))
    check_session(session(environ))


def test_a_session_is_refused_before_its_jvm_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """`configure` looks, unless the Python is a server's or was chosen by what started this process."""
    monkeypatch.setattr("pyspark.core.context.SparkContext._gateway", None)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/gone/python")
    for name in ("SPARK_REMOTE", "SPARK_API_MODE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SparkPluginError, match=r"PYTHON_UNUSABLE.*/gone/python"):
        configure(SparkSession.Builder())
    configure(SparkSession.Builder().remote("sc://server"))
    gone = {"PYSPARK_PYTHON": "/gone/python"}
    check_builder({"spark.api.mode": "connect"}, gone)
    check_builder({}, {**gone, "SPARK_REMOTE": "sc://server"})
    check_builder({}, {**gone, "PYSPARK_GATEWAY_PORT": "25333"})
    jvm = session(gone)._sc._jvm
    monkeypatch.setattr("pyspark.core.context.SparkContext._gateway", SimpleNamespace(jvm=jvm))
    with pytest.raises(SparkPluginError, match=r"PYTHON_UNUSABLE.*/gone/python"):
        check_builder({}, {"PYSPARK_PYTHON": sys.executable})
