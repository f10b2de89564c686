"""The stage scheduler behind gRPC: contract, client and servicer."""

from dataclasses import replace
from functools import partial
from typing import Any, Final

import grpc

from penstock.operator_attributes import errors
from penstock.operator_attributes._compile.attributes import OperatorAttributes
from penstock.operator_attributes._compile.compile import compile
from penstock.operator_attributes._compile.graph import (
    Boundedness,
    Input,
    JobGraph,
    ResultPartitionType,
    Vertex,
    VertexKind,
)
from penstock.operator_attributes._compile.plan import StagePlan
from penstock.operator_attributes._compile.regions import CyclicRegions
from penstock.operator_attributes._schedule.api import StageSchedulerApi
from penstock.operator_attributes._schedule.claims import Claim, ClaimDecision
from penstock.operator_attributes._schedule.states import EVENT_KINDS, StageFailed, StageState, event_name
from penstock.operator_attributes.errors import (
    ClaimLostError,
    CompileError,
    InvalidDocumentError,
    InvalidOptionError,
    JobStoreError,
    OperatorAttributesError,
    SchedulerAwayError,
)
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb
from penstock.rpc import (
    ClientSecurity,
    Contract,
    Messages,
    RemoteApi,
    Rpc,
    Servicer,
    StatusTable,
    calls,
    errors_as_status,
    typed_error,
    when_refused,
)

STATUS_TABLE: StatusTable = {
    CompileError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidOptionError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidDocumentError: grpc.StatusCode.INVALID_ARGUMENT,
    "UNKNOWN_JOB": grpc.StatusCode.NOT_FOUND,
    "UNKNOWN_STAGE": grpc.StatusCode.NOT_FOUND,
    "JOB_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "ILLEGAL_EVENT": grpc.StatusCode.FAILED_PRECONDITION,
    "SLOT_BUDGET_EXCEEDED": grpc.StatusCode.FAILED_PRECONDITION,
    "INSUFFICIENT_SLOTS": grpc.StatusCode.FAILED_PRECONDITION,
    "TOO_MANY_JOBS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    ClaimLostError: grpc.StatusCode.ABORTED,
    "SCHEDULER_CLOSED": grpc.StatusCode.UNAVAILABLE,
    JobStoreError: grpc.StatusCode.INTERNAL,
}

_EVENT_OF = {pb.StageEventType.Value(f"STAGE_EVENT_TYPE_{name.upper()}"): kind for name, kind in EVENT_KINDS.items()}
_TYPES = {
    ResultPartitionType.UNDECIDED: pb.RESULT_PARTITION_TYPE_UNSPECIFIED,
    ResultPartitionType.PIPELINED: pb.RESULT_PARTITION_TYPE_PIPELINED,
    ResultPartitionType.BLOCKING: pb.RESULT_PARTITION_TYPE_BLOCKING,
}
_TYPE_OF = {value: kind for kind, value in _TYPES.items()}


def graph_to_wire(graph: JobGraph) -> pb.JobGraph:
    """A graph for Submit."""
    return pb.JobGraph(
        name=graph.name,
        vertices=[
            pb.Vertex(
                name=vertex.name,
                kind=pb.VertexKind.Value(f"VERTEX_KIND_{vertex.kind.name}"),
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
        CompileError (INVALID_VERTEX), InvalidOptionError: a vertex contradicts its kind, or has an impossible value.
        CompileError (DUPLICATE_NAME): two vertices have one name.
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
        try:
            kind = VertexKind[pb.VertexKind.Name(vertex.kind).removeprefix("VERTEX_KIND_")]
        except (KeyError, ValueError):
            raise InvalidDocumentError(f"graph.vertices[{number}].kind", "unknown value") from None
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


def _report_request(arguments: dict[str, Any]) -> pb.ReportRequest:
    """The scheduler's own clock says when the event was."""
    event = arguments["event"]
    request = _MESSAGES.to(pb.ReportRequest, event)
    request.job_id = arguments["job_id"]
    request.event = pb.StageEventType.Value(f"STAGE_EVENT_TYPE_{event_name(event).upper()}")
    request.final = not getattr(event, "retryable", True)
    return request


def _event(request: pb.ReportRequest) -> dict[str, Any]:
    kind = _EVENT_OF.get(request.event)
    if kind is None:
        raise InvalidDocumentError("event", "unknown value")
    more = {"retryable": not request.final} if kind is StageFailed else {}
    return {"event": _MESSAGES.of(kind, request, **more)}


def _graph_response(plan: StagePlan) -> pb.GetGraphResponse:
    return _MESSAGES.to(pb.GetGraphResponse, {"graph": plan.graph, "cyclic_regions": plan.cyclic_regions})


def _plan(response: pb.GetGraphResponse, arguments: dict[str, Any]) -> StagePlan:
    """Compiled again here, from the graph."""
    found = _MESSAGES.values({"graph": JobGraph, "cyclic_regions": CyclicRegions}, response)
    return compile(found["graph"], cyclic_regions=found["cyclic_regions"])


def _claim(response: pb.ClaimResponse, arguments: dict[str, Any]) -> Claim:
    return _MESSAGES.of(Claim, response, store=arguments["store"], fingerprint=arguments["fingerprint"])


def _renewed(response: pb.RenewClaimResponse, arguments: dict[str, Any]) -> Claim:
    claim: Claim = arguments["claim"]
    return replace(claim, expires_seconds=response.expires_seconds, renewals=response.renewals)


def _reference(request: Any) -> dict[str, Any]:
    """The claim that a request is about: what the request says of it, and no more."""
    names = {"store": request.store, "fingerprint": request.fingerprint, "token": request.token}
    return {"claim": Claim(**names, decision=ClaimDecision.COMPUTE, owner="")}


def _invalid(field: str, value: object) -> OperatorAttributesError:
    if value == 0 and field in ("slots", "max_attempts", "lease_seconds"):
        return InvalidOptionError(field, value, "more than 0")
    return InvalidDocumentError(field, "unknown value")


_MESSAGES = Messages(
    # A state that this side does not know yet counts as WAITING.
    unknown={StageState: StageState.WAITING},
    unspecified={CyclicRegions: CyclicRegions.READ_TWICE},
    by_hand={JobGraph: (graph_to_wire, graph_from_wire)},
    invalid=_invalid,
)
CONTRACT = Contract(
    StageSchedulerApi,
    pb.DESCRIPTOR.services_by_name["StageSchedulerService"],
    {
        "submit": Rpc("Submit", "job"),
        "report": Rpc("Report", "job", request=_report_request, arguments=_event),
        "get_job": Rpc("GetJob", "job"),
        "get_plan": Rpc("GetGraph", returned=_plan, response=_graph_response),
        "watch": Rpc("Watch", "job"),
        "list_jobs": Rpc("ListJobs", "jobs"),
        "claim": Rpc("Claim", returned=_claim),
        "renew_claim": Rpc("RenewClaim", arguments=_reference, returned=_renewed),
        "commit_claim": Rpc("CommitClaim", arguments=_reference),
        "release_claim": Rpc("ReleaseClaim", arguments=_reference),
        "forget_claim": Rpc("ForgetClaim", arguments=_reference),
    },
    _MESSAGES,
    STATUS_TABLE,
)


_ERRORS = tuple(
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OperatorAttributesError) and kind is not OperatorAttributesError
)
SERVICE_NAME: Final = CONTRACT.service.full_name


class RemoteStageScheduler(RemoteApi):
    """The stage scheduler behind gRPC, for the running event loop: the calls and errors of `StageSchedulerApi`.

    `submit`, `claim` and `commit_claim` may be repeated after SchedulerAwayError. After one of `report`, the
    event may or may not have arrived: ask `get_job`. An async context manager: leaving it closes the channel.
    """

    contract = CONTRACT

    def __init__(self, endpoint: str, security: ClientSecurity | None = None, *, timeout_seconds: float = 30.0) -> None:
        """Open a channel; it connects at the first call.

        Args:
            endpoint: `host:port` of the service.
            security: TLS and token; none unless given.
            timeout_seconds: deadline of every call but `watch`, which has none.

        Raises:
            RpcOptionError: a file cannot be read, or the token would cross the network in plain text.
            InvalidOptionError: the timeout is not positive.
        """
        if timeout_seconds <= 0:
            raise InvalidOptionError("timeout_seconds", timeout_seconds, "greater than 0")
        super().__init__(endpoint, security, timeout_seconds=timeout_seconds)
        self._open()

    submit = calls(StageSchedulerApi.submit)
    report = calls(StageSchedulerApi.report)
    get_job = calls(StageSchedulerApi.get_job)
    get_plan = calls(StageSchedulerApi.get_plan)
    watch = calls(StageSchedulerApi.watch)
    list_jobs = calls(StageSchedulerApi.list_jobs)
    claim = calls(StageSchedulerApi.claim)
    renew_claim = calls(StageSchedulerApi.renew_claim)
    commit_claim = calls(StageSchedulerApi.commit_claim)
    release_claim = calls(StageSchedulerApi.release_claim)
    forget_claim = calls(StageSchedulerApi.forget_claim)

    def _error(self, error: grpc.RpcError, operation: str) -> Exception:
        known = typed_error(error, _ERRORS)
        if known is None and isinstance(error, grpc.aio.AioRpcError):
            details = error.details() or ""
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                rule = f"within the rules of the contract: {details}"
                return InvalidOptionError(details.partition(" ")[0], "not accepted", rule)
            known = _failed(error.code().name, details)
        return known or _failed("UNKNOWN", str(error))


def _failed(status: str, details: str) -> SchedulerAwayError:
    return SchedulerAwayError.of("SCHEDULER_CALL_FAILED", status=status, details=details)


class StageSchedulerServicer(Servicer):
    """Serves any `StageSchedulerApi`; its typed errors become status codes, with their fields in the metadata."""

    contract = CONTRACT

    async def Claim(self, request: pb.ClaimRequest, context: Any) -> pb.ClaimResponse:
        """See the contract."""
        async with errors_as_status(context, STATUS_TABLE):
            claim = await self._api.claim(**self.contract.arguments("claim", request))
            if claim.decision is ClaimDecision.COMPUTE:
                when_refused(context, partial(self._api.release_claim, claim))
            response: pb.ClaimResponse = self.contract.response("claim", claim, request)
            return response
