"""The checkpoints and names that users give to live queries are theirs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_SECONDS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark_plugin import Pipeline, PipelineRun, run_staged
from penstock.spark_plugin.errors import StageFailedError


def put(folder: Path, *values: int) -> None:
    folder.mkdir(exist_ok=True)
    for value in values:
        (folder / f"{value}.csv").write_text(f"{value}\n")


def numbers(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("n int").csv(str(folder))


class Table:
    """The numbers that a query has written, in its own order."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, frame: DataFrame, _: int) -> None:
        self.seen += [row["n"] for row in frame.collect()]

    def writer(self, frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.foreachBatch(self).trigger(availableNow=True)


def staged(writer: Callable[[DataFrame], DataStreamWriter], folder: Path) -> Pipeline:
    """A job with one live sink, `out`."""
    pipeline = Pipeline("job", store=folder / "store")
    pipeline.source(bounded=False, name="numbers")(lambda spark: numbers(spark, folder / "in"))
    pipeline.sink(name="out", inputs=["numbers"])(writer)
    return pipeline


def finish(run: PipelineRun) -> None:
    assert run.await_termination(PATIENCE_SECONDS)
    run.stop()


def refusal(call: Callable[[], PipelineRun]) -> str:
    with pytest.raises(StageFailedError) as caught:
        call()
    return caught.value.reason


def place(writer: Callable[..., Any]) -> str:
    code = writer.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def test_a_query_that_ran_before_continues_from_its_own_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """By Pipeline and by run_staged: what it has read is not read again, and its name stays."""
    put(tmp_path / "in", 1, 2)
    table = Table()
    location = str(tmp_path / "checkpoint")

    def writer(frame: DataFrame) -> DataStreamWriter:
        return table.writer(frame).option("checkpointLocation", location).queryName("mine")

    assert writer(numbers(spark, tmp_path / "in")).start().awaitTermination(PATIENCE_SECONDS)
    put(tmp_path / "in", 3)
    run = staged(writer, tmp_path).run(spark)
    assert run.queries["out"].name == "mine"
    finish(run)
    put(tmp_path / "in", 4)
    run = run_staged(writer(numbers(spark, tmp_path / "in")), store=tmp_path / "other")
    assert run.queries["output"].name == "mine"
    finish(run)
    assert sorted(table.seen[:2]) == [1, 2]
    assert table.seen[2:] == [3, 4]


def test_a_query_continues_where_it_was_adopted(spark: SparkSession, tmp_path: Path) -> None:
    """Also when the option is left out later; and a second location is refused by name."""
    put(tmp_path / "in", 1)
    table = Table()
    first, second = f"file:{tmp_path}/first", f"file:{tmp_path}/second"

    def at_first(frame: DataFrame) -> DataStreamWriter:
        return table.writer(frame).option("checkpointLocation", first)

    def at_second(frame: DataFrame) -> DataStreamWriter:
        return table.writer(frame).option("checkpointLocation", second)

    finish(staged(at_first, tmp_path).run(spark))
    put(tmp_path / "in", 2)
    finish(staged(table.writer, tmp_path).run(spark))
    assert table.seen == [1, 2]
    assert refusal(lambda: staged(at_second, tmp_path).run(spark)) == (
        f"sink 'out' ({place(at_second)}) has the checkpointLocation {second}, but its query has its progress in "
        f"{first}: give it that location, leave the option out, or use another store"
    )


def test_a_second_checkpoint_beside_the_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """An empty one would begin again at the beginning."""
    put(tmp_path / "in", 1)
    table = Table()
    finish(staged(table.writer, tmp_path).run(spark))
    location = f"file:{tmp_path}/new"

    def writer(frame: DataFrame) -> DataStreamWriter:
        return table.writer(frame).option("checkpointLocation", location)

    assert refusal(lambda: staged(writer, tmp_path).run(spark)) == (
        f"sink 'out' ({place(writer)}) has the checkpointLocation {location}, but its query has its progress in "
        f"file:{tmp_path}/store/live/out/checkpoint: give it that location, leave the option out, or use another store"
    )


def test_what_is_not_the_stores_is_not_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """A run with `resume=False` does not continue from the user's checkpoint, nor remove it."""
    put(tmp_path / "in", 1)
    table = Table()
    location = f"file:{tmp_path}/mine"

    def writer(frame: DataFrame) -> DataStreamWriter:
        return table.writer(frame).option("checkpointLocation", location)

    finish(staged(writer, tmp_path).run(spark))
    assert refusal(lambda: staged(writer, tmp_path).run(spark, resume=False)) == (
        f"sink 'out' ({place(writer)}) has the checkpointLocation {location}, in which a query has made progress, "
        "and resume=False starts from the beginning: remove that folder, give another location, or leave the option out"
    )
    put(tmp_path / "in", 2)
    finish(staged(writer, tmp_path).run(spark))
    assert table.seen == [1, 2]


def test_the_checkpoint_of_another_query_is_refused(
    spark: SparkSession, make_stream: Callable[[int], Any], tmp_path: Path
) -> None:
    """One that has read other streams, or another number of sources."""
    put(tmp_path / "in", 1)
    table = Table()
    location = f"file:{tmp_path}/files"
    two = numbers(spark, tmp_path / "in").union(numbers(spark, tmp_path / "in"))
    query = table.writer(two).option("checkpointLocation", location).start()
    assert query.awaitTermination(PATIENCE_SECONDS)

    def writer(frame: DataFrame) -> DataStreamWriter:
        return table.writer(frame).option("checkpointLocation", location)

    assert refusal(lambda: staged(writer, tmp_path).run(spark)) == (
        f"sink 'out' ({place(writer)}) has the checkpointLocation {location}, which belongs to another query: it has "
        "read 2 streaming sources, and this one reads 1; give this query's own, or leave it out"
    )

    first, second = make_stream(1), make_stream(1)

    def read(stream: Any) -> DataFrame:
        options = stream.options(initialPosition="TRIM_HORIZON")
        return spark.readStream.format("kinesis").options(**options).load()

    kinesis = f"file:{tmp_path}/kinesis"

    def noop(frame: DataFrame) -> DataStreamWriter:
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        return writer.option("checkpointLocation", kinesis)

    first.put(3)
    assert noop(read(first)).start().awaitTermination(PATIENCE_SECONDS)
    pipeline = Pipeline("job", store=tmp_path / "other")
    pipeline.source(bounded=False, name="records")(lambda _: read(second))
    pipeline.sink(name="out", inputs=["records"])(noop)
    assert refusal(lambda: pipeline.run(spark)) == (
        f"sink 'out' ({place(noop)}) has the checkpointLocation {kinesis}, which belongs to another query: it has read "
        f"the streams {first.name}, and this one reads {second.name}; give this query's own, or leave it out"
    )
    finish(run_staged(noop(read(first)), store=tmp_path / "third"))


def test_two_sinks_do_not_share_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Neither would be what the other left."""
    put(tmp_path / "in", 1)
    location = f"file:{tmp_path}/one"

    def writer(frame: DataFrame) -> DataStreamWriter:
        return Table().writer(frame).option("checkpointLocation", location)

    pipeline = staged(writer, tmp_path)
    pipeline.sink(name="too", inputs=["numbers"])(writer)
    assert refusal(lambda: pipeline.run(spark)) == (
        f"sink 'too' ({place(writer)}) has the checkpointLocation {location}, which sink 'out' has too: give each its "
        "own location, or leave the option out"
    )


def test_the_sessions_folder_of_checkpoints_is_looked_into(spark: SparkSession, tmp_path: Path) -> None:
    """Without Penstock a named query had its checkpoint there."""
    put(tmp_path / "in", 1)
    table = Table()
    spark.conf.set("spark.sql.streaming.checkpointLocation", f"{tmp_path}/all")
    try:

        def writer(frame: DataFrame) -> DataStreamWriter:
            return table.writer(frame).queryName("mine")

        assert writer(numbers(spark, tmp_path / "in")).start().awaitTermination(PATIENCE_SECONDS)
        put(tmp_path / "in", 2)
        finish(staged(writer, tmp_path).run(spark))
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert table.seen == [1, 2]
