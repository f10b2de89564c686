"""Job graphs, blocking edges and stages: plan bounded work before the live stage."""

from penstock.operator_attributes._api import JobStatus, StageSchedulerApi, StageStatus
from penstock.operator_attributes._attributes import OperatorAttributes, OperatorAttributesBuilder
from penstock.operator_attributes._blocking import BlockingStageScheduler, open_stage_scheduler
from penstock.operator_attributes._call_site import caller
from penstock.operator_attributes._catch_up import catch_up
from penstock.operator_attributes._claims import Claim, ClaimDecision
from penstock.operator_attributes._compile import compile
from penstock.operator_attributes._estimate import (
    Estimate,
    StageMeasure,
    StageSavings,
    estimate,
    measures_of,
    relative_error,
)
from penstock.operator_attributes._events import (
    StageEvent,
    StageFailed,
    StageFinished,
    StageInterrupted,
    StageLost,
    StageReused,
    StageStarted,
)
from penstock.operator_attributes._graph import (
    Boundedness,
    Input,
    JobGraph,
    ResultPartitionType,
    Vertex,
    VertexKind,
)
from penstock.operator_attributes._job_store import JobStore, StoredJob, StoredState
from penstock.operator_attributes._local import LocalStageScheduler
from penstock.operator_attributes._plan import BlockingReason, PlannedEdge, Stage, StageInput, StagePlan
from penstock.operator_attributes._progress import StageProgress, StageState
from penstock.operator_attributes._regions import CyclicRegions
from penstock.operator_attributes._remote import RemoteStageScheduler
from penstock.operator_attributes._scheduler import StageChange, StageScheduler
from penstock.operator_attributes._servicer import StageSchedulerServicer
from penstock.operator_attributes._sqlite_store import SqliteJobStore
from penstock.operator_attributes._staged_job import StagedJob
from penstock.operator_attributes._time_windows import SessionWindows, SlidingWindows, TumblingWindows
from penstock.operator_attributes._windows import GlobalWindows, WindowAssigner, window_attributes
from penstock.operator_attributes._wire import SERVICE_NAME

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
    "measures_of",
    "open_stage_scheduler",
    "relative_error",
    "window_attributes",
]
