"""Operators over whole partitions, which are complete when the input has ended (Flink's `PartitionWindowedStream`)."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin._stages.declare.reducing import ReduceFunction, over_batches, over_table
from penstock.spark_plugin._stages.declare.windowing import Expression, columns, sorting, terms

if TYPE_CHECKING:
    import pandas as pd

    from penstock.spark_plugin._stages.declare.data_stream import DataStream

_FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
_SORTS_ITSELF = OperatorAttributes(output_only_after_end_of_stream=True, internal_sorter_supported=True)
_PARTITION = "penstock_partition"


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
