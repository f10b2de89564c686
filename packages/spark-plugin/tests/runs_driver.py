"""A driver that is killed by a test at the point that it is told to stop at: totals, ranks of them, and a live join."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline, configure, ensure_java
from penstock.spark_plugin._places import Place
from penstock.spark_plugin._stages.store.opening import StorePlace

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def hold(folder: Path, point: str) -> None:
    """Say that the point is reached, and stay there while the file that asks for it exists."""
    if (folder / f"hold-{point}").exists():
        (folder / f"reached-{point}").touch()
        while (folder / f"hold-{point}").exists():
            time.sleep(0.05)


def create_pipeline(folder: Path, *, refresh: str | None = None) -> Pipeline:
    text = str(folder)  # not the folder's own functions: a path counts as it is written
    options = json.loads(os.environ.get("PENSTOCK_TEST_STORE_OPTIONS", "null"))
    pipeline = Pipeline("killed", store=os.environ.get("PENSTOCK_TEST_STORE", folder / "store"), store_options=options)
    if files := os.environ.get("PENSTOCK_TEST_FILES"):
        # A file system that writes on no condition; by its name it would be a folder that is mounted.
        pipeline.place = StorePlace(store=Place.parse(files), stages=None, claim_seconds=6.0)

    @pipeline.source(bounded=True)
    def rates(spark: SparkSession) -> DataFrame:
        return spark.read.csv(f"{text}/rates.csv", schema="k int, v int", header=True)

    @pipeline.op(attributes=FULL_DAM, refresh=refresh)
    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy("k").agg(F.sum("v").alias("total"))

    @pipeline.op(attributes=FULL_DAM)
    def ranks(totals: DataFrame) -> DataFrame:
        def slow(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                hold(Path(text), "stage")
                yield frame

        return totals.mapInPandas(slow, totals.schema).sort("total")

    @pipeline.source(bounded=False)
    def numbers(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("n int").option("maxFilesPerTrigger", 1)
        return reader.csv(f"{text}/numbers")

    @pipeline.op()
    def joined(numbers: DataFrame, ranks: DataFrame) -> DataFrame:
        return numbers.join(ranks, numbers["n"] % 3 == ranks["k"])

    @pipeline.sink()
    def table(joined: DataFrame) -> Any:
        hold(Path(text), "deployment")

        def write(frame: DataFrame, batch_id: int) -> None:
            if batch_id == 2:
                hold(Path(text), "stream")
            rows = [(row["n"], row["total"]) for row in frame.collect()]
            temporary = Path(text) / f"batch-{batch_id}.tmp"
            temporary.write_text(json.dumps(rows))
            temporary.replace(Path(text) / "table" / f"{batch_id}.json")

        writer = joined.writeStream.foreachBatch(write)
        # Spark cannot put it into a store on S3 here.
        return writer if options is None and not files else writer.option("checkpointLocation", f"{text}/checkpoint")

    return pipeline


def end_with_the_tests() -> None:
    """Leave when the process that started this one is gone: it cannot end this one any more."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main(folder: Path, refresh: str | None) -> None:
    threading.Thread(target=end_with_the_tests, daemon=True).start()
    ensure_java()
    builder = configure(SparkSession.builder.master("local[2]"))
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    run = create_pipeline(folder, refresh=refresh).run(spark)
    temporary = folder / "states.tmp"
    temporary.write_text(json.dumps({name: state.value for name, state in run.states.items()}))
    temporary.replace(folder / "states.json")
    run.await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
