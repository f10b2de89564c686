"""What a check says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


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
    """Nobody has looked."""
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
