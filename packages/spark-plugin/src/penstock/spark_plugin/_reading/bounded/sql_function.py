"""`read_kinesis(…)` in SQL: a bounded read as a table function."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.parsing import check_use
from penstock.spark_plugin._options.spec import Use
from penstock.spark_plugin._schema import read_schema
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "read_kinesis"


def register(spark: "SparkSession") -> None:
    """Make `read_kinesis` a table function of the session's SQL: a bounded read, by the options of the data source.

    `SELECT * FROM read_kinesis('flights', initialPosition => 'TRIM_HORIZON')` has the columns of
    `format("kinesis")`; the first argument is `streamName`. It is read again each time, up to the moment at which it
    runs, and by one task, whatever the number of shards: to read in parallel, make a view `USING kinesis`. On Spark
    Connect the package has to be installed beside the server, too.

    Args:
        spark: a session, also one of Spark Connect; Spark 4.0 or newer.
    """
    from pyspark.sql.functions import udtf

    spark.udtf.register(NAME, udtf(ReadKinesis))  # type: ignore[arg-type]  # a class with `analyze` has no return type


class ReadKinesis:
    """The function. Spark asks `analyze` for the columns as it plans a query, and calls `eval` in a task."""

    @staticmethod
    def analyze(streamName: AnalyzeArgument, **options: AnalyzeArgument) -> AnalyzeResult:  # SQL's name
        """The columns, or what is wrong with the options."""
        given = {"streamName": streamName, **options}
        for name, argument in given.items():
            if not argument.isConstantExpression:
                raise OptionError.invalid(name, "an expression over columns", "a constant")
        return AnalyzeResult(read_schema(_parsed({name: one.value for name, one in given.items()})))

    def eval(self, streamName: str, **options: Any) -> Iterator[tuple[Any, ...]]:  # SQL's name
        """The rows."""
        from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader

        reader = KinesisBatchReader(_parsed({"streamName": streamName, **options}))
        for partition in reader.partitions():
            for batch in reader.read(partition):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _parsed(options: dict[str, Any]) -> KinesisOptions:
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
    parsed = KinesisOptions.parse(texts)
    check_use(texts, Use.READ)
    return parsed
