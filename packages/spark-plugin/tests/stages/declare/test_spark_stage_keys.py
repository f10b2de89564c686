"""Keyed inputs of full-dam operators are sorted by the keys that these name (FLIP-331)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import GlobalWindows, OperatorAttributes
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin.errors import PipelineDefinitionError, StageFailedError

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def job(folder: Path, keyed: Any, *, attributes: OperatorAttributes = FULL_DAM) -> Pipeline:
    pipeline = Pipeline("job", store=folder / "store")

    def rates(spark: SparkSession) -> DataFrame:
        return spark.range(200, numPartitions=4).select((F.col("id") * 7 % 10).alias("k"), "id")

    def in_runs(rates: DataFrame, others: DataFrame) -> DataFrame:
        count = others.rdd.getNumPartitions()
        return rates.mapInPandas(_runs(), "k long").withColumn("partitions", F.lit(count))

    pipeline.source(bounded=True)(rates)
    pipeline.source(bounded=True, name="others")(lambda spark: spark.range(3, numPartitions=3))
    pipeline.op(attributes=attributes, keyed=keyed)(in_runs)
    target = str(folder / "out")
    pipeline.sink(name="out", inputs=["in_runs"])(lambda rows: rows.write.format("parquet").option("path", target))
    return pipeline


def _runs() -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    def runs(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        keys = [key for frame in frames for key in frame["k"]]
        yield pd.DataFrame({"k": [key for before, key in zip([None, *keys], keys, strict=False) if key != before]})

    return runs


@pytest.mark.parametrize("keyed", [{"rates": "k"}, {"rates": ["k"]}])
def test_a_keyed_input_is_sorted(spark: SparkSession, tmp_path: Path, keyed: Any) -> None:
    """Each key is one run of rows, in one partition; the other input is passed through, and explain says so."""
    pipeline = job(tmp_path, keyed)
    assert "operator in_runs <- rates [sorted by key], others  (full-dam" in pipeline.explain()
    pipeline.run(spark)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row["k"] for row in rows) == list(range(10))
    assert {row["partitions"] for row in rows} == {3}


def test_keys_that_are_not_named_are_not_said_to_be_sorted(spark: SparkSession, tmp_path: Path) -> None:
    """Nor are keys of Spark's own grouping, or of an operator that sorts itself: inputs are handed over as is."""
    pipeline = job(tmp_path, True)
    assert "operator in_runs <- rates [keyed], others [keyed]  (full-dam" in pipeline.explain()
    pipeline.run(spark)
    assert len(spark.read.parquet(str(tmp_path / "out")).collect()) > 10
    sorts = OperatorAttributes(output_only_after_end_of_stream=True, internal_sorter_supported=True)
    assert "rates [keyed], others  (" in job(tmp_path, {"rates": "k"}, attributes=sorts).explain()
    window = Pipeline("window", store=tmp_path / "window")
    window.source(bounded=True, name="a")(lambda spark: spark.range(3))
    at_end = GlobalWindows.create_with_end_of_stream_trigger()
    window.stream("a").key_by("id").window(at_end).aggregate("count(*) as n", name="counts")
    assert "operator counts <- a [keyed]  (full-dam" in window.explain()


def test_missing_keys_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    """A column with the operator and the input; an input when it is declared."""
    pipeline = job(tmp_path, {"rates": "key"})
    place = pipeline.declared["in_runs"].call_site
    with pytest.raises(StageFailedError) as caught:
        pipeline.run(spark)
    assert caught.value.reason == (
        f"operator 'in_runs' ({place}) is keyed by 'key', which its input 'rates' does not have: its columns are 'k', "
        "'id'"
    )
    with pytest.raises(PipelineDefinitionError) as refused:
        job(tmp_path, {"rate": "k"})
    assert str(refused.value) == (
        f"operator 'in_runs' ({place}) is keyed by columns of 'rate', which it does not read: it reads 'rates', "
        "'others'"
    )
