"""Plans of classic sessions: read, cut and put together again in the JVM, where Spark has analyzed them."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark_plugin._stages.fingerprints.code import digest, function_fingerprint, unique
from penstock.spark_plugin._stages.plans.plan import FULL_DAM, LiveSource, PlanNode, is_call_site, what_is_read

_WHOLE_TEXTS = threading.Lock()
# Leaves that are distinguished by their text, or by what `leaf_text` adds to it; files are looked up one by one.
_KNOWN = frozenset({"LocalRelation", "Range", "OneRowRelation"})
# Leaves whose rows lie somewhere else.
_READING = frozenset({"LogicalRelation", "DataSourceV2Relation", "HiveTableRelation"})


class ClassicPlans:
    """See `Plans`."""

    def read(self, frame: DataFrame) -> PlanNode:
        return _read(frame._jdf.queryExecution().analyzed(), iter(range(1_000_000_000)))

    def part(self, frame: DataFrame, cut: PlanNode) -> DataFrame:
        rows = _frame_of(frame.sparkSession, cut.plan)
        return rows.toDF(*(f"c{index}" for index in range(len(rows.columns))))

    def join_keys(self, frame: DataFrame, root: PlanNode, cut: PlanNode) -> tuple[str, ...]:
        join = next((node for node in root.nodes() if node.kind == "Join" and cut in node.children), None)
        if join is None or not join.plan.condition().isDefined() or cut.hints():
            return ()
        numbers = {column.exprId().id(): f"c{index}" for index, column in enumerate(items(cut.plan.output()))}
        keys: dict[str, None] = {}
        pending = [join.plan.condition().get()]
        while pending:
            expression = pending.pop(0)
            sides = list(items(expression.children()))
            if expression.getClass().getSimpleName() == "And":
                pending += sides
            elif expression.getClass().getSimpleName() == "EqualTo":
                columns = (one for one in sides if one.getClass().getSimpleName() == "AttributeReference")
                names = [numbers.get(one.exprId().id()) for one in columns]
                keys |= dict.fromkeys(name for name in names if name is not None)
        return tuple(keys)

    def rebuild(self, frame: DataFrame, root: PlanNode, committed: Mapping[str, DataFrame]) -> DataFrame:
        return _frame_of(frame.sparkSession, _rebuild(frame.sparkSession, root, committed))

    def check(self, frame: DataFrame, root: PlanNode, cuts: Sequence[PlanNode]) -> None:
        """Columns are ids in an analyzed plan: they are found in any case."""

    def written(self, writer: DataStreamWriter) -> DataFrame:
        return writer._df

    def output_mode(self, writer: DataStreamWriter) -> str:
        return str(_field(writer, "outputMode").get(writer._jwrite)).lower()

    def options(self, writer: DataStreamWriter) -> dict[str, str]:
        found = items(_field(writer, "extraOptions").get(writer._jwrite).toSeq())
        return {str(entry._1()).lower(): str(entry._2()) for entry in found}

    def live_sources(self, frame: DataFrame) -> list[LiveSource]:
        leaves = items(frame._jdf.queryExecution().analyzed().collectLeaves())
        return [_live_source(leaf) for leaf in leaves if leaf.isStreaming()]

    def write_instead(self, writer: DataStreamWriter, frame: DataFrame) -> DataStreamWriter:
        # Spark has no public way to copy a writer.
        _field(writer, "ds").set(writer._jwrite, frame._jdf)
        writer._df = frame
        return writer

    def fingerprint(self, frame: DataFrame) -> str:
        functions = (one for plan in all_plans(frame) for one in _functions(plan))
        leaves = (leaf_text(leaf) for leaf in all_leaves(frame))
        return digest(frame._jdf.schema().json(), _plan_text(frame), *functions, *leaves)

    def beside(self, frame: DataFrame, inputs: Sequence[DataFrame]) -> list[str]:
        known = [leaf for one in inputs for leaf in all_leaves(one)]
        found = [
            _reads(leaf, kind) or "a table of a database"
            for leaf in all_leaves(frame)
            if (kind := str(leaf.getClass().getSimpleName())) in _READING
            and not any(leaf.sameResult(one) for one in known)
        ]
        calls = set(_called_by_name(frame)).difference(*map(_called_by_name, inputs))
        return list(dict.fromkeys([*found, *(f"the registered function {name!r}" for name in sorted(calls))]))

    def files(self, frame: DataFrame) -> list[str] | None:
        leaves = [leaf for leaf in all_leaves(frame) if not _is_kinesis(leaf)]
        if not all(is_known(leaf) for leaf in leaves):
            return None
        read = [leaf for leaf in leaves if reads_files(leaf)]
        return (files_of(frame, read) or None) if read else []

    def streams(self, frame: DataFrame) -> list[Mapping[str, str]]:
        return [_options(leaf) for leaf in all_leaves(frame) if _is_kinesis(leaf)]


def _live_source(leaf: Any) -> LiveSource:
    if leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return LiveSource("", {})  # of files, say
    return LiveSource(str(leaf.sourceName()).lower(), _texts(leaf.extraOptions()))


def _is_kinesis(leaf: Any) -> bool:
    return str(leaf.nodeName()) == "DataSourceV2Relation" and str(leaf.table().name()) == "kinesis"


def _options(leaf: Any) -> Mapping[str, str]:
    return _texts(leaf.options())


def _texts(options: Any) -> Mapping[str, str]:
    entries = options.asCaseSensitiveMap().entrySet().iterator()
    found = {}
    while entries.hasNext():
        entry = entries.next()
        found[str(entry.getKey())] = str(entry.getValue())
    return found


def _read(plan: Any, numbers: Iterator[int]) -> PlanNode:
    number = next(numbers)
    kind = plan.getClass().getSimpleName()
    return PlanNode(
        plan=plan,
        kind=kind,
        number=number,
        streaming=plan.isStreaming(),
        full_dam=bool(getattr(plan, "global")()) if kind == "Sort" else kind in FULL_DAM,
        call_site=_call_site(plan),
        children=tuple(_read(child, numbers) for child in items(plan.children())),
        reads=_reads(plan, kind) if plan.children().isEmpty() else "",
    )


def _reads(leaf: Any, kind: str) -> str:
    if kind == "StreamingRelationV2":
        return what_is_read(str(leaf.sourceName()), _texts(leaf.extraOptions()))
    if kind == "StreamingRelation":
        options = {str(entry._1()): str(entry._2()) for entry in items(leaf.dataSource().options().toSeq())}
        return what_is_read(str(leaf.dataSource().className()), options)
    if kind == "DataSourceV2Relation":
        return what_is_read(str(leaf.table().name()), _options(leaf))
    if not reads_files(leaf):
        return {"LocalRelation": "local rows", "Range": "range"}.get(kind, "")
    if leaf.catalogTable().isDefined():
        return f"table {leaf.catalogTable().get().identifier().unquotedString()}"
    paths = [str(path.getName()) for path in items(leaf.relation().location().rootPaths())]
    return what_is_read(str(leaf.relation().fileFormat().toString()).partition("@")[0], {}, paths)


def _call_site(plan: Any) -> str:
    pending = list(items(plan.expressions()))
    while pending:
        expression = pending.pop(0)
        # Empty where no method of a DataFrame made it: SQL, or a column's name. Asking for its call site would then
        # raise, and each error from the JVM takes 5 to 20 ms to become one of Python's.
        made = expression.origin().pysparkErrorContext()
        if made.isDefined() and is_call_site(site := str(made.get()._2())):
            return site
        pending += items(expression.children())
    return ""


def _frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """A DataFrame of a plan that is analyzed already."""
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def _rebuild(spark: SparkSession, node: PlanNode, committed: Mapping[str, DataFrame]) -> Any:
    jvm: Any = spark._jvm
    if node.name in committed:
        plan = _as_before(spark, node.plan, committed[node.name])
        for hint in reversed(node.hints()):
            plan = hint.plan.withNewChildren(jvm.PythonUtils.toSeq([plan]))
        return plan
    if not any(one.name in committed for one in node.nodes()):
        return node.plan
    children = [_rebuild(spark, child, committed) for child in node.children]
    return node.plan.withNewChildren(jvm.PythonUtils.toSeq(children))


def _as_before(spark: SparkSession, plan: Any, frame: DataFrame) -> Any:
    """Committed columns under the names and ids that the operators above know them by."""
    jvm: Any = spark._jvm
    none = jvm.scala.Option.empty()
    new = frame._jdf.queryExecution().analyzed()
    aliases = [
        jvm.org.apache.spark.sql.catalyst.expressions.Alias(
            column, before.name(), before.exprId(), before.qualifier(), none, jvm.PythonUtils.toSeq([])
        )
        for before, column in zip(items(plan.output()), items(new.output()), strict=True)
    ]
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(aliases), new)


def _functions(plan: Any) -> Iterator[str]:
    """Fingerprints of the Python functions in a plan, whose text names them at best: two lambdas look the same."""
    for expression in items(plan.expressions()):
        yield from _functions_of(expression)
    for child in items(plan.children()):
        yield from _functions(child)


def _functions_of(expression: Any) -> Iterator[str]:
    if expression.getClass().getSimpleName().startswith("Python"):
        try:
            command = cloudpickle.loads(bytes(expression.func().command().unsafeArray()))
            # A plan that is made canonical has no types.
            yield f"{expression.evalType()} {expression.dataType().json()} {function_fingerprint(command[0])}"
        except Exception:
            yield unique()
    for child in items(expression.children()):
        yield from _functions_of(child)


def _called_by_name(frame: DataFrame) -> Iterator[str]:
    """Names of the Python functions that texts of SQL call: of others the code is where they are called."""
    jvm: Any = frame.sparkSession._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    plans = [plan for plan in all_plans(frame) if plan.containsPattern(pattern)]
    expressions: list[Any] = []
    while plans:
        plan = plans.pop()
        expressions += items(plan.expressions())
        plans += [child for child in items(plan.children()) if child.containsPattern(pattern)]
    while expressions:
        one = expressions.pop()
        if one.containsPattern(pattern):
            # Aggregates of pandas have a class of their own.
            if one.getClass().getSimpleName().startswith("PythonUD") and one.origin().sqlText().isDefined():
                yield str(one.name())
            expressions += items(one.children())


def _plan_text(frame: DataFrame) -> str:
    conf = frame.sparkSession.conf
    # Pipelines may run side by side in a session.
    with _WHOLE_TEXTS:
        before = conf.get("spark.sql.debug.maxToStringFields")
        # The default leaves columns out after the 25th.
        conf.set("spark.sql.debug.maxToStringFields", "100000")
        try:
            return str(frame._jdf.queryExecution().analyzed().canonicalized().toString())
        finally:
            conf.set("spark.sql.debug.maxToStringFields", before or "25")


def _field(writer: DataStreamWriter, name: str) -> Any:
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field


def items(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def all_plans(frame: DataFrame) -> list[Any]:
    """The plan of a frame, and those of the subqueries in its expressions."""
    plan = frame._jdf.queryExecution().analyzed()
    return [plan, *items(plan.subqueriesAll())]


def all_leaves(frame: DataFrame) -> list[Any]:
    """The leaves of all of its plans."""
    return [leaf for plan in all_plans(frame) for leaf in items(plan.collectLeaves())]


def leaf_text(leaf: Any) -> str:
    """What the canonical text of a leaf leaves out: its columns, which files it reads and by what options, its rows."""
    parts = [str(leaf.schema().json())]
    if reads_files(leaf):
        entries = [(str(entry._1()), str(entry._2())) for entry in items(leaf.relation().options().toSeq())]
        parts += sorted(f"{name}={value}" for name, value in entries)
        if not any(name.lower() == "path" for name, _ in entries):
            # Where there is such an option, it says what was asked for: what matches a pattern may be more by now.
            parts += sorted(str(path) for path in items(leaf.relation().location().rootPaths()))
        parts.append(str(leaf.relation().schema().json()))
    elif leaf.nodeName() == "LocalRelation":
        parts.append(f"{leaf.data().size()} rows of {leaf.data().hashCode()}")
    return "|".join(parts)


def reads_files(leaf: Any) -> bool:
    """Whether it is a table of files; others that look alike are tables of databases."""
    return _is_relation(leaf) and str(leaf.relation().getClass().getSimpleName()) == "HadoopFsRelation"


def is_known(leaf: Any) -> bool:
    """Whether its rows can be distinguished from others."""
    return reads_files(leaf) or str(leaf.nodeName()).split()[0] in _KNOWN


def files_of(frame: DataFrame, leaves: Sequence[Any]) -> list[str]:
    """URLs of the files of some leaves, which are all that a frame has and that read files."""
    optimized = frame._jdf.queryExecution().optimizedPlan().collectLeaves()
    if sum(_is_relation(leaf) for leaf in items(optimized)) == len(leaves):
        # Without those of partitions that are not read.
        return frame.inputFiles()
    # What is cached, or in a subquery, is left out there.
    return [str(file) for leaf in leaves for file in leaf.relation().location().inputFiles()]


def _is_relation(leaf: Any) -> bool:
    return str(leaf.nodeName()).split()[0] == "LogicalRelation"
