"""What the driver's JVM was told about its cluster, seen from the Python process that it starts for a source."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_SPARK = "org.apache.spark."
_ANCESTORS = 3
"""A shell or Spark's daemon may stand between this process and the JVM."""
_ASSIGNMENT = re.compile(r"\s*([^\s=:#!]+)\s*[=:\s]\s*(.*?)\s*$")


def driver_settings(
    *,
    command_lines: Iterable[Sequence[str]] | None = None,
    environ: Mapping[str, str] | None = None,
    read: Callable[[Path], str] | None = None,
) -> dict[str, str]:
    """The `spark.*` settings that the driver was started with; empty where they cannot be seen.

    Spark tells a source's process nothing about its cluster: not by environment, not by argument. But the process is a
    child of the driver, whose command line holds what `spark-submit` or the session's builder were given (Linux), and
    names the file with the rest. A setting that a session makes later is not seen.

    Args:
        command_lines: of this process's ancestors, the nearest first.
        environ: where `spark-defaults.conf` is looked for.
        read: the text of a file; raises OSError.
    """
    environ = os.environ if environ is None else environ
    read = read or Path.read_text
    lines = ancestor_command_lines() if command_lines is None else command_lines
    line = next((line for line in lines if any(_SPARK in part for part in line)), None)
    if line is None:
        return {}
    given = dict(_given(line))
    file = given.pop("", None) or _defaults_file(environ)
    return {**(_from_file(Path(file), read) if file else {}), **given}


def _given(line: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Settings of a command line; the properties file under an empty name."""
    for part, following in zip(line, [*line[1:], ""], strict=True):
        name, _, value = part.partition("=")
        if part in ("--conf", "-c"):
            name, _, value = following.partition("=")
            yield name, value
        elif name == "--conf":
            name, _, value = value.partition("=")
            yield name, value
        elif name in ("--master", "--properties-file"):
            yield "spark.master" if name == "--master" else "", value or following
        elif name.startswith("-Dspark."):
            yield name[2:], value


def _defaults_file(environ: Mapping[str, str]) -> str | None:
    folder = environ.get("SPARK_CONF_DIR")
    if folder is None and environ.get("SPARK_HOME"):
        folder = os.path.join(environ["SPARK_HOME"], "conf")
    return os.path.join(folder, "spark-defaults.conf") if folder else None


def _from_file(file: Path, read: Callable[[Path], str]) -> dict[str, str]:
    try:
        lines = read(file).splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = (_ASSIGNMENT.match(line) for line in lines if not line.lstrip().startswith(("#", "!")))
    # Spark escapes what it writes into a properties file: `spark\://host\:7077`.
    return {match[1]: re.sub(r"\\(.)", r"\1", match[2]) for match in found if match is not None}


def ancestor_command_lines() -> Iterator[list[str]]:
    process = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            yield Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            # The command's name, in parentheses, may hold anything.
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
