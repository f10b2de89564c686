"""A driver on a standalone cluster with stages and dead letters on S3: totals, their ranks, and a live join."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.operator_attributes import OperatorAttributes
from penstock.spark_plugin import Pipeline, configure, ensure_java

FULL_DAM = OperatorAttributes(output_only_after_end_of_stream=True)
KEYS = 10


def create_pipeline(folder: Path, given: dict[str, Any]) -> Pipeline:
    pipeline = Pipeline("cluster", store=given["store"], store_options=given["store_options"])
    hold_url, letters = given["hold_url"], given["letters"]

    @pipeline.source(bounded=True, fingerprint="1")
    def rows(spark: SparkSession) -> DataFrame:
        return spark.range(1000, numPartitions=4)

    @pipeline.op(attributes=FULL_DAM)
    def totals(rows: DataFrame) -> DataFrame:
        return rows.groupBy((rows["id"] % KEYS).alias("k")).agg(F.sum("id").alias("total"))

    @pipeline.op(attributes=FULL_DAM, pure=True)
    def ranks(totals: DataFrame) -> DataFrame:
        def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import time
            import urllib.request

            # It waits for this content, also after an answer that broke off.
            while urllib.request.urlopen(hold_url, timeout=60).read() != b"continue":
                time.sleep(0.1)
            yield from batches

        return totals.repartition(4, "k").mapInArrow(hold, totals.schema)

    @pipeline.source(bounded=False)
    def live(spark: SparkSession) -> DataFrame:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", KEYS).option("numPartitions", 4)
        return source.load()

    @pipeline.op()
    def joined(live: DataFrame, ranks: DataFrame) -> DataFrame:
        return live.join(ranks, live["value"] % KEYS == ranks["k"])

    @pipeline.sink(trigger={"processingTime": "500 milliseconds"})
    def out(joined: DataFrame) -> Any:
        # A row of each micro-batch has no partition key that Kinesis takes.
        key = F.when(joined["k"] == 0, F.lit("")).otherwise(joined["k"].cast("string"))
        text = F.concat_ws(" ", "value", "total")
        records = joined.select(key.alias("partitionKey"), F.encode(text, "utf-8").alias("data"))
        writer = records.writeStream.format("kinesis").options(**given["sink"]).option("deadLetterPath", letters)
        # Only the driver has its folder.
        return writer.option("checkpointLocation", f"file://{folder}/checkpoint")

    return pipeline


def main(folder: Path, settings: dict[str, str], given: dict[str, Any]) -> None:
    ensure_java()
    builder = configure(SparkSession.builder)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    run = create_pipeline(folder, given).run(spark)
    (folder / "states.tmp").write_text(json.dumps({name: state.value for name, state in run.states.items()}))
    (folder / "states.tmp").replace(folder / "states.json")
    run.await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))
