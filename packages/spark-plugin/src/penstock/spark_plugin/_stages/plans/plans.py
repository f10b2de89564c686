"""What the planner needs of a session's plans, for the two kinds of sessions that there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin._stages.plans.tree import PlanNode


@dataclass(frozen=True, slots=True)
class LiveSource:
    """A stream that a plan reads."""

    format: str
    """As Spark knows it, in lower case: `kinesis`, `rate`; empty where that cannot be seen, as of files."""
    options: Mapping[str, str]


class Plans(Protocol):
    """Reads, cuts and rebuilds plans. Nothing here runs a job."""

    def read(self, frame: DataFrame) -> PlanNode:
        """The plan of a DataFrame."""

    def part(self, frame: DataFrame, cut: PlanNode) -> DataFrame:
        """The rows of a cut of a frame's plan; its columns are numbered, since they may have equal names."""

    def join_keys(self, frame: DataFrame, root: PlanNode, cut: PlanNode) -> tuple[str, ...]:
        """The columns of `part` that a streaming join goes by; none where it is not a join, or not by equal columns."""

    def rebuild(self, frame: DataFrame, root: PlanNode, committed: Mapping[str, DataFrame]) -> DataFrame:
        """The frame with committed results, by name of their cut, in the place of what they were computed by."""

    def check(self, frame: DataFrame, root: PlanNode, cuts: Sequence[PlanNode]) -> None:
        """Make sure, before anything is computed, that `rebuild` will do.

        Raises:
            PipelineDefinitionError: columns above a cut refer to something that a committed result does not have.
        """

    def written(self, writer: Any) -> DataFrame:
        """What a stream's writer writes."""

    def output_mode(self, writer: Any) -> str:
        """Of a stream's writer."""

    def options(self, writer: Any) -> Mapping[str, str]:
        """Of a stream's writer, by their names in lower case; the name of its query is `queryname`."""

    def live_sources(self, frame: DataFrame) -> Sequence[LiveSource]:
        """The streams that a frame reads, in the order in which Spark logs their offsets."""

    def write_instead(self, writer: Any, frame: DataFrame) -> Any:
        """The writer with another DataFrame below it."""

    def fingerprint(self, frame: DataFrame) -> str:
        """Of what a DataFrame does to its sources: its plan, and the Python functions in it."""

    def beside(self, frame: DataFrame, inputs: Sequence[DataFrame]) -> Sequence[str]:
        """What a DataFrame reads that none of those does which it is made of, and what it calls by a registered name.

        In words, each once. Rows of the driver's own are not among it, nor is what a function of Python reads.
        """

    def files(self, frame: DataFrame) -> Sequence[str] | None:
        """URLs of the files that a DataFrame reads; None where it reads rows that cannot be seen, but for Kinesis."""

    def streams(self, frame: DataFrame) -> Sequence[Mapping[str, str]]:
        """Options of the bounded reads of Kinesis in it, in the order of the plan; none where `files` is None."""


def is_connect(session_or_frame: object) -> bool:
    """Whether something is of Spark Connect. Its modules cannot be imported where its dependencies are missing."""
    return any(one.__module__.startswith("pyspark.sql.connect.") for one in type(session_or_frame).__mro__)


def plans_of(one: DataFrame | SparkSession | Any) -> Plans:
    """For a session, or a frame or writer of one."""
    if is_connect(one):
        from penstock.spark_plugin._stages.plans.connect.plans import ConnectPlans

        return ConnectPlans()
    from penstock.spark_plugin._stages.plans.classic import ClassicPlans

    return ClassicPlans()
