"""Job graphs, blocking edges and stages: plan bounded work before the live stage."""

from penstock.operator_attributes._compile.compile import compile
from penstock.operator_attributes._compile.plan import BlockingReason, PlannedEdge, Stage, StageInput, StagePlan
from penstock.operator_attributes._compile.regions import CyclicRegions
from penstock.operator_attributes._graph.attributes import OperatorAttributes, OperatorAttributesBuilder
from penstock.operator_attributes._graph.graph import (
    Boundedness,
    Input,
    JobGraph,
    ResultPartitionType,
    Vertex,
    VertexKind,
    caller,
)
from penstock.operator_attributes._graph.windows import (
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
    window_attributes,
)
from penstock.operator_attributes._render.diagrams import graphviz, mermaid
from penstock.operator_attributes._render.explain import explain
from penstock.operator_attributes._render.html import html
from penstock.operator_attributes._render.svg import svg
from penstock.operator_attributes._schedule.api import JobStatus, StageSchedulerApi, StageStatus
from penstock.operator_attributes._schedule.catch_up import catch_up
from penstock.operator_attributes._schedule.claims import Claim, ClaimDecision
from penstock.operator_attributes._schedule.estimate import (
    Estimate,
    StageMeasure,
    StageSavings,
    estimate,
    measures_of,
    relative_error,
)
from penstock.operator_attributes._schedule.job_store import JobStore, StoredJob, StoredState
from penstock.operator_attributes._schedule.local import LocalStageScheduler
from penstock.operator_attributes._schedule.scheduler import StageChange, StageScheduler
from penstock.operator_attributes._schedule.sqlite_store import SqliteJobStore
from penstock.operator_attributes._schedule.staged_job import StagedJob
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
from penstock.operator_attributes._service.remote import RemoteStageScheduler
from penstock.operator_attributes._service.servicer import StageSchedulerServicer
from penstock.operator_attributes._service.synchronous import BlockingStageScheduler, open_stage_scheduler
from penstock.operator_attributes._service.wire import SERVICE_NAME

__all__ = [
    "SERVICE_NAME",
    "BlockingReason",
    "BlockingStageScheduler",
    "Boundedness",
    "Claim",
    "ClaimDecision",
    "CyclicRegions",
    "Estimate",
    "GlobalWindows",
    "Input",
    "JobGraph",
    "JobStatus",
    "JobStore",
    "LocalStageScheduler",
    "OperatorAttributes",
    "OperatorAttributesBuilder",
    "PlannedEdge",
    "RemoteStageScheduler",
    "ResultPartitionType",
    "SessionWindows",
    "SlidingWindows",
    "SqliteJobStore",
    "Stage",
    "StageChange",
    "StageEvent",
    "StageFailed",
    "StageFinished",
    "StageInput",
    "StageInterrupted",
    "StageLost",
    "StageMeasure",
    "StagePlan",
    "StageProgress",
    "StageRestarted",
    "StageReused",
    "StageSavings",
    "StageScheduler",
    "StageSchedulerApi",
    "StageSchedulerServicer",
    "StageStarted",
    "StageState",
    "StageStatus",
    "StagedJob",
    "StoredJob",
    "StoredState",
    "TumblingWindows",
    "Vertex",
    "VertexKind",
    "WindowAssigner",
    "caller",
    "catch_up",
    "compile",
    "estimate",
    "explain",
    "graphviz",
    "html",
    "measures_of",
    "mermaid",
    "open_stage_scheduler",
    "relative_error",
    "svg",
    "window_attributes",
]
