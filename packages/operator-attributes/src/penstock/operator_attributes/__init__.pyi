# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._compile.attributes import (
    GlobalWindows,
    OperatorAttributes,
    OperatorAttributesBuilder,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
    window_attributes,
)
from ._compile.compile import compile
from ._compile.graph import (
    Boundedness,
    Input,
    JobGraph,
    ResultPartitionType,
    Vertex,
    VertexKind,
    caller,
)
from ._compile.plan import BlockingReason, PlannedEdge, Stage, StageInput, StagePlan
from ._compile.regions import CyclicRegions
from ._render.diagrams import graphviz, mermaid
from ._render.picture import html, svg
from ._render.text import Explanation, explain, html_table, stage_table
from ._schedule.api import JobStatus, StageSchedulerApi, StageStatus
from ._schedule.blocking import BlockingStageScheduler, open_stage_scheduler
from ._schedule.claims import Claim, ClaimDecision
from ._schedule.estimate import (
    Estimate,
    StageMeasure,
    StageSavings,
    estimate,
    measures_of,
)
from ._schedule.job_store import StoredJob, StoredState
from ._schedule.local import LocalStageScheduler
from ._schedule.remote import SERVICE_NAME, RemoteStageScheduler, StageSchedulerServicer
from ._schedule.scheduler import StageScheduler
from ._schedule.sqlite_store import SqliteJobStore
from ._schedule.staged_job import StagedJob, catch_up
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

__all__ = [
    "SERVICE_NAME",
    "BlockingReason",
    "BlockingStageScheduler",
    "Boundedness",
    "Claim",
    "ClaimDecision",
    "CyclicRegions",
    "Estimate",
    "Explanation",
    "GlobalWindows",
    "Input",
    "JobGraph",
    "JobStatus",
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
    "html_table",
    "measures_of",
    "mermaid",
    "open_stage_scheduler",
    "stage_table",
    "svg",
    "window_attributes",
]
