"""Where a store is: on a file system that is mounted here, whatever Spark's own default is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import OperatorAttributes, StageState
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin.errors import StoreUnusableError


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose bare paths are not on a local file system, as on EMR."""
    spark.conf.set("fs.defaultFS", "nowhere:///")
    yield spark
    spark.conf.unset("fs.defaultFS")


def test_a_store_is_where_its_path_says(elsewhere: SparkSession, tmp_path: Path) -> None:
    """Its results, and checkpoints, are read where they are written, by Spark and by Python."""
    pipeline = Pipeline("job", store=tmp_path / "a store")

    @pipeline.source(bounded=True)
    def keys(spark: SparkSession) -> DataFrame:
        return spark.range(3).withColumnRenamed("id", "k")

    @pipeline.op(attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    def counts(keys: DataFrame) -> DataFrame:
        return keys.groupBy("k").count()

    @pipeline.source(bounded=False)
    def live(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()

    @pipeline.sink(trigger={"once": True})
    def out(live: DataFrame, counts: DataFrame) -> Any:
        return live.join(counts, live["value"] == counts["k"]).writeStream.format("noop")

    run = pipeline.run(elsewhere)
    assert run.await_termination(120)
    run.stop()
    assert run.states == {"counts": StageState.FINISHED, "out": StageState.FINISHED}
    assert (tmp_path / "a store/live/out/checkpoint/commits/0").exists()
    (result,) = (tmp_path / "a store/stages/counts").iterdir()
    assert list(result.glob("*/counts/*.parquet"))


@pytest.mark.parametrize(
    "store", ["wasbs://c@a.blob.core.windows.net/s", "webhdfs://host/s", "dbfs:/s", "ftp://host/s", "file://host/s"]
)
@pytest.mark.parametrize("option", ["store", "stages"])
def test_a_store_that_is_neither_mounted_nor_reached_by_arrow_is_refused(
    option: str, store: str, tmp_path: Path
) -> None:
    """It would be a folder of that name on each machine."""
    given: Any = {"store": tmp_path, option: store}
    with pytest.raises(StoreUnusableError, match="it is not mounted here, and Arrow has no file system for it"):
        Pipeline("job", **given)


def test_a_store_may_be_a_file_url(tmp_path: Path) -> None:
    """As Spark takes it, too."""
    assert Pipeline("job", store=f"file://{tmp_path}/a%20store").place.store == tmp_path / "a store"
    assert Pipeline("job", store=f"{tmp_path}/a:b").place.store == tmp_path / "a:b"
