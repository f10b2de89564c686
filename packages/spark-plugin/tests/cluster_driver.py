"""A driver on a standalone cluster: reads a stream into files, one per micro-batch, replaced when it runs again."""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it

from penstock.spark_plugin import configure, ensure_java, kinesis_progress


def main(folder: Path, settings: dict[str, str], options: dict[str, str]) -> None:
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
            temporary = folder / "reader.tmp"
            temporary.write_text(progress.reader)
            temporary.replace(folder / "reader")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))
