"""The Spark driver: first the weather of each day, then the live stage. `python -m penstock.demo.driver JOB_FILE`."""

import argparse
import os
import threading
from pathlib import Path

from opentelemetry import context, propagate
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.demo._children import Parent, tell
from penstock.demo._data import DELAYED_MINUTES, weather_file
from penstock.demo._meter import create_meter
from penstock.demo._settings import Job
from penstock.operator_attributes import OperatorAttributesBuilder, mermaid
from penstock.spark_plugin import Pipeline, configure, ensure_java

FLIGHT_SCHEMA = (
    "id bigint, date string, origin string, dest string, carrier string, flight int, departed string, dep_delay double"
)


def create_pipeline(job: Job) -> Pipeline:
    """The job: weather per airport and day, a bounded stage; flights joined with it, the live one."""
    pipeline = Pipeline("delays", store=job.store)
    full_dam = OperatorAttributesBuilder().set_output_only_after_end_of_stream(True).build()
    options = {**job.aws_options, "streamName": job.flights_stream, "initialPosition": "TRIM_HORIZON"}
    if job.polling:
        options["recordPublisher"] = "polling"
    else:
        # The same after a restart: the lease of a driver that was killed is given back at once.
        options |= {"recordPublisher": "efo", "efoConsumerName": job.consumer_name, "jobId": "demo"}
        options["registryStore"] = str(Path(job.store).with_name("registry.sqlite"))
    if job.reader_endpoint is not None:
        options["readerEndpoint"] = job.reader_endpoint
    if job.registry_endpoint is not None and not job.polling:
        del options["registryStore"]
        options["registryEndpoint"] = job.registry_endpoint
    weather, counts = str(weather_file()), Path(job.counts)
    delays = {**job.aws_options, "streamName": job.delays_stream}

    @pipeline.source(bounded=True)
    def hourly_weather(spark: SparkSession) -> DataFrame:
        return spark.read.csv(weather, header=True, inferSchema=True, nullValue="NA")

    @pipeline.op(attributes=full_dam, keyed=True)
    def daily_weather(hourly_weather: DataFrame) -> DataFrame:
        date = F.date_format(F.make_date("year", "month", "day"), "yyyy-MM-dd")
        return hourly_weather.groupBy("origin", date.alias("date")).agg(
            F.avg("temp").alias("temp"),
            F.max("wind_speed").alias("wind_speed"),
            F.sum("precip").alias("precip"),
            F.min("visib").alias("visib"),
        )

    @pipeline.source(bounded=False)
    def flights(spark: SparkSession) -> DataFrame:
        records = spark.readStream.format("kinesis").options(**options).load()
        return records.mapInArrow(create_meter(counts), records.schema)

    @pipeline.op()
    def delayed_with_weather(flights: DataFrame, daily_weather: DataFrame) -> DataFrame:
        flight = F.from_json(flights["data"].cast("string"), FLIGHT_SCHEMA).alias("flight")
        delayed = flights.select(flight).select("flight.*").where(F.col("dep_delay") >= DELAYED_MINUTES)
        return delayed.join(F.broadcast(daily_weather), ["origin", "date"], "left")

    @pipeline.sink()
    def delays_stream(delayed_with_weather: DataFrame) -> DataStreamWriter:
        columns = [name for name in delayed_with_weather.columns if name != "departed"]
        rows = delayed_with_weather.select(
            F.to_json(F.struct(*columns)).alias("data"), F.col("origin").alias("partitionKey")
        )
        return rows.writeStream.format("kinesis").options(**delays)

    return pipeline


def create_session() -> SparkSession:
    """A local session with the settings that make micro-batches short."""
    ensure_java()
    builder = SparkSession.builder.master("local[2]").appName("penstock demo")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def run(job: Job, stop: threading.Event) -> None:
    """Run the stages and keep the live one until `stop` is set or it fails."""
    pipeline = create_pipeline(job)
    plan = pipeline.compile()
    Path(job.plan).write_text(mermaid(plan), encoding="utf-8")
    spark = create_session()
    tell(spark=spark.version)
    try:
        running = pipeline.run(spark, resume=True)
        seconds = running.seconds
        stages = [
            {"name": name, "state": state.value, "seconds": seconds[name]} for name, state in running.states.items()
        ]
        tell(stages=stages, live=True)
        (query,) = running.queries.values()
        while not stop.is_set() and not query.awaitTermination(1):
            pass
        running.stop()
    finally:
        spark.stop()


def main() -> None:
    """Parse the argument and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="JSON file that says what to do")
    arguments = parser.parse_args()
    context.attach(propagate.extract({"traceparent": os.environ.get("TRACEPARENT", "")}))
    run(Job.read(arguments.job), Parent().stop)


if __name__ == "__main__":
    main()
