"""The Pythons that Spark starts, looked at before one of them hangs or fails late.

Spark starts data sources and their tasks by PYSPARK_DRIVER_PYTHON of its JVM's environment, or PYSPARK_PYTHON, or
`python3`: with one that lacks this package it only says that there is no source `kinesis`, and with one that does not
answer it waits for good. Functions run in PYSPARK_PYTHON, and fail at the first task when it is of another version.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.spark_plugin.errors import SparkPluginError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCES = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
_FOUND_BY = ("PATH", "SPARK_HOME", "PYTHONPATH")
_PATIENCE_SECONDS = 30.0
_ASK = """\
import json, sys
try:
    from penstock.spark_plugin import KinesisDataSource
    failure = ""
except Exception as error:
    failure = f"{type(error).__name__}: {error}"
print(json.dumps([list(sys.version_info[:2]), failure]))
"""


class Answer(NamedTuple):
    """What an interpreter says of itself."""

    version: tuple[int, ...] = ()
    """Its major and minor version; empty when it does not run."""
    failure: str = ""
    """Why it does not run, or cannot import this package."""


_good: dict[str, Answer] = {}
"""By path: an interpreter is started once."""


def check_environment(environ: Mapping[str, str] | None = None, *, patience: float = _PATIENCE_SECONDS) -> None:
    """Look at the Python that a session with this environment starts data sources in.

    Raises:
        SparkPluginError: the Python is missing, does not answer, or lacks this package.
    """
    environ = os.environ if environ is None else environ
    setting = next((name for name in _SOURCES if name in environ), _SOURCES[1])
    python = environ.get(setting, "python3")
    answer = _ask(python, environ, patience)
    if answer.failure:
        raise _unusable(setting, python, "data sources", answer.failure, is_set=setting in environ)


def check_builder(options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> None:
    """Look at the Python of data sources before a session of these options is made.

    Nothing is known here of the environment of a JVM that started this process, nor of a server of Spark Connect.

    Raises:
        SparkPluginError: the Python is missing, does not answer, or lacks this package.
    """
    environ = os.environ if environ is None else environ
    remote = "spark.remote" in options or "SPARK_REMOTE" in environ
    if remote or "connect" in (options.get("spark.api.mode"), environ.get("SPARK_API_MODE")):
        return
    try:
        from pyspark.core.context import SparkContext
    except ImportError:
        # pyspark-client has only sessions of Spark Connect.
        return
    gateway = SparkContext._gateway
    if gateway is not None:
        check_environment(_environment_of(gateway.jvm))
    elif "PYSPARK_GATEWAY_PORT" not in environ:
        check_environment(environ)


def check_session(spark: "SparkSession") -> None:
    """Look at the Pythons of a session; of one on Spark Connect nothing is known here.

    Functions' Python is looked at where the master is local: elsewhere its path is one of the executors.

    Raises:
        SparkPluginError: a Python is missing, does not answer, or lacks what it needs.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return
    environ = _environment_of(context._jvm)
    check_environment(environ)
    if context.master.startswith("local"):
        _check_functions(context.pythonExec, environ)


def _environment_of(jvm: Any) -> dict[str, str]:
    found = {name: jvm.java.lang.System.getenv(name) for name in (*_SOURCES, *_FOUND_BY)}
    return {name: value for name, value in found.items() if value is not None}


def _check_functions(python: str, environ: Mapping[str, str]) -> None:
    answer = _ask(python, environ, _PATIENCE_SECONDS)
    reason = answer.failure if not answer.version else ""
    if answer.version and answer.version != sys.version_info[:2]:
        here = ".".join(map(str, sys.version_info[:2]))
        reason = f"it is Python {'.'.join(map(str, answer.version))}, and the driver's {here}"
    if reason:
        is_set = _SOURCES[1] in os.environ
        raise _unusable(_SOURCES[1], python, "functions in tasks", reason, is_set=is_set)


def _unusable(setting: str, python: str, use: str, reason: str, *, is_set: bool) -> SparkPluginError:
    named = f"{setting}={python}" if is_set else f"{python!r} ({setting} is not set)"
    cure = f"Export {setting}={sys.executable} before the session is made"
    cure += "" if is_set else ", or call penstock.spark_plugin.ensure_java()"
    return SparkPluginError.of(
        "PYTHON_UNUSABLE", use=use, named=named, reason=reason, cure=cure, setting=setting, python=python
    )


def _ask(python: str, environ: Mapping[str, str], patience: float) -> Answer:
    found = shutil.which(python, path=environ.get("PATH", os.defpath))
    if found is None:
        return Answer(failure="it is not there" if python else "it is empty")
    if _is_this(found):
        return Answer(sys.version_info[:2])
    places = [environ.get("PYTHONPATH", ""), *_zipped(environ.get("SPARK_HOME"))]
    if found not in _good:
        answer = _run(found, os.pathsep.join(filter(None, places)), patience)
        if answer.failure:
            # Not kept: who installs what is missing tries again.
            return answer
        _good[found] = answer
    return _good[found]


def _is_this(python: str) -> bool:
    """Whether it is the interpreter of this process: `python3` beside `python` of an environment is."""
    here = sys.executable or ""
    same_folder = os.path.dirname(python) == os.path.dirname(here)
    return python == here or (same_folder and os.path.realpath(python) == os.path.realpath(here))


def _zipped(spark_home: str | None) -> list[str]:
    """PySpark as Spark brings it to interpreters that have none."""
    if spark_home is None:
        import pyspark

        spark_home = os.path.dirname(pyspark.__file__)
    folder = os.path.join(spark_home, "python", "lib")
    with suppress(OSError):
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".zip")]
    return []


def _run(python: str, python_path: str, patience: float) -> Answer:
    environ = {**os.environ, "PYTHONPATH": python_path}
    try:
        process = subprocess.Popen(
            [python, "-c", _ASK],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What it starts in turn ends with it.
            start_new_session=True,
        )
    except OSError as error:
        return Answer(failure=f"it does not run: {error.strerror}")
    with process:
        try:
            out, errors = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Answer(failure=f"it does not answer in {patience:g} s, as a Python would")
    try:
        version, failure = json.loads(out.strip().rpartition("\n")[2])
    except ValueError:
        return Answer(failure=f"it is not a Python that works: {errors.strip()[-200:] or out.strip()[-200:]}")
    return Answer(tuple(version), failure and f"it cannot import penstock.spark_plugin ({failure})")
