"""A Spark driver of a proof: its queries write the keys of each batch to a file, so that a batch replaces itself."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


class Table:
    """The files of a query.

    Attributes:
        folder: one file for each batch.
        hold: while it is there, no batch ends.
        latest: holds the number of the last batch that this driver finished.
    """

    def __init__(self, folder: Path, driver: str, query: str) -> None:
        self.folder = folder / "table" / query
        self.hold = folder / f"{driver}.{query}.hold"
        self.latest = folder / f"{driver}.{query}.batch"

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch. One that is run again has to have the same rows: others are kept beside them."""
        while self.hold.exists():
            time.sleep(0.2)
        rows = sorted([row.shardId, row.sequenceNumber] for row in batch.select("shardId", "sequenceNumber").collect())
        file = self.folder / f"{batch_id}.json"
        if file.exists():
            (self.folder / f"{batch_id}.again").touch()
            if json.loads(file.read_text()) != rows:
                file.rename(self.folder / f"{batch_id}.changed")
        # Two drivers may have the same batch in hand.
        part = self.folder / f".{batch_id}.{os.getpid()}"
        part.write_text(json.dumps(rows))
        part.rename(file)
        self.latest.write_text(str(batch_id))


def main(folder: Path, name: str) -> None:
    """Run the queries of a file until one of them ends, or all are to stop."""
    settings = json.loads((folder / f"{name}.json").read_text())
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", settings["heap"])
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )
    queries = []
    for query, options in settings["queries"].items():
        frame = spark.readStream.format("kinesis").options(**options).load()
        writer = frame.writeStream.foreachBatch(Table(folder, name, query).write).queryName(query)
        writer = writer.trigger(processingTime=settings["trigger"])
        queries.append(writer.option("checkpointLocation", str(folder / "checkpoint" / query)).start())
    while not (folder / f"{name}.stop").exists():
        for one in queries:
            if not one.isActive:
                # Raises what ended it.
                one.awaitTermination()
                return
        time.sleep(0.5)
    for one in queries:
        one.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
