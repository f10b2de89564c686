"""`read_kinesis(…)` in SQL."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark_plugin import register


def _sql(options: dict[str, str], what: str = "*", **more: object) -> str:
    given = {**options, **more}
    named = "".join(
        f", {name} => {value if isinstance(value, int) else repr(value)}"
        for name, value in given.items()
        if name != "streamName"
    )
    return f"SELECT {what} FROM read_kinesis('{given['streamName']}'{named})"


def test_a_stream_is_read_in_sql(spark: SparkSession, make_stream: Callable[[int], Any]) -> None:
    """All shards, with the columns of the data source; each query reads what the stream holds by then."""
    register(spark)
    source = make_stream(2)
    source.put(30)
    frame = spark.sql(_sql(source.options()))
    assert frame.columns == spark.read.format("kinesis").options(**source.options()).load().columns
    keys = sorted((row.shardId, row.sequenceNumber) for row in frame.collect())
    assert keys == sorted(source.put_keys)
    source.put(10)
    assert frame.count() == 40
    named = _sql(source.options(), "count(*) AS n").replace("read_kinesis(", "read_kinesis(streamName => ")
    assert spark.sql(named).first() == (40,)
    assert spark.sql(_sql(source.options(), shardIds=keys[0][0], maxPartitions=4)).count() == len(
        [key for key in source.put_keys if key[0] == keys[0][0]]
    )


def test_errors_come_when_the_query_is_planned(spark: SparkSession, make_stream: Callable[[int], Any]) -> None:
    """By the messages of the data source; and an argument that no reader can know before it reads."""
    register(spark)
    options = make_stream(1).options()
    for wrong, words in (
        ({"initialPositoin": "LATEST"}, "did you mean 'initialPosition'?"),
        ({"endingPosition": "noon"}, "option .endingPosition. is .noon."),
        ({"recordPublisher": "efo"}, "belongs to streams that are read"),
    ):
        with pytest.raises(Exception, match=words):
            spark.sql(_sql(options, **wrong))
