"""The aggregates of 20 M rows that a stream is joined with in benchmarks."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as everybody writes it

from benchmarks import _jobs as jobs

ROWS, KEYS = 20_000_000, 10_000


def by_name(stream: DataFrame) -> DataFrame:
    """A stream of `k` with the statistics of its key, as text: rows, mean, deviation, number of distinct values."""
    value = F.col("v")
    totals = (
        jobs.session()
        .read.parquet(jobs.table(ROWS, KEYS, text=True))
        .groupBy("name")
        .agg(
            F.count("*").alias("rows"),
            F.avg(value).alias("mean"),
            F.stddev(value).alias("deviation"),
            F.approx_count_distinct(value).alias("values"),
        )
    )
    return stream.select(jobs.name_of(F.col("k"))).join(totals, "name")


def light(stream: DataFrame) -> DataFrame:
    """With the least that an aggregate can be: mean and maximum by a whole number."""
    totals = jobs.session().read.parquet(jobs.table(ROWS, KEYS)).groupBy("k").agg(F.avg("v"), F.max("v"))
    return stream.join(totals, "k")


Joined = Callable[[DataFrame], DataFrame]
