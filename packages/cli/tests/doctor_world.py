"""Worlds for the doctor's checks."""

from collections.abc import Mapping, Sequence
from email.message import Message
from types import SimpleNamespace
from typing import Any

from penstock.cli import Finding, Surroundings, Verdict
from penstock.cli._doctor._surroundings import Ran


def package(name: str, version: str = "1.0", *, requires: Sequence[str] = (), files: Sequence[str] = ()) -> Any:
    """An installed distribution."""
    metadata = Message()
    metadata["Name"] = name
    parts = [SimpleNamespace(parts=tuple(file.split("/"))) for file in files]
    return SimpleNamespace(metadata=metadata, version=version, requires=list(requires), files=parts)


def world(*packages: Any, answers: Mapping[str, Ran] | None = None, **options: Any) -> Surroundings:
    """Surroundings with these packages; a child process answers by what its command has in it."""

    def run(command: Sequence[str], environ: Mapping[str, str]) -> Ran:
        for part, ran in (answers or {}).items():
            if any(part in word for word in command):
                return ran
        raise AssertionError(f"unexpected command {command}")

    if answers is not None:
        options["run"] = run
    return Surroundings(distributions=lambda: packages, **{"environ": {}, "imported_pyspark": lambda: None, **options})


def the(findings: Any) -> Finding:
    """The only finding."""
    (finding,) = findings
    found: Finding = finding
    return found


def has_cure(finding: Finding, verdict: Verdict, *words: str) -> bool:
    """Whether it is of this verdict, says a cure in one line, and has all of the words."""
    said = f"{finding.text} {finding.cure}"
    return (
        finding.verdict is verdict
        and bool(finding.cure)
        and "\n" not in finding.cure
        and all(word in said for word in words)
    )
