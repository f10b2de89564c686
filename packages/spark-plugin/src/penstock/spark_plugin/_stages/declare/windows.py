"""Windows of keyed rows, and functions over the rows of a window."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import GlobalWindows, WindowAssigner
from penstock.spark_plugin.errors import PipelineDefinitionError

if TYPE_CHECKING:
    import pyarrow as pa

Expression = str | Column | Callable[[], Column]
"""A column as SQL (`"avg(temp) as temp"`), as Spark's own, or as a function that gives one.

Of SQL and functions a pipeline sees whether they have changed; stages with a column that was made before run again."""

ALL = "penstock_all"
"""The column that all rows are grouped by where there is neither a key nor a window of time."""


def columns(expressions: Sequence[Expression]) -> list[Column]:
    """Spark's columns."""
    return [F.expr(one) if isinstance(one, str) else one if isinstance(one, Column) else one() for one in expressions]


Term = Column | Callable[[], Column] | tuple[str, bool]
"""What is sorted by: SQL with whether it ascends, or a column that says so itself."""


def terms(expressions: Sequence[Expression]) -> tuple[Term, ...]:
    """What is sorted by; `"time desc"` is SQL for the other way."""
    return tuple(_term(one) if isinstance(one, str) else one for one in expressions)


def sorting(term: Term) -> Column:
    """Spark's column to sort by."""
    if isinstance(term, tuple):
        (column,) = columns([term[0]])
        return column.asc() if term[1] else column.desc()
    (column,) = columns([term])
    return column


def _term(text: str) -> tuple[str, bool]:
    words = text.rsplit(None, 1)
    if len(words) == 2 and words[1].lower() in ("asc", "desc"):
        return words[0], words[1].lower() == "asc"
    return text, True


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedWindow:
    """Keys of an input, and the windows of each key."""

    keys: tuple[str, ...]
    """None: all records are in the same windows."""
    assigner: WindowAssigner
    time: str | None = None
    """The column with a record's time, for windows of time."""
    watermark: str | None = None
    """How late records may be, on a stream."""

    def __post_init__(self) -> None:
        if isinstance(self.assigner, GlobalWindows):
            if not self.assigner.end_of_stream_trigger:
                raise PipelineDefinitionError("GlobalWindows.create() never fires: it would give no rows")
        elif self.time is None:
            raise PipelineDefinitionError("windows of time need `time`, the column that they go by")

    @property
    def full_dam(self) -> bool:
        """Whether nothing is given before the end of the input."""
        return self.assigner.fires_only_at_end_of_stream

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that tell windows apart."""
        return self.keys if self._window() is None else (*self.keys, "window")

    def grouping(self) -> list[Column]:
        """What rows are grouped by; the window's own column is named `window`."""
        window = self._window()
        grouping = [F.col(key) for key in self.keys] + ([window.alias("window")] if window is not None else [])
        # By nothing at all, an empty input would give a row.
        return grouping or [F.lit("").alias(ALL)]

    def prepare(self, frame: DataFrame) -> DataFrame:
        """The input, with the watermark that a stream needs.

        Raises:
            PipelineDefinitionError: a stream has no watermark: its windows would never close.
        """
        if self.time is None or not frame.isStreaming:
            return frame
        if self.watermark is None:
            raise PipelineDefinitionError("windows of time over a stream need a `watermark`, by which they close")
        return frame.withWatermark(self.time, self.watermark)

    def _window(self) -> Column | None:
        if self.time is None or isinstance(self.assigner, GlobalWindows):
            return None
        gap = getattr(self.assigner, "gap", None)
        if gap is not None:
            return F.session_window(self.time, _text(gap))
        size = getattr(self.assigner, "size", None)
        if size is None:
            raise PipelineDefinitionError(f"{self.assigner!r} is not a window that Spark knows")
        slide, offset = getattr(self.assigner, "slide", size), getattr(self.assigner, "offset", timedelta(0))
        # Spark takes no negative start.
        return F.window(self.time, _text(size), _text(slide), _text(offset % slide))


def _text(value: timedelta) -> str:
    return f"{value // timedelta(microseconds=1)} microseconds"


Row = dict[str, Any]
"""A row by column: Python's own values, None for null; times are aware, in UTC."""
ReduceFunction = Callable[[Row, Row], Row]


def over_table(function: ReduceFunction, names: list[str]) -> "Callable[[pa.Table], pa.Table]":
    """For `applyInArrow`: the rows of a group as one. Columns other than `names` are left out."""
    over = over_batches(function)

    def reduce(rows: "pa.Table") -> "pa.Table":
        rows = rows.select(names)
        # Each group has rows.
        return type(rows).from_batches(over(rows.to_batches()))

    return reduce


def over_batches(function: ReduceFunction) -> "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """For `mapInArrow`: the rows of a partition as one; none of an empty one."""

    # What workers run is inside of here: then they need this package no more than the function does.
    def reduce(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        def in_utc(kind: pa.DataType) -> pa.DataType:
            # Spark hands out the session's time zone, of which Python may not know the name, and takes back UTC.
            if pa.types.is_timestamp(kind) and kind.tz is not None:
                return pa.timestamp(kind.unit, tz="UTC")
            if pa.types.is_struct(kind):
                return pa.struct(
                    [kind.field(index).with_type(in_utc(kind.field(index).type)) for index in range(kind.num_fields)]
                )
            if pa.types.is_map(kind):
                return pa.map_(
                    kind.key_field.with_type(in_utc(kind.key_type)), kind.item_field.with_type(in_utc(kind.item_type))
                )
            if pa.types.is_large_list(kind):
                return pa.large_list(kind.value_field.with_type(in_utc(kind.value_type)))
            if pa.types.is_list(kind):
                return pa.list_(kind.value_field.with_type(in_utc(kind.value_type)))
            return kind

        result: Row | None = None
        schema: pa.Schema | None = None
        for batch in batches:
            schema = pa.schema([field.with_type(in_utc(field.type)) for field in batch.schema])
            records = batch.cast(schema).to_pylist()
            if records:
                result = functools.reduce(function, records if result is None else [result, *records])
        if result is not None:
            yield pa.RecordBatch.from_pylist([result], schema=schema)

    return reduce
