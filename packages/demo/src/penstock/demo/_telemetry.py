"""Spans as JSON lines, one file per process.

Libraries ask the OpenTelemetry API for a tracer. In every process of the demo, Spark's workers included, the API finds
this provider by its entry point, because `OTEL_PYTHON_TRACER_PROVIDER` names it.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

FOLDER_VARIABLE = "PENSTOCK_DEMO_SPANS"
PROVIDER_NAME = "penstock_demo"


class JsonLinesSpanExporter(SpanExporter):
    """Appends each span to `spans-<pid>.jsonl` in a folder. Survives a fork: the child writes a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # The parent may have held the lock at the fork.
        self._lock = threading.Lock()
        self._file = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans, a line each, at once: a process that is killed loses none that ended."""
        lines = "".join(span.to_json(indent=None) + "\n" for span in spans)
        with self._lock:
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = (self._folder / f"spans-{os.getpid()}.jsonl").open("a", encoding="utf-8")
            self._file.write(lines)
            self._file.flush()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def create_tracer_provider() -> TracerProvider:
    """The provider behind the entry point `penstock_demo`."""
    provider = TracerProvider(resource=Resource.create({"process.pid": os.getpid()}))
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        provider.add_span_processor(SimpleSpanProcessor(JsonLinesSpanExporter(Path(folder))))
    return provider


def telemetry_environment(folder: Path) -> dict[str, str]:
    """Variables for a child process: where its spans go."""
    return {"OTEL_PYTHON_TRACER_PROVIDER": PROVIDER_NAME, FOLDER_VARIABLE: str(folder)}


def merge_spans(folder: Path, target: Path) -> int:
    """Gather the files of all processes into one, and count the spans."""
    count = 0
    with target.open("w", encoding="utf-8") as merged:
        for file in sorted(folder.glob("spans-*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                # A process that was killed may have left half a line.
                if line.endswith("}"):
                    merged.write(line + "\n")
                    count += 1
    return count
