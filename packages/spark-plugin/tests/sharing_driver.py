"""A driver that shares the results of its stages with others, and stays in a stage while a file is there."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline, configure, ensure_java

LEASE_SECONDS = 2.0
FOLDER = "PENSTOCK_TEST_FOLDER"
DRIVER = "PENSTOCK_TEST_DRIVER"


def create_pipeline(folder: Path, name: str) -> Pipeline:
    pipeline = Pipeline(name, store=folder / name, stages=folder / "shared")

    @pipeline.source(bounded=True)
    def numbers(spark: SparkSession) -> DataFrame:
        return spark.range(5, numPartitions=1)

    @pipeline.op(attributes=OperatorAttributes(output_only_after_end_of_stream=True), pure=True)
    def slow(numbers: DataFrame) -> DataFrame:
        def hold(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            folder, driver = Path(os.environ["PENSTOCK_TEST_FOLDER"]), os.environ["PENSTOCK_TEST_DRIVER"]
            (folder / f"reached-{driver}").touch()
            while (folder / f"hold-{driver}").exists():
                time.sleep(0.05)
            yield from frames

        return numbers.mapInPandas(hold, numbers.schema)

    @pipeline.sink()
    def out(slow: DataFrame) -> Any:
        return slow.write.format("noop").mode("overwrite")

    return pipeline


def end_with_the_tests() -> None:
    """Leave when the process that started this one is gone: it cannot end this one any more."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    threading.Thread(target=end_with_the_tests, daemon=True).start()
    folder, name = Path(os.environ[FOLDER]), os.environ[DRIVER]
    ensure_java()
    builder = configure(SparkSession.builder.master("local[1]"))
    for setting in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(setting, "false")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    run = create_pipeline(folder, name).run(spark, lease_seconds=LEASE_SECONDS)
    temporary = folder / f"{name}.tmp"
    temporary.write_text(json.dumps({stage: state.value for stage, state in run.states.items()}))
    temporary.replace(folder / f"{name}.json")


if __name__ == "__main__":
    main()
