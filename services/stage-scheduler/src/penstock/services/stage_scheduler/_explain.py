"""Explain a job that is written down as JSON, or one of a service as it stands."""

import sys
from pathlib import Path

from penstock.operator_attributes import (
    JobGraph,
    JobStatus,
    StagePlan,
    compile,
    estimate,
    explain,
    graphviz,
    html,
    measures_of,
    mermaid,
    svg,
)
from penstock.operator_attributes.errors import CompileError, InvalidDocumentError, InvalidOptionError
from penstock.services.stage_scheduler._serve import KIND
from penstock.terminal import ExitCode

FORMATS = ("text", "mermaid", "dot", "svg", "html", "json")


def explain_file(path: str, form: str) -> int:
    """Print the plan of the graph in a file, `-` being standard input, in one of `FORMATS`. Returns the exit code."""
    try:
        # Not as the locale has it.
        document = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        sys.stdout.write(render(compile(JobGraph.from_json(document.decode())), form))
    except BrokenPipeError:
        raise
    except OSError as error:
        cure = "name a file that holds a job graph as JSON, or - for standard input"
        return KIND.refuse(f"{path!r} cannot be read ({error.strerror}): {cure}")
    except (UnicodeDecodeError, InvalidDocumentError) as error:
        return KIND.refuse(f"{path!r} holds no job graph ({error}): `Pipeline.graph().to_json()` gives one")
    except (CompileError, InvalidOptionError) as error:
        return KIND.refuse(error, code=ExitCode.FAILED)
    return ExitCode.OK


def render(plan: StagePlan, form: str, job: JobStatus | None = None) -> str:
    """A plan in one of `FORMATS`; with a job, how far each stage has come, but for JSON.

    What staging saves is reported as soon as all batch stages have been measured.
    """
    progress = {stage.stage_id: stage.progress for stage in job.stages} if job is not None else {}
    committed = {stage_id for stage_id, one in progress.items() if one.state.committed}
    measured = bool(progress) and committed.issuperset(stage.id for stage in plan.stages if stage.bounded)
    saved = estimate(plan, measures_of(progress)) if measured else None
    match form:
        case "mermaid":
            return mermaid(plan, progress)
        case "dot":
            return graphviz(plan, progress)
        case "svg":
            return svg(plan, progress, estimate=saved)
        case "html":
            return html(plan, progress, estimate=saved)
        case "json":
            return plan.to_json()
        case _:
            return explain(plan, progress)
