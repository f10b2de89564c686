"""All checks, in their groups, some at a time."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.cli._doctor._aws import check_credentials, check_endpoint, check_region
from penstock.cli._doctor._machine import check_disk, check_open_files, check_state_folder
from penstock.cli._doctor._python import (
    check_java,
    check_plugin,
    check_pyspark,
    check_requirements,
    check_worker_python,
    uses_spark,
)
from penstock.cli._doctor._services import check_services
from penstock.cli._doctor._session import check_reader_address, check_session_settings, check_time_zone
from penstock.cli._doctor._sources import check_data_sources
from penstock.cli._doctor._stream import check_stream
from penstock.cli._doctor._surroundings import Check, Finding, Surroundings, problem, skipped

GROUPS: Final[dict[str, tuple[Check, ...]]] = {
    "Java and Python": (check_java, check_pyspark, check_worker_python, check_plugin, check_data_sources),
    "Packages": (check_requirements,),
    "Spark session": (check_session_settings, check_reader_address, check_time_zone),
    "Machine": (check_state_folder, check_disk, check_open_files),
    "AWS": (check_region, check_credentials, check_endpoint),
    "Stream": (check_stream,),
    "Services": (check_services,),
}
SPARK: Final = ("Java and Python", "Spark session")
"""Groups that say nothing to those who do without Spark."""
_AT_A_TIME: Final = 6
"""Most of them wait: for a child process, or for a network."""


def diagnose(surroundings: Surroundings | None = None, groups: Sequence[str] | None = None) -> Iterator[Finding]:
    """What all checks find, in the order of their groups, each as soon as it and those before it are known.

    Args:
        surroundings: what to look at; by default, the set-up of this process.
        groups: some of `GROUPS`; by default all, except that Spark's groups need Spark.
    """
    world = surroundings or Surroundings()
    if groups is None and not uses_spark(world):
        groups = [name for name in GROUPS if name not in SPARK]
        install = "pip install 'penstock-spark-plugin[pyspark]', or --only java-and-python to look all the same"
        text = "left out: neither PySpark nor penstock-spark-plugin is installed, and no setting names Spark"
        yield replace(skipped("Spark", text, install), group=SPARK[0])
    chosen = [(name, check) for name, checks in GROUPS.items() if groups is None or name in groups for check in checks]
    found: list[Future[list[Finding]]] = [Future() for _ in chosen]
    waiting = deque(zip(chosen, found, strict=True))

    def work() -> None:
        while True:
            try:
                (_, check), future = waiting.popleft()
            except IndexError:
                return
            future.set_result(_run(check, world))

    # Not threads of a pool: Python waits for them at exit, and Ctrl+C should end a check that does not answer.
    for number in range(min(_AT_A_TIME, len(chosen))):
        threading.Thread(target=work, name=f"check {number}", daemon=True).start()
    try:
        for (name, _), future in zip(chosen, found, strict=True):
            yield from (replace(finding, group=name) for finding in future.result())
    finally:
        waiting.clear()


def _run(check: Check, surroundings: Surroundings) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings += check(surroundings)
    except BaseException as error:
        # The set-up is broken in an unforeseen way, and most likely for a job too. The other checks
        # continue. The text of the error may hold a secret.
        line = traceback.extract_tb(error.__traceback__)[:2][-1]
        text = f"the check itself failed: {type(error).__name__}, at {Path(line.filename).name}:{line.lineno}"
        name = check.__name__.removeprefix("check_").replace("_", " ")
        cure = "report it to those who make penstock-cli, with this line and the output of penstock --version"
        findings.append(problem(name, text, cure))
    return findings
