"""Plans of classic sessions: read, cut and put together again in the JVM, where Spark has analyzed them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark_plugin._stages.fingerprints.code import digest, look_at, unique
from penstock.spark_plugin._stages.plans.plan import (
    FULL_DAM,
    LiveSource,
    Look,
    PlanNode,
    is_call_site,
    what_is_read,
    whole_texts,
)

# Leaves that are distinguished by their text, or by what `leaf_text` adds to it; files are looked up one by one.
_KNOWN = frozenset({"LocalRelation", "Range", "OneRowRelation"})
# Leaves whose rows lie somewhere else.
_READING = frozenset({"LogicalRelation", "DataSourceV2Relation", "HiveTableRelation"})

_FROM_ROWS = ("MapPartitionsRDD", "MapPartitionsRDD", "MapPartitionsRDD", "PythonRDD", "ParallelCollectionRDD")
_ID = re.compile(r"#\d+")


_SAME = (lambda x: x).__code__.co_code


class ClassicPlans:
    """See `Plans`."""

    def read(self, frame: DataFrame) -> PlanNode:
        return _read(_analyzed(frame), iter(range(1_000_000_000)))

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
        leaves = items(_analyzed(frame).collectLeaves())
        return [_live_source(leaf) for leaf in leaves if leaf.isStreaming()]

    def write_instead(self, writer: DataStreamWriter, frame: DataFrame) -> DataStreamWriter:
        # Spark has no public way to copy a writer.
        _field(writer, "ds").set(writer._jwrite, frame._jdf)
        writer._df = frame
        return writer

    def look(self, frame: DataFrame, inputs: Sequence[DataFrame] | None = None) -> Look:
        spark = frame.sparkSession
        plan = _without(spark, _analyzed(frame), [_analyzed(one) for one in inputs or ()])
        plans = [plan, *items(plan.subqueriesAll())]
        parts = [str(frame._jdf.schema().json()), _plan_text(spark, plan)]
        world: list[str] = []
        for part, reasons in (found for one in plans for found in _in_expressions(spark, one)):
            parts.append(part)
            world += reasons
        known = [leaf for one in inputs or () for leaf in all_leaves(one)]
        for leaf in (leaf for one in plans for leaf in items(one.collectLeaves())):
            parts.append(leaf_text(leaf))
            kind = str(leaf.getClass().getSimpleName())
            if inputs is None or (kind not in _READING and kind != "LogicalRDD"):
                continue
            if any(leaf.sameResult(one) for one in known):
                continue  # an input's, by a view of it
            if kind in _READING:
                world.append(_reads(leaf, kind) or "a table of a database")
            elif (rows := _rows_of_the_driver(leaf.rdd())) is not None:
                parts.append(rows)
            else:
                world.append("the rows of an RDD")
        return Look(digest(*parts), tuple(dict.fromkeys(world)))

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
        find_call_site=partial(_call_site, plan),
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
    new = _analyzed(frame)
    aliases = [
        jvm.org.apache.spark.sql.catalyst.expressions.Alias(
            column, before.name(), before.exprId(), before.qualifier(), none, jvm.PythonUtils.toSeq([])
        )
        for before, column in zip(items(plan.output()), items(new.output()), strict=True)
    ]
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(jvm.PythonUtils.toSeq(aliases), new)


def _without(spark: SparkSession, plan: Any, inputs: Sequence[Any]) -> Any:
    """A plan with an empty leaf in the place of each input, which has its columns, and as many rows as its number."""
    jvm: Any = spark._jvm
    for number, one in enumerate(inputs, 1):
        if plan.sameResult(one):
            rows = jvm.PythonUtils.toSeq([jvm.org.apache.spark.sql.catalyst.InternalRow.empty()] * number)
            none = jvm.scala.Option.empty()
            return jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation(plan.output(), rows, False, none)
    children = list(items(plan.children())) if inputs else []
    changed = [_without(spark, child, inputs) for child in children]
    if all(after is before for before, after in zip(children, changed, strict=True)):
        return plan
    return plan.withNewChildren(jvm.PythonUtils.toSeq(changed))


def _in_expressions(spark: SparkSession, plan: Any) -> Iterator[tuple[str, Sequence[str]]]:
    """What the text of a plan does not say of its expressions, and what these read of the world.

    Its text only names functions: two lambdas look the same.
    """
    jvm: Any = spark._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    hidden = [patterns.PYTHON_UDF(), patterns.SQL_SCALAR_FUNCTION(), patterns.SCALA_UDF(), patterns.CURRENT_LIKE()]
    # A walk takes several calls of the JVM per operator, and most plans hold none of these.
    if not any(plan.containsPattern(one) for one in (*hidden, patterns.GENERATE())):
        return

    def look(expression: Any) -> Iterator[tuple[str, Sequence[str]]]:
        kind = str(expression.getClass().getSimpleName())
        if kind.startswith("Python"):
            try:
                command = cloudpickle.loads(bytes(expression.func().command().unsafeArray()))
                looked = look_at(command[0])
                # A plan that is made canonical has no types.
                text = f"{expression.evalType()} {expression.dataType().json()} {looked.fingerprint}"
            except Exception:
                yield unique(), ()
            else:
                yield text, looked.world
        elif kind == "SQLScalarFunction":
            yield _ID.sub("", str(expression.child().toString())), ()
        elif kind == "ScalaUDF":
            name = expression.udfName()
            yield "", [f"the JVM's function {str(name.get()) if name.isDefined() else ''}".rstrip()]
        elif expression.children().isEmpty() and expression.containsPattern(patterns.CURRENT_LIKE()):
            yield "", [f"{expression.prettyName()}()"]
        for child in items(expression.children()):
            if kind.startswith("Python") or any(child.containsPattern(one) for one in hidden):
                yield from look(child)

    nodes = [plan]
    while nodes:
        node = nodes.pop()
        # A table function of Python has no pattern.
        is_generator = str(node.nodeName()) == "Generate"
        for expression in items(node.expressions()):
            if is_generator or any(expression.containsPattern(one) for one in hidden):
                yield from look(expression)
        nodes += items(node.children())


def _rows_of_the_driver(rdd: Any) -> str | None:
    """A fingerprint of rows that the driver has made a DataFrame of; None where an RDD is made of anything else.

    Spark keeps them pickled, in batches, in the first of the RDDs that it converts them by.
    """
    try:
        for kind in _FROM_ROWS:
            if rdd.getClass().getSimpleName() != kind:
                return None
            if kind == "PythonRDD":
                function, *_ = cloudpickle.loads(bytes(_private(rdd, "func").command().unsafeArray()))
                # `rdd.map(lambda x: x)` is how PySpark changes the size of batches.
                (mapped,) = (cell.cell_contents for cell in function.__closure__)
                if function.__qualname__ != "RDD.map.<locals>.func" or mapped.__code__.co_code != _SAME:
                    return None
            if kind != _FROM_ROWS[-1]:
                rdd = rdd.dependencies().apply(0).rdd()
        return digest(*(bytes(batch).hex() for batch in items(_private(rdd, "data"))))
    except Exception:  # another version of Spark
        return None


def _plan_text(spark: SparkSession, plan: Any) -> str:
    with whole_texts(spark):
        return str(plan.canonicalized().toString())


def _private(one: Any, name: str) -> Any:
    field = one.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(one)


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _field(writer: DataStreamWriter, name: str) -> Any:
    field = writer._jwrite.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field


def items(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def all_plans(frame: DataFrame) -> list[Any]:
    """The plan of a frame, and the plans of the subqueries in its expressions."""
    plan = _analyzed(frame)
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
        # Without files of partitions that are not read.
        return frame.inputFiles()
    # What is cached, or in a subquery, is left out there.
    return [str(file) for leaf in leaves for file in leaf.relation().location().inputFiles()]


def _is_relation(leaf: Any) -> bool:
    return str(leaf.nodeName()).split()[0] == "LogicalRelation"
