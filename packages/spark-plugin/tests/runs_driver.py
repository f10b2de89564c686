"""A driver that is killed by a test: totals, ranks of them, and a live join."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pandas as pd
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline, configure, ensure_java
from penstock.spark_plugin._places import Place
from penstock.spark_plugin._stages.store.formats import StageFormat
from penstock.spark_plugin._stages.store.opening import StorePlace

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)


def hold(folder: Path, point: str) -> None:
    """Say that the point is reached, and stay there while the file that asks for it exists."""
    if (folder / f"hold-{point}").exists():
        (folder / f"new-{point}").write_text(str(os.getpid()))
        (folder / f"new-{point}").rename(folder / f"reached-{point}")
        while (folder / f"hold-{point}").exists():
            time.sleep(0.05)


def create_pipeline(folder: Path, given: dict[str, Any]) -> Pipeline:
    text = str(folder)  # not the folder's own functions: a path counts as it is written
    options = given.get("store_options")
    pipeline = Pipeline("killed", store=given.get("store", folder / "store"), store_options=options)
    if files := given.get("files"):
        # A file system that writes on no condition; by its name it would be a folder that is mounted.
        place = Place.parse(files)
        pipeline.place = StorePlace(store=place, stages=None, claim_seconds=2.0, stage_format=StageFormat.SPARK)

    @pipeline.source(bounded=True)
    def rates(spark: SparkSession) -> DataFrame:
        return spark.read.csv(f"{text}/rates.csv", schema="k int, v int", header=True)

    @pipeline.op(attributes=FULL_DAM, refresh=given.get("refresh"))
    def totals(rates: DataFrame) -> DataFrame:
        return rates.groupBy("k").agg(F.sum("v").alias("total"))

    @pipeline.op(attributes=FULL_DAM, pure=True)
    def ranks(totals: DataFrame) -> DataFrame:
        def slow(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for frame in frames:
                hold(Path(text), "stage")
                yield frame

        return totals.mapInPandas(slow, totals.schema).sort("total")

    if "sink" in given:
        is_held = given["sink"] == "held"

        @pipeline.sink()
        def report(ranks: DataFrame) -> Any:
            def slow(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
                for frame in frames:
                    if is_held:
                        hold(Path(text), "sink")
                    yield frame

            writer = ranks.mapInPandas(slow, ranks.schema).write.format("csv").mode("overwrite")
            return writer.option("path", f"{text}/report")

        return pipeline

    @pipeline.source(bounded=False)
    def numbers(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("n int").option("maxFilesPerTrigger", 1)
        return reader.csv(f"{text}/numbers")

    @pipeline.op()
    def joined(numbers: DataFrame, ranks: DataFrame) -> DataFrame:
        return numbers.join(ranks, numbers["n"] % 3 == ranks["k"])

    @pipeline.sink(trigger=None if given.get("refresh") else {"availableNow": True})
    def table(joined: DataFrame) -> Any:
        # Spark gives a worker of foreachBatch ten seconds to start, which a busy machine may need.
        writer = joined.select("n", "total").writeStream.format("json").option("path", f"{text}/table")
        # Spark cannot put it into a store on S3 here.
        return writer if options is None else writer.option("checkpointLocation", f"{text}/checkpoint")

    return pipeline


def end_with_the_tests() -> None:
    """Leave when the process that started this one is gone: it cannot end this one any more."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def create_session(remote: str | None) -> SparkSession:
    """A session of a server, of the JVM that the environment names, or of a JVM that ends with this process."""
    if remote is not None:
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        found: Any = ConnectSession.builder.remote(remote).getOrCreate()
        return cast(SparkSession, found)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        jvm = gateway.jvm
        context = jvm.JavaSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
        return SparkSession(SparkContext(gateway=gateway, jsc=context))
    ensure_java()
    builder = configure(SparkSession.builder.master("local[2]"))
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main(folder: Path, given: dict[str, Any]) -> None:
    threading.Thread(target=end_with_the_tests, daemon=True).start()
    run = create_pipeline(folder, given).run(create_session(given.get("remote")))
    temporary = folder / "states.tmp"
    temporary.write_text(json.dumps({name: state.value for name, state in run.states.items()}))
    temporary.replace(folder / "states.json")
    run.await_termination()
    run.stop()
    os._exit(0)  # without the seconds that an orderly end takes


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
