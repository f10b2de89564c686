"""Several live sinks of one pipeline are several queries: each reads its sources separately."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin import Pipeline, run_staged
from penstock.spark_plugin.errors import PipelineDefinitionError, StageFailedError

EFO = {"recordPublisher": "efo", "efoConsumerName": "job"}
CURES = (
    "declare a source for each with an efoConsumerName of its own, write both in one sink by foreachBatch, or read "
    "with recordPublisher=polling, by which each query reads the stream"
)


def two_sinks(folder: Path, read: Callable[[SparkSession], DataFrame]) -> Pipeline:
    pipeline = Pipeline("job", store=folder / "store")
    pipeline.source(bounded=False, name="flights")(read)
    pipeline.op(name="late", inputs=["flights"])(lambda flights: flights.limit(3))
    pipeline.sink(name="archive", inputs=["flights"])(write)
    pipeline.sink(name="delays", inputs=["late"])(write)
    return pipeline


def write(frame: DataFrame) -> Any:
    return frame.writeStream.format("noop")


def kinesis(stream: str, **options: str) -> Callable[[SparkSession], DataFrame]:
    def read(spark: SparkSession) -> DataFrame:
        given = {"streamName": stream, "region": "eu-west-1", **options}
        return spark.readStream.format("kinesis").options(**given).load()

    return read


def place(function: Callable[..., Any]) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def test_two_live_sinks_on_one_consumer_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Before anything is run: the second would wait for the first, and never start."""
    read = kinesis("flights", **EFO)
    at = place(write)
    with pytest.raises(PipelineDefinitionError) as caught:
        two_sinks(tmp_path, read).run(spark)
    assert str(caught.value) == (
        f"sinks 'archive' ({at}) and 'delays' ({at}) are queries of their own, and read source 'flights' "
        f"({place(read)}) with one stream consumer, 'job', of which Kinesis serves one: {CURES}"
    )
    assert not (tmp_path / "store" / "live").exists()

    other = kinesis("flights", **EFO)
    pipeline = Pipeline("job", store=tmp_path / "store")
    pipeline.source(bounded=False, name="one")(read)
    pipeline.source(bounded=False, name="two")(other)
    pipeline.sink(name="archive", inputs=["one"])(write)
    pipeline.sink(name="delays", inputs=["two"])(write)
    with pytest.raises(PipelineDefinitionError) as caught:
        pipeline.run(spark)
    assert str(caught.value) == (
        f"sinks 'archive' ({at}) and 'delays' ({at}) are queries of their own, and read sources 'one' ({place(read)}) "
        f"and 'two' ({place(other)}) with one stream consumer, 'job', of which Kinesis serves one: {CURES}"
    )


def test_two_reads_of_one_query_with_one_consumer_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """As of a stream that is put together with itself."""
    flights = kinesis("flights", **EFO)(spark)
    with pytest.raises(StageFailedError) as caught:
        run_staged(write(flights.union(flights)), store=tmp_path / "store")
    line = test_two_reads_of_one_query_with_one_consumer_are_refused.__code__.co_firstlineno + 4
    assert caught.value.reason == (
        f"sink 'output' ({__file__}:{line}) reads the stream 'flights' twice in one query with one stream consumer, "
        "'job', of which Kinesis serves one: read it once, give each read an efoConsumerName of its own, or read with "
        "recordPublisher=polling"
    )


def test_a_stream_that_is_read_twice_gives_a_warning(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In explain, and in the log as it is compiled; by polling, or consumers of their own, it works."""

    def rate(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()

    pipeline = two_sinks(tmp_path, rate)
    told = (
        f"source 'flights' ({place(rate)}) is read 2 times, by each of the queries of sinks 'archive' ({place(write)}) "
        f"and 'delays' ({place(write)}): write them in one sink by foreachBatch to read it once"
    )
    with caplog.at_level(logging.WARNING, logger="penstock.spark_plugin"):
        run = pipeline.run(spark)
    run.stop()
    assert [record.getMessage() for record in caplog.records if "is read" in record.getMessage()] == [told]
    assert pipeline.explain().endswith(f"\n\nwarning: {told}\n")

    own = Pipeline("own", store=tmp_path / "own")
    for name in ("one", "two"):
        own.source(bounded=False, name=name)(rate)
        own.sink(name=f"to_{name}", inputs=[name])(write)
    assert "warning" not in own.explain()
