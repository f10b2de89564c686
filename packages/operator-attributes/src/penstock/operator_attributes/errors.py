"""Errors of this package, each with its facts as fields. `penstock errors CODE` explains the codes.

```
OperatorAttributesError
|- InvalidOptionError             an argument is outside of its range
|- InvalidDocumentError           JSON that holds no graph or plan
|- CompileError                   the graph cannot become a plan: five codes
|  `- FullDamOverUnboundedError   the end that an operator waits for never comes
`- SchedulingError                an event or a request does not fit the state of the job: nine codes
   |- SchedulerAwayError          the scheduler cannot be reached, failed, or is shutting down: two codes
   |- ClaimLostError              a claim expired, and another driver may hold it
   `- JobStoreError               the file of jobs cannot be used
```
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from penstock.rpc.errors import Code, CodedError


class OperatorAttributesError(Exception):
    """Base of all errors of this package."""


class InvalidOptionError(OperatorAttributesError, ValueError):
    """An argument is outside of its range.

    Cure: Give a value of the range that the message names.
    """

    def __init__(self, option: str, value: object, rule: str) -> None:
        super().__init__(f"{option} is {value!r}; it must be {rule}")
        self.option = option
        self.value = value
        self.rule = rule


class InvalidDocumentError(OperatorAttributesError, ValueError):
    """A text is not the JSON of a graph or of a plan; `path` says where it differs.

    Cure: Correct the text at `path`, or write it again with `to_json`.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"not a valid document at {path}: {reason}")
        self.path = path
        self.reason = reason


class CompileError(OperatorAttributesError, CodedError):
    """The graph cannot become a plan. The facts hold `call_site`, the `file:line` of the vertex, where it is known.

    Cure: Change the graph as the message says.
    """

    codes: ClassVar[Mapping[str, Code]] = {
        "INVALID_VERTEX": Code(
            when="A vertex contradicts its kind: a source with inputs, a sink that feeds another vertex.",
            message="{name!r}{place}: {reason}",
            cure="Give sources no inputs, and let sinks feed nothing; put an operator between them.",
        ),
        "DUPLICATE_NAME": Code(
            when="Two vertices have one name.",
            message="the name {name!r}{place} is used already{first}",
            cure="Give one of the two vertices another name.",
        ),
        "UNKNOWN_INPUT": Code(
            when="An input is not a vertex of the graph. `nearest` is the most similar name, or None.",
            message="{vertex!r}{place} reads {unknown!r}, which is not in the graph{hint}",
            cure="Correct the name of the input; `nearest` is the likely one.",
        ),
        "GRAPH_CYCLE": Code(
            when="Vertices depend on themselves. `cycle` names them along the edges, the first one again at the end.",
            message="the graph has a cycle: {path}; let one of them read what comes before the others",
            cure="Let one of the vertices in `cycle` read what comes before the others.",
        ),
        "UNBOUNDED_BLOCKING_EDGE": Code(
            when="An edge was declared BLOCKING, but its producer never finishes.",
            message="the edge {source!r} -> {target!r}{place} is declared blocking, but its source never ends",
            cure="Bound the source, or do not declare the edge blocking.",
        ),
    }

    @classmethod
    def at(cls, call_site: str, code: str, /, **facts: object) -> Self:
        """The error of a code, at a place of the user's code."""
        return cls.of(code, call_site=call_site, place=at(call_site), **facts)


class FullDamOverUnboundedError(CompileError):
    """An operator that emits only after the end of its input reads an input without end.

    Cure: Bound the source, or give the operator a window or trigger that fires earlier.
    """

    def __init__(self, operator: str, call_site: str, unbounded_sources: Sequence[str]) -> None:
        names = ", ".join(repr(name) for name in unbounded_sources)
        super().__init__(
            f"{operator!r}{at(call_site)} emits only after the end of its input, but reads from {names}, "
            "which never ends: bound that source, or give the operator a window or trigger that fires earlier"
        )
        self.operator = operator
        self.call_site = call_site
        self.unbounded_sources = tuple(unbounded_sources)


class SchedulingError(OperatorAttributesError, CodedError):
    """An event or a request does not fit the state of the job."""

    codes: ClassVar[Mapping[str, Code]] = {
        "UNKNOWN_STAGE": Code(
            when="The plan has no such stage.",
            message="the plan has no stage {stage_id!r}",
            cure="Report stages of the job's own plan; submit the graph again if it was changed.",
        ),
        "ILLEGAL_EVENT": Code(
            when="The event does not follow from the stage's state.",
            message="stage {stage_id!r} is {state}: {event} cannot follow",
            cure="Report events in order: started, then finished or failed. After a restart submit the job again, and "
            "continue from the answer.",
        ),
        "SLOT_BUDGET_EXCEEDED": Code(
            when="A stage was started that the slot budget has no room for now.",
            message="stage {stage_id!r} needs {needed} slots; {free} are free",
            cure="Wait for a stage to end, or raise `slots`.",
        ),
        "INSUFFICIENT_SLOTS": Code(
            when="Live stages hold their slots until the job ends, and all of them together do not fit the budget.",
            message="the live stages need {needed} slots at the same time; the budget is {slots}",
            cure="Raise `slots` to what is needed, or split the job.",
        ),
        "UNKNOWN_JOB": Code(
            when="The scheduler knows no such job.",
            message="no such job: {job_id!r}",
            cure="Check the id, and submit the job again if the scheduler was started without a store.",
        ),
        "JOB_EXISTS": Code(
            when="Another graph was submitted under this job id.",
            message="job {job_id!r} exists with another graph: submit this one under another id",
            cure="Submit the changed graph under another id, or with `restart`.",
        ),
        "TOO_MANY_JOBS": Code(
            when="The scheduler holds its limit of jobs, none of which has ended.",
            message="{limit} jobs are running, which is the limit",
            cure="Let jobs end, or raise `--max-jobs`.",
        ),
        "STAGE_NOT_RESUMABLE": Code(
            when="A stage was to be resumed by hand whose state does not allow it.",
            message="stage {stage_id!r} cannot be resumed: {reason}",
            cure="Do what `reason` says.",
        ),
        "SCHEDULER_OF_OTHER_PROCESS": Code(
            when="A blocking scheduler was used after a fork. It lives in the process that opened it.",
            message="the stage scheduler was opened in process {opened_in} and used in {used_in}: open another",
            cure="Open a scheduler in each process.",
        ),
    }


class SchedulerAwayError(SchedulingError):
    """The stage scheduler could not be reached, failed, or is shutting down; `status` is the name of the gRPC status.

    Cure: Follow `status`: UNAVAILABLE means that no service answers at the endpoint, UNAUTHENTICATED that the token is
    wrong.
    """

    codes: ClassVar[Mapping[str, Code]] = {
        "SCHEDULER_CLOSED": Code(
            when="The scheduler is shutting down; the job may continue at another one.",
            message="the stage scheduler is shutting down",
            cure="Call again when it is back; runs of pipelines continue meanwhile.",
        ),
        "SCHEDULER_CALL_FAILED": Code(
            when="The service could not be reached, or failed.",
            message="the stage scheduler answered {status}: {details}",
            cure="Follow `status`: UNAVAILABLE means that no service answers at the endpoint, UNAUTHENTICATED that the "
            "token is wrong.",
        ),
    }

    @property
    def status(self) -> str:
        """The name of the gRPC status."""
        return str(self.facts.get("status", "UNAVAILABLE"))


class ClaimLostError(SchedulingError):
    """The caller no longer holds the claim with this token: it expired, was taken over or released.

    Cure: Do not commit: ask again, another driver may have computed the result.
    """

    def __init__(self, store: str, fingerprint: str, token: int) -> None:
        super().__init__(f"claim {token} on {fingerprint!r} in {store!r} was lost: do not commit its result")
        self.store = store
        self.fingerprint = fingerprint
        self.token = token


class JobStoreError(SchedulingError):
    """The file of jobs and claims cannot be used; nothing was changed.

    Cure: Let one service use the file, on a disk with room, in a folder that it may write.
    """

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(f"the job store {store!r} cannot be used: {reason}")
        self.store = store
        self.reason = reason

    def for_clients(self) -> "JobStoreError":
        """Without the file's place, which is the service's own."""
        return JobStoreError("of the scheduler", "the service's log says why")


def at(call_site: str) -> str:
    """` (file:line)`; empty if the call site is unknown."""
    return f" ({call_site})" if call_site else ""
