"""What the checks look at, so that tests can replace it, and what a check reports."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Verdict(StrEnum):
    """How it stands with what was checked."""

    OK = "ok"
    WARNING = "warning"
    """It works, but something will be slow, surprising, or break later."""
    PROBLEM = "problem"
    """A query will not run."""
    SKIPPED = "skipped"
    """It was not checked; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis."""

    check: str
    """What was looked at, in a word or two."""
    verdict: Verdict
    text: str
    """What was found. Never holds a secret."""
    cure: str = ""
    """What to do, in one line."""
    group: str = ""
    """The heading it stands under."""


def ok(check: str, text: str) -> Finding:
    """It is as it should be."""
    return Finding(check, Verdict.OK, text)


def warning(check: str, text: str, cure: str) -> Finding:
    """It works, with a drawback."""
    return Finding(check, Verdict.WARNING, text, cure)


def problem(check: str, text: str, cure: str) -> Finding:
    """It will not work."""
    return Finding(check, Verdict.PROBLEM, text, cure)


def skipped(check: str, text: str, cure: str = "") -> Finding:
    """Not looked up yet."""
    return Finding(check, Verdict.SKIPPED, text, cure)


def summary(findings: Iterable[Finding]) -> str:
    """One sentence on all of them."""
    count = Counter(finding.verdict for finding in findings)
    words = [
        _many(count[Verdict.PROBLEM], "problem"),
        _many(count[Verdict.WARNING], "warning"),
        f"{count[Verdict.OK]} fine",
        f"{count[Verdict.SKIPPED]} skipped",
    ]
    return ", ".join(words)


def _many(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a child process ended."""

    code: int | None
    """None when it could not be started, or did not end in time."""
    out: str
    errors: str


def run_child(command: Sequence[str], environ: Mapping[str, str]) -> Ran:
    """Run a command to its end, for a minute at most."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(environ))
    except (OSError, subprocess.TimeoutExpired) as error:
        return Ran(None, "", str(error))
    return Ran(done.returncode, done.stdout, done.stderr)


def find_pyspark() -> str | None:
    """The version of the PySpark that is imported: a platform's own is often no distribution, but on PYTHONPATH."""
    found = importlib.util.find_spec("pyspark")
    for folder in (found and found.submodule_search_locations) or ():
        with suppress(OSError, AttributeError):
            # By its loader: spark-submit puts an archive on the path.
            text = found.loader.get_data(str(Path(folder) / "version.py")).decode()  # type: ignore[union-attr]
            version = re.search(r"""__version__[^=]*=\s*["'](.+?)["']""", text)
            if version is not None:
                return version[1]
    return None


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service of Penstock that is to be reached."""

    name: str
    """`registry`, `reader`, `sink` or `stages`."""
    endpoint: str
    """`host:port`."""
    tls: bool = False
    """Use TLS without an authority of its own."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The set-up that is checked. Default: the set-up of this process."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    """Variables; AWS's own are read from the process's environment by botocore."""
    executable: str = sys.executable
    """This Python."""
    python_version: tuple[int, int] = sys.version_info[:2]
    run: Callable[[Sequence[str], Mapping[str, str]], Ran] = run_child
    distributions: Callable[[], Iterable[importlib.metadata.Distribution]] = importlib.metadata.distributions
    imported_pyspark: Callable[[], str | None] = find_pyspark
    """The version of the PySpark that this Python imports, whether it is a distribution or not."""
    wall_clock: Callable[[], float] = time.time
    spark_settings: Mapping[str, str] | None = None
    """Settings of the Spark session; None when they are not known."""
    spark_settings_from: str = ""
    """Where they were read."""
    reader_host: str | None = None
    """The option `readerHost` of the query."""
    state_folder: Path | None = None
    """Where leases and checkpoints are kept; None: in the user's state directory."""
    timeout_seconds: float = 5.0
    """Longest wait for a connection or an answer."""

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    ca_bundle: str | None = None
    stream: str | None = None
    """Name of the stream that is to be read or written."""
    consumer: str | None = None
    """Name of its stream consumer."""
    write: bool = False
    """Whether a record may be written to the stream, to see that it can be."""
    services: Sequence[Service] = ()

    def version(self, package: str) -> str | None:
        """The version of an installed distribution."""
        for distribution in self.distributions():
            if (distribution.metadata["Name"] or "").lower().replace("_", "-") == package:
                return distribution.version
        return None


Check = Callable[[Surroundings], Iterable[Finding]]
