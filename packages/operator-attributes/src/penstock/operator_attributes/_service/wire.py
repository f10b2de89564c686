"""The contract `penstock.proto.stage_scheduler.v1` to and from the objects of this package."""

import grpc

from penstock.operator_attributes._compile.regions import CyclicRegions
from penstock.operator_attributes._graph.attributes import OperatorAttributes
from penstock.operator_attributes._graph.graph import (
    Boundedness,
    Input,
    JobGraph,
    ResultPartitionType,
    Vertex,
    VertexKind,
)
from penstock.operator_attributes._schedule.api import JobStatus, StageStatus
from penstock.operator_attributes._schedule.claims import Claim, ClaimDecision
from penstock.operator_attributes._schedule.states import (
    StageEvent,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StageProgress,
    StageRestarted,
    StageReused,
    StageStarted,
    StageState,
)
from penstock.operator_attributes.errors import (
    ClaimLostError,
    CompileError,
    IllegalEventError,
    InsufficientSlotsError,
    InvalidDocumentError,
    InvalidOptionError,
    JobExistsError,
    JobStoreError,
    SchedulerClosedError,
    SlotBudgetExceededError,
    TooManyJobsError,
    UnknownJobError,
    UnknownStageError,
)
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["StageSchedulerService"].full_name

STATUS_TABLE: dict[type[BaseException], grpc.StatusCode] = {
    CompileError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidOptionError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidDocumentError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownJobError: grpc.StatusCode.NOT_FOUND,
    UnknownStageError: grpc.StatusCode.NOT_FOUND,
    JobExistsError: grpc.StatusCode.ALREADY_EXISTS,
    IllegalEventError: grpc.StatusCode.FAILED_PRECONDITION,
    SlotBudgetExceededError: grpc.StatusCode.FAILED_PRECONDITION,
    InsufficientSlotsError: grpc.StatusCode.FAILED_PRECONDITION,
    TooManyJobsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ClaimLostError: grpc.StatusCode.ABORTED,
    SchedulerClosedError: grpc.StatusCode.UNAVAILABLE,
    JobStoreError: grpc.StatusCode.INTERNAL,
}

_KINDS = {
    VertexKind.SOURCE: pb.VERTEX_KIND_SOURCE,
    VertexKind.OPERATOR: pb.VERTEX_KIND_OPERATOR,
    VertexKind.SINK: pb.VERTEX_KIND_SINK,
}
_TYPES = {
    ResultPartitionType.UNDECIDED: pb.RESULT_PARTITION_TYPE_UNSPECIFIED,
    ResultPartitionType.PIPELINED: pb.RESULT_PARTITION_TYPE_PIPELINED,
    ResultPartitionType.BLOCKING: pb.RESULT_PARTITION_TYPE_BLOCKING,
}
_STATES = {
    StageState.WAITING: pb.STAGE_STATE_WAITING,
    StageState.READY: pb.STAGE_STATE_READY,
    StageState.RUNNING: pb.STAGE_STATE_RUNNING,
    StageState.FINISHED: pb.STAGE_STATE_FINISHED,
    StageState.FAILED: pb.STAGE_STATE_FAILED,
    StageState.SKIPPED: pb.STAGE_STATE_SKIPPED,
    StageState.REUSED: pb.STAGE_STATE_REUSED,
    StageState.INTERRUPTED: pb.STAGE_STATE_INTERRUPTED,
}
_EVENTS: dict[type[StageEvent], pb.StageEventType.ValueType] = {
    StageStarted: pb.STAGE_EVENT_TYPE_STARTED,
    StageFinished: pb.STAGE_EVENT_TYPE_FINISHED,
    StageFailed: pb.STAGE_EVENT_TYPE_FAILED,
    StageReused: pb.STAGE_EVENT_TYPE_REUSED,
    StageLost: pb.STAGE_EVENT_TYPE_LOST,
    StageInterrupted: pb.STAGE_EVENT_TYPE_INTERRUPTED,
    StageRestarted: pb.STAGE_EVENT_TYPE_RESTARTED,
}
CYCLIC_REGIONS = {
    CyclicRegions.READ_TWICE: pb.CYCLIC_REGIONS_READ_TWICE,
    CyclicRegions.MERGE: pb.CYCLIC_REGIONS_MERGE,
    CyclicRegions.HAND_OVER: pb.CYCLIC_REGIONS_HAND_OVER,
    CyclicRegions.PER_RESULT: pb.CYCLIC_REGIONS_PER_RESULT,
}
_CYCLIC_REGIONS_OF = {
    pb.CYCLIC_REGIONS_UNSPECIFIED: CyclicRegions.READ_TWICE,
    **{value: rule for rule, value in CYCLIC_REGIONS.items()},
}
_KIND_OF = {value: kind for kind, value in _KINDS.items()}
_TYPE_OF = {value: kind for kind, value in _TYPES.items()}
_STATE_OF = {value: state for state, value in _STATES.items()}


def graph_to_wire(graph: JobGraph) -> pb.JobGraph:
    """A graph for Submit."""
    return pb.JobGraph(
        name=graph.name,
        vertices=[
            pb.Vertex(
                name=vertex.name,
                kind=_KINDS[vertex.kind],
                bounded=vertex.boundedness is Boundedness.BOUNDED,
                output_only_after_end_of_stream=vertex.attributes.output_only_after_end_of_stream,
                internal_sorter_supported=vertex.attributes.internal_sorter_supported,
                chained=bool(vertex.chained),
                keyed=vertex.keyed,
                parallelism=vertex.parallelism,
                call_site=vertex.call_site,
            )
            for vertex in graph
        ],
        edges=[
            pb.Edge(
                source=one.source,
                target=vertex.name,
                partition_type=_TYPES[one.partition_type],
                keyed=one.keyed,
            )
            for vertex in graph
            for one in vertex.inputs
        ],
    )


def graph_from_wire(message: pb.JobGraph) -> JobGraph:
    """A graph from Submit.

    Raises:
        InvalidDocumentError: the message does not hold a graph.
        InvalidVertexError, InvalidOptionError: a vertex contradicts its kind, or has an impossible value.
        DuplicateNameError: two vertices have one name.
    """
    inputs: dict[str, list[Input]] = {vertex.name: [] for vertex in message.vertices}
    for number, edge in enumerate(message.edges):
        if edge.target not in inputs:
            raise InvalidDocumentError(f"graph.edges[{number}].target", f"no vertex is named {edge.target!r}")
        if edge.partition_type not in _TYPE_OF:
            raise InvalidDocumentError(f"graph.edges[{number}].partition_type", "unknown value")
        inputs[edge.target].append(Input(edge.source, edge.keyed, _TYPE_OF[edge.partition_type]))
    graph = JobGraph(message.name)
    for number, vertex in enumerate(message.vertices):
        if vertex.kind not in _KIND_OF:
            raise InvalidDocumentError(f"graph.vertices[{number}].kind", "unknown value")
        kind = _KIND_OF[vertex.kind]
        bounded = Boundedness.BOUNDED if vertex.bounded else Boundedness.UNBOUNDED
        graph.add(
            Vertex(
                name=vertex.name,
                kind=kind,
                inputs=tuple(inputs[vertex.name]),
                boundedness=bounded if kind is VertexKind.SOURCE else None,
                attributes=OperatorAttributes(
                    output_only_after_end_of_stream=vertex.output_only_after_end_of_stream,
                    internal_sorter_supported=vertex.internal_sorter_supported,
                ),
                chained=vertex.chained,
                parallelism=vertex.parallelism,
                call_site=vertex.call_site,
            )
        )
    return graph


def cyclic_regions_from_wire(value: pb.CyclicRegions.ValueType) -> CyclicRegions:
    """The rule of Submit. Raises: InvalidDocumentError."""
    try:
        return _CYCLIC_REGIONS_OF[value]
    except KeyError:
        raise InvalidDocumentError("cyclic_regions", "unknown value") from None


def event_to_wire(job_id: str, event: StageEvent) -> pb.ReportRequest:
    """A request for Report. The scheduler's own clock says when it was."""
    request = pb.ReportRequest(job_id=job_id, stage_id=event.stage_id, event=_EVENTS[type(event)])
    match event:
        case StageFailed():
            request.error = event.error
            request.final = not event.retryable
        case StageFinished() | StageReused():
            if event.rows is not None:
                request.rows = event.rows
            if event.size_bytes is not None:
                request.size_bytes = event.size_bytes
        case StageLost() | StageRestarted():
            request.error = event.error
        case StageStarted() | StageInterrupted():
            pass
    return request


def event_from_wire(request: pb.ReportRequest) -> StageEvent:
    """An event from Report. Raises: InvalidDocumentError."""
    rows = request.rows if request.HasField("rows") else None
    size_bytes = request.size_bytes if request.HasField("size_bytes") else None
    match request.event:
        case pb.STAGE_EVENT_TYPE_STARTED:
            return StageStarted(stage_id=request.stage_id)
        case pb.STAGE_EVENT_TYPE_FINISHED:
            return StageFinished(stage_id=request.stage_id, rows=rows, size_bytes=size_bytes)
        case pb.STAGE_EVENT_TYPE_FAILED:
            return StageFailed(stage_id=request.stage_id, error=request.error, retryable=not request.final)
        case pb.STAGE_EVENT_TYPE_REUSED:
            return StageReused(stage_id=request.stage_id, rows=rows, size_bytes=size_bytes)
        case pb.STAGE_EVENT_TYPE_LOST:
            return StageLost(stage_id=request.stage_id, error=request.error)
        case pb.STAGE_EVENT_TYPE_INTERRUPTED:
            return StageInterrupted(stage_id=request.stage_id)
        case pb.STAGE_EVENT_TYPE_RESTARTED:
            return StageRestarted(stage_id=request.stage_id, error=request.error)
    raise InvalidDocumentError("event", "unknown value")


def job_to_wire(job: JobStatus) -> pb.Job:
    """A job, for every response."""
    return pb.Job(
        job_id=job.job_id,
        name=job.name,
        stages=[
            pb.Stage(
                stage_id=stage.stage_id,
                name=stage.name,
                vertices=stage.vertices,
                blocking_inputs=stage.blocking_inputs,
                bounded=stage.bounded,
                reason=stage.reason,
                state=_STATES[stage.progress.state],
                attempts=stage.progress.attempts,
                error=stage.progress.error,
                seconds=stage.progress.seconds,
                rows=stage.progress.rows,
                size_bytes=stage.progress.size_bytes,
                slots=stage.slots,
            )
            for stage in job.stages
        ],
        deployable=job.deployable,
        version=job.version,
        slots=job.slots or 0,
    )


def job_from_wire(message: pb.Job) -> JobStatus:
    """A job, from every response. A state that this side does not know yet counts as WAITING."""
    return JobStatus(
        job_id=message.job_id,
        name=message.name,
        stages=tuple(
            StageStatus(
                stage_id=stage.stage_id,
                name=stage.name,
                vertices=tuple(stage.vertices),
                blocking_inputs=tuple(stage.blocking_inputs),
                bounded=stage.bounded,
                reason=stage.reason,
                progress=StageProgress(
                    state=_STATE_OF.get(stage.state, StageState.WAITING),
                    attempts=stage.attempts,
                    error=stage.error,
                    seconds=stage.seconds,
                    rows=stage.rows if stage.HasField("rows") else None,
                    size_bytes=stage.size_bytes if stage.HasField("size_bytes") else None,
                ),
                slots=stage.slots,
            )
            for stage in message.stages
        ),
        deployable=tuple(message.deployable),
        version=message.version,
        slots=message.slots or None,
    )


_DECISIONS = {
    ClaimDecision.COMPUTE: pb.CLAIM_DECISION_COMPUTE,
    ClaimDecision.WAIT: pb.CLAIM_DECISION_WAIT,
    ClaimDecision.REUSE: pb.CLAIM_DECISION_REUSE,
}
_DECISION_OF = {value: decision for decision, value in _DECISIONS.items()}

ClaimReference = pb.RenewClaimRequest | pb.CommitClaimRequest | pb.ReleaseClaimRequest | pb.ForgetClaimRequest


def claim_to_wire(claim: Claim) -> pb.ClaimResponse:
    """The answer to Claim."""
    return pb.ClaimResponse(
        decision=_DECISIONS[claim.decision],
        token=claim.token,
        owner=claim.owner,
        expires_seconds=claim.expires_seconds,
        renewals=claim.renewals,
        location=claim.location,
        rows=claim.rows,
        size_bytes=claim.size_bytes,
    )


def claim_from_wire(store: str, fingerprint: str, response: pb.ClaimResponse) -> Claim:
    """The answer to Claim. Raises: InvalidDocumentError."""
    if response.decision not in _DECISION_OF:
        raise InvalidDocumentError("decision", "unknown value")
    return Claim(
        store=store,
        fingerprint=fingerprint,
        decision=_DECISION_OF[response.decision],
        owner=response.owner,
        token=response.token,
        expires_seconds=response.expires_seconds,
        renewals=response.renewals,
        location=response.location,
        rows=response.rows if response.HasField("rows") else None,
        size_bytes=response.size_bytes if response.HasField("size_bytes") else None,
    )


def commit_to_wire(claim: Claim, *, location: str, rows: int | None, size_bytes: int | None) -> pb.CommitClaimRequest:
    """A request for CommitClaim."""
    return pb.CommitClaimRequest(
        store=claim.store,
        fingerprint=claim.fingerprint,
        token=claim.token,
        location=location,
        rows=rows,
        size_bytes=size_bytes,
    )


def reference_from_wire(request: ClaimReference) -> Claim:
    """The claim that a request is about, as far as the request says."""
    return Claim(
        store=request.store,
        fingerprint=request.fingerprint,
        decision=ClaimDecision.COMPUTE,
        owner="",
        token=request.token,
    )
