"""The driver of `hatch run prove outages`: its queries write the keys of each batch to a file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def main(folder: Path) -> None:
    """Run the queries of a folder until one of them ends."""
    table = folder / "table"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )
    queries = []
    for name, options in json.loads((folder / "settings.json").read_text()).items():

        def write(batch: DataFrame, batch_id: int, name: str = name) -> None:
            while name == "efo" and (table / "hold").exists():
                time.sleep(0.2)
            rows = [[row.shardId, row.sequenceNumber] for row in batch.select("shardId", "sequenceNumber").collect()]
            # A batch that is run again replaces its file: it holds the same rows, or the proof fails.
            part = table / name / f".{batch_id}"
            part.write_text(json.dumps(rows))
            part.rename(table / name / f"{batch_id}.json")

        frame = spark.readStream.format("kinesis").options(**options).load()
        writer = frame.writeStream.foreachBatch(write).queryName(name)
        queries.append(writer.option("checkpointLocation", str(folder / "checkpoint" / name)).start())
    spark.streams.awaitAnyTermination()
    # Raises what ended it.
    for query in queries:
        if not query.isActive:
            query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
