"""A driver on a standalone cluster: reads a stream into files, one per micro-batch, replaced when it runs again."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.spark_plugin import configure, ensure_java, kinesis_progress, start_readers


def main(
    folder: Path, settings: dict[str, str], options: dict[str, str], readers_options: dict[str, Any] | None = None
) -> None:
    ensure_java()
    builder = configure(SparkSession.builder)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    table = folder / "table"
    table.mkdir(exist_ok=True)

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = [[row["shardId"], row["sequenceNumber"], row["data"], row["executor"]] for row in frame.collect()]
        temporary = folder / f"batch-{batch_id}.tmp"
        temporary.write_text(json.dumps(rows))
        temporary.replace(table / f"{batch_id}.json")

    readers = None if readers_options is None else start_readers(spark, **readers_options)

    # A worker of Python runs in the folder of its executor: <application>/<executor's id>.
    executor = F.udf(lambda _: "/".join(Path.cwd().parts[-2:]))
    frame = spark.readStream.format("kinesis").options(**options).load()
    frame = frame.select(
        "shardId", "sequenceNumber", F.col("data").cast("string"), executor("shardId").alias("executor")
    )
    writer = frame.writeStream.foreachBatch(write).trigger(processingTime="200 milliseconds")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    while not query.awaitTermination(1):
        for progress in kinesis_progress(query):
            tell(folder / "reader", progress.reader)
        if readers is not None:
            tell(folder / "readers", json.dumps([asdict(one) for one in readers.readers]))
        if (folder / "end").exists():
            query.stop()
            spark.stop()  # and not a word to the readers
            return


def tell(file: Path, text: str) -> None:
    """Write a file atomically."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4]))
