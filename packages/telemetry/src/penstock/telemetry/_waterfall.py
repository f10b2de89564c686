"""A trace as a picture: a bar per span, below its parent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any, Final

_COLOURS: Final = {
    "penstock.demo": "#64748b",
    "penstock.registration": "#9333ea",
    "penstock.efo_consumer": "#0284c7",
    "penstock.spark_plugin": "#ea580c",
    "penstock.async_sink": "#16a34a",
    "penstock.operator_attributes": "#ca8a04",
}
_OTHER: Final = "#94a3b8"
_ROW, _LEFT, _WIDTH, _TOP = 20, 330, 1100, 54
_MAX_ROWS: Final = 40


@dataclass(frozen=True, slots=True)
class _Bar:
    name: str
    scope: str
    process: str
    depth: int
    start: float
    end: float


def waterfall(lines: Iterable[str], *, trace_id: str | None = None, max_rows: int = _MAX_ROWS) -> str:
    """Draw one trace as SVG.

    Of siblings of one name the first are shown, with the number of all, so that a trace of thousands of spans
    fits on a page.

    Args:
        lines: spans as JSON, one a line, as the SDK's `ReadableSpan.to_json` writes them.
        trace_id: as the spans have it; default: that of the most spans.
        max_rows: bars at most.

    Raises:
        ValueError: the trace is not there, or a line is not a span.
    """
    spans = [_span(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    of_trace: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        of_trace.setdefault(span["context"]["trace_id"], []).append(span)
    if not of_trace or (trace_id is not None and trace_id not in of_trace):
        raise ValueError(f"there is no trace {trace_id or ''}among {len(spans)} spans")
    chosen = of_trace[trace_id] if trace_id is not None else max(of_trace.values(), key=len)
    bars = _bars(chosen, max_rows)
    return _svg(
        bars, len(chosen), len({span.get("resource", {}).get("attributes", {}).get("process.pid") for span in chosen})
    )


def _span(line: str, number: int) -> dict[str, Any]:
    try:
        span: dict[str, Any] = json.loads(line)
        _ = span["name"], span["parent_id"], span["context"]["trace_id"], span["context"]["span_id"]
        _ = _seconds(span["start_time"]), _seconds(span["end_time"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"line {number} is not an ended span as the SDK writes it: {error!r}") from error
    return span


def _bars(spans: list[dict[str, Any]], max_rows: int) -> list[_Bar]:
    ids = {span["context"]["span_id"] for span in spans}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for span in sorted(spans, key=lambda one: str(one["start_time"])):
        parent = span["parent_id"] if span["parent_id"] in ids else None
        children.setdefault(parent, []).append(span)
    for per_name in (3, 2, 1):
        bars = _walk(children, per_name)
        if len(bars) <= max_rows:
            break
    return bars[:max_rows]


def _walk(children: dict[str | None, list[dict[str, Any]]], per_name: int) -> list[_Bar]:
    bars: list[_Bar] = []

    def add(parent: str | None, depth: int) -> None:
        siblings = children.get(parent, [])
        counts: dict[str, int] = {}
        for one in siblings:
            counts[one["name"]] = counts.get(one["name"], 0) + 1
        shown: dict[str, int] = {}
        # Those that took part in most are shown: an idle micro-batch shows little.
        wanted = {
            id(one)
            for name in counts
            for one in sorted((one for one in siblings if one["name"] == name), key=lambda one: -_size(children, one))[
                :per_name
            ]
        }
        for one in siblings:
            if id(one) not in wanted:
                continue
            name = one["name"]
            shown[name] = shown.get(name, 0) + 1
            hidden = counts[name] - min(counts[name], per_name)
            label = f"{name}  (+{hidden} more)" if hidden and shown[name] == min(counts[name], per_name) else name
            process = str(one.get("resource", {}).get("attributes", {}).get("process.pid", ""))
            scope = one.get("instrumentation_scope", {}).get("name") or "penstock." + name.partition(".")[0]
            bars.append(_Bar(label, scope, process, depth, _seconds(one["start_time"]), _seconds(one["end_time"])))
            add(one["context"]["span_id"], depth + 1)

    add(None, 0)
    return bars


def _size(children: dict[str | None, list[dict[str, Any]]], span: dict[str, Any]) -> int:
    pending, size = [span], 0
    while pending:
        one = pending.pop()
        size += 1
        pending += children.get(one["context"]["span_id"], [])
    return size


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _svg(bars: list[_Bar], spans: int, processes: int) -> str:
    first, last = min(bar.start for bar in bars), max(bar.end for bar in bars)
    span_seconds = max(last - first, 1e-6)
    scale = (_WIDTH - _LEFT - 90) / span_seconds
    height = _TOP + _ROW * len(bars) + 16
    title = f"One trace: {spans} spans of {processes} processes in {span_seconds:.1f} s"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="600" fill="#0f172a">{escape(title)}</text>',
    ]
    for part in range(5):
        x = _LEFT + scale * span_seconds * part / 4
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP - 10}" x2="{x:.1f}" y2="{height - 12}" stroke="#e2e8f0"/>')
        label = f"{span_seconds * part / 4:.1f} s"
        parts.append(f'<text x="{x:.1f}" y="{_TOP - 16}" fill="#64748b" text-anchor="middle">{label}</text>')
    for row, bar in enumerate(bars):
        y = _TOP + row * _ROW
        x, width = _LEFT + scale * (bar.start - first), max(scale * (bar.end - bar.start), 1.5)
        took = bar.end - bar.start
        label = f"{took:.2f} s" if took >= 1 else f"{took * 1000:.1f} ms"
        colour = _COLOURS.get(bar.scope, _OTHER)
        parts += [
            f'<text x="{12 + 10 * bar.depth}" y="{y + 13}" fill="#0f172a">{escape(bar.name)}</text>',
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 7}" rx="2" fill="{colour}">'
            f"<title>{escape(bar.name)}: {label}, process {escape(bar.process)}</title></rect>",
            f'<text x="{x + width + 4:.1f}" y="{y + 13}" fill="#475569" font-size="11">{label}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
