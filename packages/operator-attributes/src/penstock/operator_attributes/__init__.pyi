# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._compile.compile import compile
from ._compile.plan import BlockingReason, PlannedEdge, Stage, StageInput, StagePlan
from ._compile.regions import CyclicRegions
from ._graph.attributes import OperatorAttributes, OperatorAttributesBuilder
from ._graph.graph import (
    Boundedness,
    Input,
    JobGraph,
    ResultPartitionType,
    Vertex,
    VertexKind,
    caller,
)
from ._graph.windows import (
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
    window_attributes,
)
from ._render.diagrams import graphviz, mermaid
from ._render.explain import explain
from ._render.html import html
from ._render.svg import svg
from ._schedule.api import JobStatus, StageSchedulerApi, StageStatus
from ._schedule.catch_up import catch_up
from ._schedule.claims import Claim, ClaimDecision
from ._schedule.estimate import (
    Estimate,
    StageMeasure,
    StageSavings,
    estimate,
    measures_of,
    relative_error,
)
from ._schedule.job_store import JobStore, StoredJob, StoredState
from ._schedule.local import LocalStageScheduler
from ._schedule.scheduler import StageChange, StageScheduler
from ._schedule.sqlite_store import SqliteJobStore
from ._schedule.staged_job import StagedJob
from ._schedule.states import (
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
from ._service.remote import SERVICE_NAME, RemoteStageScheduler, StageSchedulerServicer
from ._service.synchronous import BlockingStageScheduler, open_stage_scheduler

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
