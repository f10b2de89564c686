"""What a pipeline's functions give, as something to build on: keys, windows, sorting, sinks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes, VertexKind, WindowAssigner, caller
from penstock.spark_plugin._stages.declare.declared import Keyed
from penstock.spark_plugin._stages.declare.windows import (
    ALL,
    Expression,
    KeyedWindow,
    ReduceFunction,
    columns,
    over_batches,
    over_table,
    sorting,
    terms,
)
from penstock.spark_plugin.errors import PipelineDefinitionError

if TYPE_CHECKING:
    import pandas as pd

    from penstock.spark_plugin._stages.declare.pipeline import Pipeline

_FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
_SORTS_ITSELF = OperatorAttributes(output_only_after_end_of_stream=True, internal_sorter_supported=True)
_PARTITION = "penstock_partition"
_PACKAGE = str(Path(__file__).resolve().parents[1])


class PartitionWindowedStream:
    """The rows of each partition, all of them at once.

    A partition is what one task of Spark's works on: without keys, as the input has been partitioned; with keys, all
    rows of one key. All of these are full-dam operators: over an unbounded input they are refused.
    """

    def __init__(self, stream: "DataStream", keys: Sequence[str] = ()) -> None:
        self._stream = stream
        self._keys = tuple(keys)

    def sort_partition(self, *expressions: Expression, name: str) -> "DataStream":
        """Sort the rows of each partition; `"time desc"` is SQL for the other way. The rows of a key stay together."""
        keys, wanted = self._keys, terms(expressions)

        def sort(frame: DataFrame) -> DataFrame:
            frame = frame.repartition(*keys) if keys else frame
            return frame.sortWithinPartitions(*keys, *(sorting(one) for one in wanted))

        return self._stream._add(sort, name=name, keyed=bool(keys), attributes=_SORTS_ITSELF, order=sort)

    def aggregate(self, *expressions: Expression, name: str) -> "DataStream":
        """Aggregate each partition: a row each, with its keys. A partition without rows gives none."""
        keys = self._keys

        def aggregate(frame: DataFrame) -> DataFrame:
            if keys:
                return frame.groupBy(*keys).agg(*columns(expressions))
            # Combined where the rows are: one row of each partition is sent.
            grouped = frame.groupBy(F.spark_partition_id().alias(_PARTITION))
            return grouped.agg(*columns(expressions)).drop(_PARTITION)

        return self._stream._add(aggregate, name=name, keyed=bool(keys), attributes=_FULL_DAM, keys=keys)

    def reduce(self, function: ReduceFunction, *, name: str) -> "DataStream":
        """Combine the rows of each partition two by two, until one is left. Rows are as of a window's `reduce`."""
        keys = self._keys

        def reduce(frame: DataFrame) -> DataFrame:
            if keys:
                return frame.groupBy(*keys).applyInArrow(over_table(function, frame.columns), frame.schema)
            return frame.mapInArrow(over_batches(function), frame.schema)

        return self._stream._add(reduce, name=name, keyed=bool(keys), attributes=_FULL_DAM, keys=keys)

    def map_partition(
        self, function: "Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]", schema: str, *, name: str
    ) -> "DataStream":
        """Call a function with the rows of each partition, as pandas, in any number of batches; it gives rows likewise.

        It is called for a partition without rows, too, where there are no keys.
        """
        keys = self._keys

        def map_partition(frame: DataFrame) -> DataFrame:
            if not keys:
                return frame.mapInPandas(function, schema)

            def one(rows: "pd.DataFrame") -> "pd.DataFrame":
                import pandas as pd

                batches = list(function(iter([rows])))
                return pd.concat(batches, ignore_index=True) if batches else pd.DataFrame()

            return frame.groupBy(*keys).applyInPandas(one, schema)

        return self._stream._add(map_partition, name=name, keyed=bool(keys), attributes=_FULL_DAM)


class DataStream:
    """The rows of a source or operator of a pipeline, by its name."""

    def __init__(self, pipeline: "Pipeline", name: str) -> None:
        self.pipeline = pipeline
        self.name = name

    def key_by(self, *keys: str) -> "KeyedStream":
        """Partition the rows by columns.

        Raises:
            PipelineDefinitionError: no column is named.
        """
        if not keys:
            raise PipelineDefinitionError("name at least one key, or use `window_all` to have none")
        return KeyedStream(self, keys)

    def window_all(
        self, assigner: WindowAssigner, *, time: str | None = None, watermark: str | None = None
    ) -> "WindowedStream":
        """Put all rows, whatever their keys, into windows. Arguments as of `KeyedStream.window`."""
        return WindowedStream(self, KeyedWindow(keys=(), assigner=assigner, time=time, watermark=watermark))

    def full_window_partition(self) -> PartitionWindowedStream:
        """Take each partition's rows together, when the input has ended (Flink's `fullWindowPartition`)."""
        return PartitionWindowedStream(self)

    def transform(
        self,
        function: Callable[..., DataFrame],
        *others: "DataStream",
        name: str | None = None,
        attributes: OperatorAttributes | None = None,
        keyed: Keyed = False,
        chained: bool | None = None,
    ) -> "DataStream":
        """Add an operator of one's own: a function of this and others' DataFrames. Arguments as of `Pipeline.op`."""
        return self._add(
            function,
            *others,
            name=name or function.__name__,
            attributes=attributes,
            keyed=keyed,
            chained=chained,
        )

    def sort(self, *expressions: Expression, name: str) -> "DataStream":
        """Sort all rows; `"time desc"` is SQL for the other way. Full-dam: over an unbounded input it is refused."""
        wanted = terms(expressions)

        def sort(frame: DataFrame) -> DataFrame:
            return frame.sort(*(sorting(one) for one in wanted))

        return self._add(sort, name=name, attributes=_SORTS_ITSELF, order=sort)

    def write_to(
        self,
        name: str,
        *,
        format: str,
        mode: str = "append",
        trigger: Mapping[str, Any] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Add a sink of any format that Spark knows: a batch write, or a query with the trigger.

        Args:
            name: The name of the sink, its query and its checkpoint.
            format: `parquet`, `kinesis`, `noop`, …
            mode: Save mode of a batch write, output mode of a query.
            trigger: Arguments of `DataStreamWriter.trigger`.
            options: Options of the format.
        """
        given = dict(options or {})

        def write(frame: DataFrame) -> Any:
            if frame.isStreaming:
                return frame.writeStream.format(format).outputMode(mode).options(**given)
            return frame.write.format(format).mode(mode).options(**given)

        self.pipeline.declare(
            name, VertexKind.SINK, write, inputs=(self.name,), trigger=trigger, site=caller(also_skip=(_PACKAGE,))
        )

    def _add(self, function: Callable[..., DataFrame], *others: "DataStream", name: str, **how: Any) -> "DataStream":
        inputs = (self.name, *(one.name for one in others))
        how.setdefault("site", caller(also_skip=(_PACKAGE,)))
        self.pipeline.declare(name, VertexKind.OPERATOR, function, inputs=inputs, **how)
        return DataStream(self.pipeline, name)


class KeyedStream:
    """Rows partitioned by key."""

    def __init__(self, stream: DataStream, keys: Sequence[str]) -> None:
        self.stream = stream
        self.keys = tuple(keys)

    def window(
        self, assigner: WindowAssigner, *, time: str | None = None, watermark: str | None = None
    ) -> "WindowedStream":
        """Put each key's rows into windows.

        Args:
            assigner: `GlobalWindows.create_with_end_of_stream_trigger()`, one window per key that fires at the end; or
                windows of time.
            time: The column that windows of time go by.
            watermark: How late rows may be, where the input is a stream. A bounded input needs none: all of its windows
                are complete at its end, the last one too.
        """
        return WindowedStream(
            self.stream, KeyedWindow(keys=self.keys, assigner=assigner, time=time, watermark=watermark)
        )

    def full_window_partition(self) -> PartitionWindowedStream:
        """Take each key's rows together, when the input has ended (Flink's `fullWindowPartition`)."""
        return PartitionWindowedStream(self.stream, self.keys)


class WindowedStream:
    """Rows in windows, by key or all together. Aggregates and joins have the keys, and for windows of time the column
    `window`; `reduce` keeps the columns as they are. Over an unbounded input `reduce`, `apply` and `co_group` are
    refused: Spark would call their functions with the rows of one micro-batch, not of a window.

    With windows at the end of the input these are full-dam operators; and so are all over bounded inputs, since Spark
    computes those at once.
    """

    def __init__(self, stream: DataStream, window: KeyedWindow) -> None:
        self._stream = stream
        self._window = window

    def aggregate(self, *expressions: Expression, name: str) -> DataStream:
        """Aggregate each window: `aggregate("avg(temp) as temp", name="daily")`."""
        window = self._window

        def aggregate(frame: DataFrame) -> DataFrame:
            return window.prepare(frame).groupBy(*window.grouping()).agg(*columns(expressions)).drop(ALL)

        return self._add(aggregate, name=name, sessions=True, looked_up=True)

    def reduce(self, function: ReduceFunction, *, name: str) -> DataStream:
        """Combine the rows of each window two by two, until one is left.

        Rows are dictionaries by column, of Python's own values: None for null, times in UTC.
        """
        window = self._window

        def reduce(frame: DataFrame) -> DataFrame:
            grouped = window.prepare(frame).groupBy(*window.grouping())
            return grouped.applyInArrow(over_table(function, frame.columns), frame.schema)

        return self._add(reduce, name=name, looked_up=True, needs_end=True)

    def apply(self, function: Callable[..., "pd.DataFrame"], schema: str, *, name: str) -> DataStream:
        """Call a function with each window's rows, or with its key and rows, as pandas; it gives rows of the schema."""
        window = self._window

        def apply(frame: DataFrame) -> DataFrame:
            return window.prepare(frame).groupBy(*window.grouping()).applyInPandas(function, schema)

        return self._add(apply, name=name, needs_end=True)

    def co_group(
        self, other: "WindowedStream", function: Callable[..., "pd.DataFrame"], schema: str, *, name: str
    ) -> DataStream:
        """Call a function with both inputs' rows of each window, either of which may be empty."""
        left, right = self._window, other._window

        def co_group(first: DataFrame, second: DataFrame) -> DataFrame:
            ours = left.prepare(first).groupBy(*left.grouping())
            theirs = right.prepare(second).groupBy(*right.grouping())
            return ours.cogroup(theirs).applyInPandas(function, schema)

        return self._add(co_group, other, name=name, needs_end=True)

    def co_group_aggregate(
        self, other: "WindowedStream", ours: Sequence[Expression], theirs: Sequence[Expression], *, name: str
    ) -> DataStream:
        """Aggregate both inputs' rows of each window, without Python on the way. Null where an input has none of them.

        Rows whose key is null go together, as in `co_group`.

        Args:
            other: The second input, by the same names of keys.
            ours: Aggregates of this input, `"count(*) as left_rows"`.
            theirs: Aggregates of the other, under other names.
            name: The name of the operator.
        """
        left, right = self._window, other._window
        self._check_names(other, name)

        def co_group(first: DataFrame, second: DataFrame) -> DataFrame:
            one = left.prepare(first).groupBy(*left.grouping()).agg(*columns(ours))
            two = right.prepare(second).groupBy(*right.grouping()).agg(*columns(theirs))
            names = list(left.names)
            twice = sorted(set(one.columns) & set(two.columns) - set(names))
            if twice:
                raise PipelineDefinitionError(f"{name!r}: both inputs give {twice[0]!r}; name their aggregates apart")
            if one.isStreaming or two.isStreaming:
                return one.join(two, names, "full")
            # A join would leave null keys apart. There is one row of each input at most, so that any value is the one.
            values = [F.any_value(column, True).alias(column) for column in (*one.columns, *two.columns)]
            rows = one.unionByName(two, allowMissingColumns=True).groupBy(*names)
            return rows.agg(*values[len(names) : len(one.columns)], *values[len(one.columns) + len(names) :])

        return self._add(co_group, other, name=name)

    def join(self, other: "WindowedStream", *, name: str, how: str = "inner") -> DataStream:
        """Join the rows of both inputs that are in the same window of the same key.

        Keys have the same names on both sides; other columns of the same name do not go together. A null key is equal
        to none, as in SQL.
        """
        left, right = self._window, other._window
        self._check_names(other, name)

        def join(first: DataFrame, second: DataFrame) -> DataFrame:
            return _in_windows(left, first).join(_in_windows(right, second), list(left.names), how)

        return self._add(join, other, name=name)

    def _add(
        self,
        function: Callable[..., DataFrame],
        *others: "WindowedStream",
        name: str,
        sessions: bool = False,
        looked_up: bool = False,
        needs_end: bool = False,
    ) -> DataStream:
        windows = (self._window, *(one._window for one in others))
        for one in windows[1:]:
            if one.assigner != self._window.assigner:
                raise PipelineDefinitionError(
                    f"{name!r}: both inputs need the same windows, not {self._window.assigner} and {one.assigner}"
                )
            if len(one.keys) != len(self._window.keys) or not one.keys:
                raise PipelineDefinitionError(
                    f"{name!r}: both inputs need the same number of keys, at least one: "
                    f"not {list(self._window.keys)} and {list(one.keys)}"
                )
        if any(hasattr(one.assigner, "gap") for one in windows) and not sessions:
            # Outside of an aggregate it leaves each row in a session of its own.
            raise PipelineDefinitionError(f"{name!r}: Spark merges session windows in aggregates alone")
        return self._stream._add(
            function,
            *(one._stream for one in others),
            name=name,
            keyed=bool(self._window.keys),
            attributes=_FULL_DAM if needs_end or any(one.full_dam for one in windows) else None,
            full_dam_when_bounded=True,
            keys=self._window.keys if looked_up else (),
        )

    def _check_names(self, other: "WindowedStream", name: str) -> None:
        if self._window.keys != other._window.keys:
            raise PipelineDefinitionError(
                f"{name!r}: the keys of both inputs need the same names, not {list(self._window.keys)} and "
                f"{list(other._window.keys)}: rename one side's in a `transform`"
            )


def _in_windows(window: KeyedWindow, frame: DataFrame) -> DataFrame:
    frame = window.prepare(frame)
    if window.names == window.keys:
        return frame
    frame = frame.select("*", window.grouping()[-1])
    if frame.isStreaming and window.time is not None:
        # The window has the watermark, too, and Spark takes one such column only.
        frame = frame.withMetadata(window.time, {})
    return frame
