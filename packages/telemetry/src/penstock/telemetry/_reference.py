"""Names, kinds, units and meanings of all spans and metrics of Penstock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class MetricReference:
    """A metric of one instrumentation."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    unit: str
    """By UCUM: `ms`, `By`, `{record}`."""
    meaning: str
    package: str
    """Distribution: `penstock-efo-consumer`."""
    instrumentation: str
    """Its scope: `penstock.efo_consumer`."""
    prometheus: str
    """Its name in Prometheus; a histogram's series add `_bucket`, `_count` and `_sum`."""


@dataclass(frozen=True, kw_only=True)
class SpanReference:
    """A span."""

    name: str
    kind: str
    """`internal` or `client`."""
    meaning: str
    package: str
    instrumentation: str


@dataclass(frozen=True, kw_only=True)
class Reference:
    """All that Penstock emits, sorted by package and name."""

    spans: tuple[SpanReference, ...]
    metrics: tuple[MetricReference, ...]

    def markdown(self) -> str:
        """Two tables."""
        lines = ["| span | package | kind | meaning |", "| --- | --- | --- | --- |"]
        lines += [f"| `{one.name}` | {one.package} | {one.kind} | {one.meaning} |" for one in self.spans]
        lines += [
            "",
            "| metric | instrumentation | kind, unit | Prometheus | meaning |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{one.name}` | `{one.instrumentation}` | {one.kind}, {one.unit} | `{one.prometheus}` | {one.meaning} |"
            for one in self.metrics
        ]
        return "\n".join(lines) + "\n"


@cache
def reference() -> Reference:
    """The reference of this release, collected from the declarations of all packages."""
    document = json.loads(files("penstock.telemetry").joinpath("reference.json").read_text(encoding="utf-8"))
    return Reference(
        spans=tuple(SpanReference(**one) for one in document["spans"]),
        metrics=tuple(MetricReference(**one) for one in document["metrics"]),
    )
