"""The fixtures of this folder, from a module with a name of its own, as mypy asks of each."""

from spark_fixtures import (
    collected,
    kinesis,
    make_stream,
    no_query_outlives_its_test,
    pytest_configure,
    signals,
    spark,
    stays_classic,
    until,
)

__all__ = [
    "collected",
    "kinesis",
    "make_stream",
    "no_query_outlives_its_test",
    "pytest_configure",
    "signals",
    "spark",
    "stays_classic",
    "until",
]
