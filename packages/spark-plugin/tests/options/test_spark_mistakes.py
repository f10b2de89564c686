"""What users get wrong: each error says where, and what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import OperatorAttributes
from penstock.operator_attributes.errors import CompileError
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin.errors import (
    PipelineDefinitionError,
    PipelineError,
    StoreUnusableError,
)

HERE = r"test_spark_mistakes\.py:\d+"
FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def job(store: Path, **changes: Callable[..., Any]) -> Pipeline:
    """Counts of a table, joined with a stream; `changes` take the place of its functions by name."""
    pipeline = Pipeline("job", store=store)

    def table(spark: SparkSession) -> DataFrame:
        return spark.range(3)

    def counts(table: DataFrame) -> DataFrame:
        return table.groupBy("id").count()

    def live(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load().selectExpr("value as id")

    def joined(live: DataFrame, counts: DataFrame) -> DataFrame:
        return live.join(counts, "id")

    def out(joined: DataFrame) -> Any:
        return joined.writeStream.format("noop")

    pipeline.source(bounded=True, name="table")(changes.get("table", table))
    pipeline.op(attributes=FULL_DAM, name="counts")(changes.get("counts", counts))
    pipeline.source(bounded=False, name="live")(changes.get("live", live))
    pipeline.op(name="joined")(changes.get("joined", joined))
    pipeline.sink(name="out")(changes.get("out", out))
    return pipeline


def nothing(joined: DataFrame) -> None:
    joined.writeStream.format("noop")


def started(joined: DataFrame) -> Any:
    # A query in memory needs no checkpoint.
    return joined.writeStream.format("memory").queryName("started_too_early").start()


def no_rows(table: DataFrame) -> None:
    table.groupBy("id").count()


def typing_error(table: DataFrame) -> DataFrame:
    return table.groupBy("idd").count()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"out": nothing}, rf"'out' \(.*{HERE}\) must give a DataStreamWriter .* not NoneType"),
        ({"out": started}, rf"'out' \(.*{HERE}\) must give a DataStreamWriter .* that is not started"),
        ({"counts": no_rows}, rf"'counts' \(.*{HERE}\) must give a DataFrame, not NoneType"),
        ({"counts": typing_error}, rf"`idd` cannot be resolved. Did you mean .*`id`.*; in 'counts' \(.*{HERE}\)"),
    ],
    ids=[
        "sink without writer",
        "sink that is started",
        "operator without frame",
        "column",
    ],
)
def test_what_a_function_gives_is_checked(
    spark: SparkSession, tmp_path: Path, changes: dict[str, Callable[..., Any]], words: str
) -> None:
    """The function is named, and nothing runs on."""
    with pytest.raises(PipelineError, match=words):
        job(tmp_path, **changes).run(spark)
    assert not spark.streams.active
    # The store is free again.
    job(tmp_path).run(spark).stop()


def test_a_parameter_that_is_no_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    """Before anything is read."""

    def joined(live: DataFrame, conts: DataFrame) -> DataFrame:
        return live.join(conts, "id")

    with pytest.raises(CompileError, match=rf"'joined' \(.*{HERE}\) reads 'conts'.*did you mean 'counts'"):
        job(tmp_path, joined=joined).compile()


def test_functions_that_read_each_other_are_named_with_their_places(tmp_path: Path) -> None:
    """All of the cycle."""

    def counts(joined: DataFrame) -> DataFrame:
        return joined

    with pytest.raises(CompileError, match=rf"counts \(.*{HERE}\) -> joined \(.*{HERE}\) -> counts"):
        job(tmp_path, counts=counts).compile()


def test_a_store_that_cannot_be_written_says_what_it_has_to_be(spark: SparkSession, tmp_path: Path) -> None:
    """A file in its place, or on its way, and a file system that takes no folder."""
    (tmp_path / "file").write_text("")
    for store in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/penstock")):
        with pytest.raises(StoreUnusableError, match="which this driver and all executors may write"):
            job(store).run(spark)


def test_a_store_that_is_not_there_yet_is_made(spark: SparkSession, tmp_path: Path) -> None:
    """With all folders above it; and the error of a second driver names the driver to stop."""
    run = job(tmp_path / "not" / "there").run(spark)
    try:
        with pytest.raises(PipelineError, match=r"STORE_IN_USE.* process \d+ since "):
            job(tmp_path / "not" / "there").run(spark)
    finally:
        run.stop()


def test_a_function_without_parameters_reads_nothing(tmp_path: Path) -> None:
    """It is refused where it is declared."""
    with pytest.raises(PipelineDefinitionError, match="name its inputs as its parameters"):
        job(tmp_path, joined=lambda: None)
    with pytest.raises(PipelineDefinitionError, match="needs a name"):
        Pipeline("", store=tmp_path)
