"""Errors of this package, each with its facts as fields.

```
OperatorAttributesError
|- InvalidOptionError             an argument is outside of its range
|- InvalidDocumentError           JSON that holds no graph or plan
|- CompileError                   the graph cannot become a plan
|  |- InvalidVertexError          a vertex contradicts its kind
|  |- DuplicateNameError          two vertices have one name
|  |- UnknownInputError           an input is not a vertex of the graph
|  |- CycleError                  vertices depend on themselves
|  |- FullDamOverUnboundedError   the end that an operator waits for never comes
|  `- UnboundedBlockingEdgeError  an edge that waits for all records of a source without end
`- SchedulingError                an event or a request does not fit the state of the job
   |- UnknownStageError
   |- IllegalEventError
   |- SlotBudgetExceededError     a stage was started without a free slot
   |- InsufficientSlotsError      the live stages do not fit the budget at once
   |- UnknownJobError
   |- JobExistsError              another graph has this job id
   |- TooManyJobsError            no ended job could be forgotten for the new one
   |- SchedulerClosedError        the scheduler is going away; the job may go on at another one
   |- ClaimLostError              a claim ran out, and another driver may have it
   |- JobStoreError               the file of jobs cannot be used
   |- WrongProcessError           a blocking scheduler was used after a fork
   `- RemoteSchedulerError        the service could not be reached, or failed
```

Each takes its facts as keyword arguments of the same names, so that it can be made again behind a gRPC call.
"""

from collections.abc import Sequence


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

    Cure: Correct the text at `path`, or write it anew by `to_json`.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"not a valid document at {path}: {reason}")
        self.path = path
        self.reason = reason


class CompileError(OperatorAttributesError):
    """The graph cannot become a plan.

    Cure: Change the graph as the message says.
    """


class InvalidVertexError(CompileError):
    """A vertex contradicts its kind: a source with inputs, a sink that feeds another vertex.

    Cure: Let sources have no inputs and sinks feed nothing; use an operator between.
    """

    def __init__(self, name: str, reason: str, call_site: str = "") -> None:
        super().__init__(f"{name!r}{at(call_site)}: {reason}")
        self.name = name
        self.reason = reason
        self.call_site = call_site


class DuplicateNameError(CompileError):
    """Two vertices have one name.

    Cure: Give one of the two another name.
    """

    def __init__(self, name: str, first_call_site: str, second_call_site: str) -> None:
        super().__init__(
            f"the name {name!r}{at(second_call_site)} is taken already"
            + (f" by the vertex{at(first_call_site)}" if first_call_site else "")
        )
        self.name = name
        self.first_call_site = first_call_site
        self.second_call_site = second_call_site


class UnknownInputError(CompileError):
    """An input is not a vertex of the graph; `nearest` is the name that resembles it most, or None.

    Cure: Correct the name; `nearest` is the likely one.
    """

    def __init__(self, vertex: str, unknown: str, nearest: str | None = None, call_site: str = "") -> None:
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        super().__init__(f"{vertex!r}{at(call_site)} reads {unknown!r}, which is not in the graph{hint}")
        self.vertex = vertex
        self.unknown = unknown
        self.nearest = nearest
        self.call_site = call_site


class CycleError(CompileError):
    """Vertices depend on themselves; `cycle` names them along the edges, the first one repeated last.

    `call_sites` has the place of each, where it is known.

    Cure: Let one of the vertices in `cycle` read what comes before the others.
    """

    def __init__(self, cycle: Sequence[str], call_sites: Sequence[str] = ()) -> None:
        sites = [*call_sites, *[""] * (len(cycle) - len(call_sites))]
        # The first one is there again at the end: its place is given once.
        named = [
            name + at(site if place < len(cycle) - 1 else "")
            for place, (name, site) in enumerate(zip(cycle, sites, strict=True))
        ]
        super().__init__(
            "the graph has a cycle: " + " -> ".join(named) + "; let one of them read what comes before the others"
        )
        self.cycle = tuple(cycle)
        self.call_sites = tuple(call_sites)


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


class UnboundedBlockingEdgeError(CompileError):
    """An edge was declared BLOCKING, but its producer never finishes.

    Cure: Bound the source, or do not declare the edge blocking.
    """

    def __init__(self, source: str, target: str, call_site: str) -> None:
        super().__init__(
            f"the edge {source!r} -> {target!r}{at(call_site)} is declared blocking, but its source never ends"
        )
        self.source = source
        self.target = target
        self.call_site = call_site


class SchedulingError(OperatorAttributesError):
    """An event or a request does not fit the state of the job."""


class UnknownStageError(SchedulingError, LookupError):
    """The plan has no such stage.

    Cure: Report stages of the job's own plan; submit the graph again if it was changed.
    """

    def __init__(self, stage_id: str) -> None:
        super().__init__(f"the plan has no stage {stage_id!r}")
        self.stage_id = stage_id


class IllegalEventError(SchedulingError):
    """The event does not follow from the stage's state.

    Cure: Report events in order: started, then finished or failed. After a restart submit the job again, and go on from
    the answer.
    """

    def __init__(self, stage_id: str, state: str, event: str) -> None:
        super().__init__(f"stage {stage_id!r} is {state}: {event} cannot follow")
        self.stage_id = stage_id
        self.state = state
        self.event = event


class SlotBudgetExceededError(SchedulingError):
    """A stage was started that the slot budget has no room for now.

    Cure: Wait for a stage to end, or raise `slots`.
    """

    def __init__(self, stage_id: str, needed: int, free: int) -> None:
        super().__init__(f"stage {stage_id!r} needs {needed} slots; {free} are free")
        self.stage_id = stage_id
        self.needed = needed
        self.free = free


class InsufficientSlotsError(SchedulingError):
    """Live stages hold their slots for ever, and all of them together do not fit the budget.

    Cure: Raise `slots` to what is needed, or split the job.
    """

    def __init__(self, needed: int, slots: int) -> None:
        super().__init__(f"the live stages need {needed} slots at the same time; the budget is {slots}")
        self.needed = needed
        self.slots = slots


class UnknownJobError(SchedulingError, LookupError):
    """The scheduler knows no such job.

    Cure: Check the id, and submit the job again if the scheduler was started without a store.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no such job: {job_id!r}")
        self.job_id = job_id


class JobExistsError(SchedulingError):
    """Another graph was submitted under this job id.

    Cure: Submit the changed graph under another id, or with `restart`.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} exists with another graph: submit this one under another id")
        self.job_id = job_id


class TooManyJobsError(SchedulingError):
    """The scheduler holds its limit of jobs, none of which has ended.

    Cure: Let jobs end, or raise `--max-jobs`.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} jobs are under way, which is the limit")
        self.limit = limit


class SchedulerClosedError(SchedulingError):
    """The scheduler is going away; the job may go on at another one.

    Cure: Call again when it is back; runs of pipelines go on meanwhile.
    """

    def __init__(self) -> None:
        super().__init__("the stage scheduler is shutting down")


class ClaimLostError(SchedulingError):
    """The claim with this token is not the caller's any more: it ran out, was taken over or given up.

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


class WrongProcessError(SchedulingError):
    """A blocking scheduler lives in the process that opened it: after a fork, open another one.

    Cure: Open a scheduler in each process.
    """

    def __init__(self, opened_in: int, used_in: int) -> None:
        super().__init__(f"the stage scheduler was opened in process {opened_in} and used in {used_in}: open another")
        self.opened_in = opened_in
        self.used_in = used_in


class RemoteSchedulerError(SchedulingError):
    """The service could not be reached, or failed; `code` is the name of the gRPC status.

    Cure: Follow `code`: UNAVAILABLE means that nobody answers at the endpoint, UNAUTHENTICATED that the token is wrong.
    """

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"the stage scheduler answered {code}: {details}")
        self.code = code
        self.details = details


def at(call_site: str) -> str:
    """` (file:line)`, or nothing where the call site is not known."""
    return f" ({call_site})" if call_site else ""
