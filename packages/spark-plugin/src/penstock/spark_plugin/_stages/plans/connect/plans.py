"""Plans of Spark Connect: read and exchanged as messages, which the server analyzes again."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from google.protobuf.message import Message
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
from pyspark.sql.connect.plan import LogicalPlan
from pyspark.sql.connect.proto import Expression, Plan, Relation
from pyspark.sql.connect.session import SparkSession

from penstock.spark_plugin._stages.fingerprints.code import digest
from penstock.spark_plugin._stages.plans.connect.cut import (
    Attribute,
    Exchange,
    belonging,
    positions_in,
    projection,
    rebuild,
)
from penstock.spark_plugin._stages.plans.connect.messages import reading, reads_files, relation_fingerprint, relations
from penstock.spark_plugin._stages.plans.connect.tree import read_relation, what_a_leaf_reads
from penstock.spark_plugin._stages.plans.plans import LiveSource
from penstock.spark_plugin._stages.plans.tree import PlanNode
from penstock.spark_plugin.errors import PipelineDefinitionError

_NOT_TO_BE_CUT = (
    "columns above a blocking part are not found in its result: refer to them by name, or declare the stages "
    "with a Pipeline"
)
_WHOLE_TEXTS = "spark.sql.debug.maxToStringFields"


class ConnectPlans:
    """See `Plans`."""

    def read(self, frame: DataFrame) -> PlanNode:
        return read_relation(_relation(frame), ConnectServer(_session(frame)))

    def part(self, frame: DataFrame, cut: PlanNode) -> DataFrame:
        rows = _frame(_session(frame), cut.plan)
        return rows.toDF(*(f"c{index}" for index in range(len(rows.columns))))

    def join_keys(self, frame: DataFrame, root: PlanNode, cut: PlanNode) -> tuple[str, ...]:
        join = next((node for node in root.nodes() if node.kind == "Join" and cut in node.children), None)
        if join is None or cut.hints():
            return ()
        session = _session(frame)
        names = _frame(session, cut.plan).columns
        using = list(join.plan.join.using_columns)
        if using:
            found = [index for name in using for index, one in enumerate(names) if one.lower() == name.lower()]
        else:
            columns = belonging(_compared(join.plan.join.join_condition), cut.plan)
            found = ConnectServer(session).positions(cut.plan, columns) if columns else []
        return tuple(dict.fromkeys(f"c{index}" for index in found))

    def rebuild(self, frame: DataFrame, root: PlanNode, committed: Mapping[str, DataFrame]) -> DataFrame:
        session = _session(frame)
        server = ConnectServer(session)
        cuts = {node.name: node for node in root.nodes() if node.name in committed}
        exchanges = {
            name: Exchange(
                cut.plan,
                _relation(committed[name]),
                _frame(session, cut.plan).columns,
                server.positions,
                [hint.plan for hint in cut.hints()],
            )
            for name, cut in cuts.items()
        }
        return _frame(session, rebuild(root, exchanges))

    def check(self, frame: DataFrame, root: PlanNode, cuts: Sequence[PlanNode]) -> None:
        try:
            rebuilt = self.rebuild(frame, root, {cut.name: self.part(frame, cut) for cut in cuts})
            found, wanted = rebuilt.columns, frame.columns
        except AnalysisException as error:
            raise PipelineDefinitionError(_NOT_TO_BE_CUT) from error
        if found != wanted:
            raise PipelineDefinitionError(_NOT_TO_BE_CUT)

    def written(self, writer: Any) -> DataFrame:
        return ConnectDataFrame(writer._write_stream._child, writer._session)

    def output_mode(self, writer: Any) -> str:
        return str(writer._write_proto.output_mode).lower() or "append"

    def options(self, writer: Any) -> dict[str, str]:
        proto = writer._write_proto
        found = {str(name).lower(): str(value) for name, value in proto.options.items()}
        return found | ({"queryname": str(proto.query_name)} if proto.query_name else {})

    def live_sources(self, frame: DataFrame) -> list[LiveSource]:
        reads = (one.read for one in relations(_relation(frame)) if one.HasField("read") and one.read.is_streaming)
        return [LiveSource(one.data_source.format.lower(), dict(one.data_source.options)) for one in reads]

    def write_instead(self, writer: Any, frame: DataFrame) -> Any:
        # Spark has no public way to copy a writer.
        writer._write_stream._child = cast(ConnectDataFrame, frame)._plan
        return writer

    def fingerprint(self, frame: DataFrame) -> str:
        return digest(frame.schema.json(), relation_fingerprint(_relation(frame)))

    def beside(self, frame: DataFrame, inputs: Sequence[DataFrame]) -> list[str]:
        known = {relation_fingerprint(leaf) for one in inputs for leaf in reading(_relation(one))}
        found = (leaf for leaf in reading(_relation(frame)) if relation_fingerprint(leaf) not in known)
        return list(dict.fromkeys(what_a_leaf_reads(leaf) or "SQL text" for leaf in found))

    def files(self, frame: DataFrame) -> list[str] | None:
        relation = _relation(frame)
        found = reads_files(relation)
        if not found:
            return [] if found is False else None
        # The frame's own method remembers its first answer.
        answer = _session(frame).client._analyze(method="input_files", plan=Plan(root=relation))
        return list(answer.input_files or ()) or None

    def streams(self, frame: DataFrame) -> list[Mapping[str, str]]:
        return []  # a plan that reads Kinesis is one whose rows cannot be seen


class ConnectServer:
    """See `Server`."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def is_streaming(self, relation: Relation) -> bool:
        return bool(self._session.client._analyze(method="is_streaming", plan=Plan(root=relation)).is_streaming)

    def analyzed(self, relation: Relation) -> str:
        text = self._session.client.explain_string(Plan(root=relation), "extended")
        # The line below the title has the columns.
        plan = text.partition("== Analyzed Logical Plan ==\n")[2].partition("\n== Optimized Logical Plan ==")[0]
        return plan.partition("\n")[2]

    def positions(self, cut: Relation, attributes: Sequence[Message]) -> list[int]:
        """Which columns of a relation some attributes are."""
        with self._whole_texts():
            return positions_in(self.analyzed(projection(cut, attributes)), len(attributes))

    @contextlib.contextmanager
    def _whole_texts(self) -> Iterator[None]:
        conf = self._session.conf
        before = conf.get(_WHOLE_TEXTS)
        # The default leaves columns out after the 25th.
        conf.set(_WHOLE_TEXTS, "100000")
        try:
            yield
        finally:
            conf.set(_WHOLE_TEXTS, before or "25")


class _Given(LogicalPlan):
    """A plan of the client's that is a message already."""

    def __init__(self, relation: Relation) -> None:
        super().__init__(None)
        self._relation = relation
        # Columns of a frame go by the id of its plan.
        self._root_plan_id = relation.common.plan_id

    def plan(self, session: Any) -> Relation:
        return self._relation


def _compared(condition: Expression) -> Iterator[Any]:
    """Columns that a join's condition wants to be equal to something."""
    call = condition.unresolved_function
    if call.function_name == "and":
        for one in call.arguments:
            yield from _compared(one)
    elif call.function_name == "==":
        for one in call.arguments:
            if one.HasField("unresolved_attribute"):
                attribute: Attribute = one.unresolved_attribute
                yield attribute


def _relation(frame: DataFrame) -> Relation:
    return cast(ConnectDataFrame, frame)._plan.plan(_session(frame).client)


def _session(frame: DataFrame) -> SparkSession:
    return cast(SparkSession, frame.sparkSession)


def _frame(session: SparkSession, relation: Relation) -> DataFrame:
    return ConnectDataFrame(_Given(relation), session)
