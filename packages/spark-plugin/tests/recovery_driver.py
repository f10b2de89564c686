"""A driver that is killed by a test: reads a stream into files, one per micro-batch, replaced when it runs again."""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin import configure, ensure_java


def main(folder: Path, options: dict[str, str]) -> None:
    ensure_java()
    builder = configure(SparkSession.builder.master("local[2]"))
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    table = folder / "table"
    table.mkdir(exist_ok=True)

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = [(row["shardId"], row["sequenceNumber"], bytes(row["data"]).decode()) for row in frame.collect()]
        temporary = folder / f"batch-{batch_id}.tmp"
        temporary.write_text(json.dumps(rows))
        temporary.replace(table / f"{batch_id}.json")

    frame = spark.readStream.format("kinesis").options(**options).load()
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
