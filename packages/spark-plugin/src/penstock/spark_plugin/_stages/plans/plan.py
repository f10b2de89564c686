"""Plans as trees, what the planner needs of a session, and the cuts of a plan where it has to wait."""

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import (
    Boundedness,
    Input,
    JobGraph,
    OperatorAttributes,
    ResultPartitionType,
    StagePlan,
    compile,
)
from penstock.operator_attributes.errors import FullDamOverUnboundedError
from penstock.spark_plugin._stages.store.pins import safe_name

FULL_DAM = frozenset(
    {
        "Aggregate",
        "Sort",
        "Window",
        "Deduplicate",
        "Distinct",
        "GlobalLimit",
        "Offset",
        "Tail",
        "Except",
        "Intersect",
        "FlatMapGroupsInPandas",
        "FlatMapGroupsInArrow",
        "FlatMapCoGroupsInPandas",
        "FlatMapCoGroupsInArrow",
    }
)
"""Classes of operators that give nothing before the end of their input. Others are taken for what lets rows through."""
_MOST_LEAVES = 2
_MOST_FIELDS = "spark.sql.debug.maxToStringFields"
_WHOLE_TEXTS = threading.Lock()
_LONGEST = 60
_NAMES = ("streamName", "streamNamePattern", "subscribe", "topic", "dbtable")
"""Options that name what is read."""
_CALL_SITE = re.compile(r"^[^()]+:\d+$")
"""Of Python. Spark gives a place in the JVM where it does not know it."""
# Spark runs these on streams row by row, or by keeping state: they do not wait for an end there.
_INCREMENTAL = frozenset({"Deduplicate", "Distinct", "GlobalLimit"})


@dataclass(frozen=True, slots=True, eq=False)
class PlanNode:
    """An operator of a plan."""

    plan: Any
    """The session's own: the JVM's, or a message of Spark Connect."""
    kind: str
    """Its class: `Aggregate`, `Join`, …"""
    number: int
    """Its place in the plan, counted from the top."""
    streaming: bool
    full_dam: bool
    """Whether it gives nothing before the end of its input."""
    find_call_site: Callable[[], str]
    children: tuple["PlanNode", ...]
    reads: str = ""
    """What a leaf reads, for people: `csv weather.csv`, `kinesis flights`; empty where that cannot be seen."""

    @property
    def name(self) -> str:
        """Unique in the plan, and the same whenever the same plan is made: `Aggregate-3`."""
        return f"{self.kind}-{self.number}"

    @property
    def call_site(self) -> str:
        """`file:line` of the user's code, where Spark knows it; empty if not. A classic session is asked each time."""
        return self.find_call_site()

    def nodes(self) -> Iterator["PlanNode"]:
        """It, and all below it."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def dam(self) -> "PlanNode | None":
        """The uppermost full-dam operator in it."""
        return next((node for node in self.nodes() if node.full_dam), None)

    def hints(self) -> list["PlanNode"]:
        """What it tells the join that it is an input of, from the top: Spark looks for it below operators of one input,
        and there alone."""
        found, node = [], self
        while len(node.children) == 1:
            if node.kind in ("ResolvedHint", "Hint"):
                found.append(node)
            (node,) = node.children
        return found


def what_is_read(format: str, options: Mapping[str, str], paths: Sequence[str] = ()) -> str:
    """A source, for people: its format, and the stream, table or end of the path that it reads, where that is said."""
    given = {key.lower(): value for key, value in options.items()}
    found = [value for key in _NAMES if (value := given.get(key.lower()))]
    found += [path.rstrip("/").rpartition("/")[2] for path in (*paths, *filter(None, [given.get("path")]))]
    name = found[0] if found else ""
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}…"
    return f"{format.lower()} {name}".strip()


def titles(root: PlanNode, cuts: Sequence[PlanNode]) -> Mapping[str, str]:
    """What the nodes of a plan are called in pictures, by name; different also as folders.

    A leaf is called by what it reads, a cut by what blocks in it and what that reads, any other by its name.
    """
    found = {node.name: node.reads or node.name for node in root.nodes()}
    for cut in cuts:
        leaves = list(dict.fromkeys(found[node.name] for node in cut.nodes() if not node.children))
        if (dam := cut.dam()) is not None and dam.children:
            more = f" and {len(leaves) - _MOST_LEAVES} more" if len(leaves) > _MOST_LEAVES else ""
            found[cut.name] = f"{dam.kind} of {', '.join(leaves[:_MOST_LEAVES])}{more}"
    counted = Counter(safe_name(title).lower() for title in found.values())
    return {
        name: f"{title} ({name.rpartition('-')[2]})" if counted[safe_name(title).lower()] > 1 else title
        for name, title in found.items()
    }


def is_call_site(text: str) -> bool:
    """Whether a text is a place in the user's Python."""
    return _CALL_SITE.search(text) is not None


@dataclass(frozen=True, slots=True)
class LiveSource:
    """A stream that a plan reads."""

    format: str
    """As Spark knows it, in lower case: `kinesis`, `rate`; empty where that cannot be seen, as of files."""
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Look:
    """What the rows of a DataFrame depend on."""

    fingerprint: str
    """The fingerprint of its plan, and of the Python functions in it."""
    world: tuple[str, ...] = ()
    """What the plan does not show, as text: `csv rates.csv`, `the environment (os.environ), in 'clean'`."""


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
        """The output mode of a stream's writer."""

    def options(self, writer: Any) -> Mapping[str, str]:
        """The options of a stream's writer, by names in lower case; the name of its query is `queryname`."""

    def live_sources(self, frame: DataFrame) -> Sequence[LiveSource]:
        """The streams that a frame reads, in the order in which Spark logs their offsets."""

    def write_instead(self, writer: Any, frame: DataFrame) -> Any:
        """The writer with another DataFrame below it."""

    def look(self, frame: DataFrame, inputs: Sequence[DataFrame] | None = None) -> Look:
        """What the rows of a DataFrame depend on.

        Args:
            frame: The DataFrame.
            inputs: The DataFrames that it is made of, for an operator: what they hold is left out, and whatever else
                is read counts as the world. None for a source, where `files` and `streams` say what is read.
        """

    def files(self, frame: DataFrame) -> Sequence[str] | None:
        """URLs of the files that a DataFrame reads; None where it reads rows that cannot be seen, but for Kinesis."""

    def streams(self, frame: DataFrame) -> Sequence[Mapping[str, str]]:
        """Options of the bounded reads of Kinesis in it, in the order of the plan; none where `files` is None."""


@contextlib.contextmanager
def whole_texts(spark: Any) -> Iterator[None]:
    """Let the texts of plans name all columns: by default Spark leaves columns out after the 25th."""
    # The session is shared by pipelines that run at the same time: none may reset the setting while another needs it.
    with _WHOLE_TEXTS:
        before = spark.conf.get(_MOST_FIELDS)
        spark.conf.set(_MOST_FIELDS, "100000")
        try:
            yield
        finally:
            spark.conf.set(_MOST_FIELDS, before or "25")


def is_connect(session_or_frame: object) -> bool:
    """Whether something is of Spark Connect. Its modules cannot be imported where its dependencies are missing."""
    return any(one.__module__.startswith("pyspark.sql.connect.") for one in type(session_or_frame).__mro__)


def plans_of(one: DataFrame | SparkSession | Any) -> Plans:
    """For a session, or a frame or writer of one."""
    if is_connect(one):
        from penstock.spark_plugin._stages.plans.connect_plans import ConnectPlans

        return ConnectPlans()
    from penstock.spark_plugin._stages.plans.classic import ClassicPlans

    return ClassicPlans()


def find_cuts(root: PlanNode, *, output_mode: str = "append", site: str = "") -> tuple[PlanNode, ...]:
    """The largest bounded parts with a full-dam operator in them that streaming operators read.

    Args:
        root: The plan.
        output_mode: The query's: in `update` and `complete` mode an aggregate of a stream gives rows early.
        site: Where the user asked, for operators of which Spark does not know the place.

    Raises:
        FullDamOverUnboundedError: an operator would wait for the end of a stream.
    """
    cuts: list[PlanNode] = []
    for node in root.nodes():
        if not node.streaming:
            continue
        if node.full_dam and _waits(node, output_mode):
            sources = [one.name for one in node.nodes() if one.streaming and not one.children]
            raise FullDamOverUnboundedError(node.name, node.call_site or site, sources)
        cuts += [child for child in node.children if not child.streaming and child.dam() is not None]
    return tuple(cuts)


def job_graph(root: PlanNode, cuts: Sequence[PlanNode], *, name: str = "dataframe") -> JobGraph:
    """The plan as a job graph, without operators that pass on one input and do not block."""
    graph = JobGraph(name)
    called = titles(root, cuts)
    cut_titles = {called[cut.name] for cut in cuts}

    def add(node: PlanNode) -> str:
        title = called[node.name]
        if len(node.children) == 1 and not node.full_dam and title not in cut_titles:
            return add(node.children[0])
        below = node.children
        dam = node.dam() if title in cut_titles else None
        if dam is not None and not node.full_dam:
            # What lies between it and what blocks is of no interest, unless there are several.
            while len(below) == 1 and below[0] is not dam:
                below = below[0].children
            below = dam.children if len(below) == 1 else node.children
        inputs = [add(child) for child in below]
        if not inputs:
            bounded = Boundedness.UNBOUNDED if node.streaming else Boundedness.BOUNDED
            # SQL text that blocks is all in one: what it reads and what it does.
            source = f"{title}-input" if title in cut_titles else title
            graph.add_source(source, boundedness=bounded, call_site=node.call_site)
            if title not in cut_titles:
                return source
            inputs = [source]
        # Inside of a stage nothing is written: Spark runs all of it as one job.
        edges = [
            Input(
                one,
                partition_type=ResultPartitionType.UNDECIDED if one in cut_titles else ResultPartitionType.PIPELINED,
            )
            for one in inputs
        ]
        attributes = OperatorAttributes(output_only_after_end_of_stream=dam is not None)
        place = dam.call_site if dam is not None else node.call_site
        graph.add_operator(title, *edges, attributes=attributes, chained=False, call_site=place)
        return title

    top = add(root)
    graph.add_sink("output", top, call_site="")
    return graph


def stage_plan(root: PlanNode, cuts: Sequence[PlanNode]) -> StagePlan:
    """The stages of a plan."""
    return compile(job_graph(root, cuts))


def _waits(node: PlanNode, output_mode: str) -> bool:
    if node.kind in _INCREMENTAL:
        return False
    if node.kind == "Aggregate":
        return output_mode == "append" and not any(one.kind == "EventTimeWatermark" for one in node.nodes())
    if node.kind == "Sort":
        return output_mode != "complete"
    return True
