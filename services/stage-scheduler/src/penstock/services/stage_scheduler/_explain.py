"""Explain a job that is written down as JSON."""

import sys
from pathlib import Path

from penstock.operator_attributes import JobGraph, StagePlan, compile

FORMATS = ("text", "mermaid", "dot", "svg", "html", "json")


def explain_file(path: str, form: str) -> str:
    """The plan of the graph in a file, `-` being standard input, in one of `FORMATS`.

    Raises:
        OSError: The file cannot be read.
        InvalidDocumentError: It holds no graph.
        CompileError: The graph cannot become a plan.
    """
    text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    return render(compile(JobGraph.from_json(text)), form)


def render(plan: StagePlan, form: str) -> str:
    """A plan in one of `FORMATS`."""
    match form:
        case "mermaid":
            return plan.mermaid()
        case "dot":
            return plan.graphviz()
        case "svg":
            return plan.svg()
        case "html":
            return plan.html()
        case "json":
            return plan.to_json()
        case _:
            return plan.explain()
