"""A driver that a test starts: uses the data source in all ways, with secrets, and keeps all that it can see."""

import contextlib
import json
import logging
import sys
from pathlib import Path
from urllib.request import urlopen

from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin import KinesisOptions, configure, ensure_java
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._source import KinesisDataSource

LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/log4j.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c %m%n%ex
logger.sql.name = org.apache.spark.sql
logger.sql.level = debug
# At DEBUG it repeats the text of each statement, as the README says.
logger.parser.name = org.apache.spark.sql.execution.SparkSqlParser
logger.parser.level = info
logger.python.name = org.apache.spark.api.python
logger.python.level = debug
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = debug
"""


def session(folder: Path) -> SparkSession:
    """A session that writes down all that it can."""
    ensure_java()
    logging.basicConfig(filename=folder / "python.log", level=logging.DEBUG)
    # Its DEBUG is a copy of all that Python says to the JVM.
    logging.getLogger("py4j").setLevel(logging.INFO)
    (folder / "log4j2.properties").write_text(LOG4J.format(folder=folder))
    (folder / "events").mkdir()
    settings = {
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
    }
    builder = configure(SparkSession.builder.master("local[2]"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def show(frame: DataFrame) -> None:
    """All that a notebook may show of a frame."""
    print(frame, frame.schema)
    frame.explain(mode="extended")
    frame.explain(mode="formatted")


def use(spark: SparkSession, folder: Path, options: dict[str, str]) -> list[str]:
    """Read, write, stream, SQL, and the same with a mistake; what was done."""
    done = []
    url = options.pop("endpointUrl with a password")
    bounded = {name: value for name, value in options.items() if name != "serviceToken"}
    frame = spark.read.format("kinesis").options(**bounded).load()
    show(frame)
    done.append(f"read {frame.count()}")
    rows = spark.sql("select 'written' as data, 'a' as partitionKey")
    rows.write.format("kinesis").options(**bounded).mode("append").save()
    done.append("written")
    live = spark.readStream.format("kinesis").options(**bounded, initialPosition="TRIM_HORIZON").load()
    show(live)
    query = (
        live.selectExpr("data", "partitionKey")
        .writeStream.format("kinesis")
        .options(**{**bounded, "checkpointLocation": str(folder / "checkpoint")})
        .queryName("copy")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    print(query.lastProgress, query.status, query.recentProgress)
    done.append("streamed")
    spec = ", ".join(f"{name} '{value}'" for name, value in bounded.items())
    spark.sql(f"CREATE TEMPORARY VIEW flights USING kinesis OPTIONS ({spec})")
    view = spark.sql("SELECT count(*) AS n FROM flights")
    show(view)
    done.append(f"view {view.collect()[0]['n'] > 0}")
    for statement in ("DESCRIBE EXTENDED flights", "EXPLAIN EXTENDED SELECT * FROM flights", "SHOW VIEWS"):
        spark.sql(statement).show(100, truncate=False)
    services = {**options, "readerEndpoint": "127.0.0.1:9", "retryPatience": "1s"}
    served = spark.readStream.format("kinesis").options(**services, initialPosition="TRIM_HORIZON").load()
    show(served)
    try:
        writer = served.writeStream.format("noop").option("checkpointLocation", str(folder / "served"))
        writer.start().awaitTermination(120)
    except Exception as error:
        print(error, repr(error))
        logging.exception("as an application would log it")
        done.append("failed readerEndpoint")
    wrong = [("streamName", "missing"), ("maxPartitions", "none"), ("awsSecretAccesKey", "x"), ("endpointUrl", url)]
    for name, value in wrong:
        try:
            spark.read.format("kinesis").options(**{**bounded, name: value}).load().count()
        except Exception as error:
            print(error, repr(error))
            logging.exception("as an application would log it")
            done.append(f"failed {name}")
    parsed = KinesisOptions.parse(services)
    print(repr(parsed), str(parsed), repr(aws_options(parsed)), repr(KinesisDataSource(services)))
    return done


def keep_pages(spark: SparkSession, folder: Path) -> int:
    """Pages of the UI, and of its API; how many."""
    port = (spark.sparkContext.uiWebUrl or "").rpartition(":")[2]
    base = f"http://127.0.0.1:{port}"
    app = f"/api/v1/applications/{spark.sparkContext.applicationId}"
    paths = ["/jobs/", "/stages/", "/environment/", "/SQL/", "/StreamingQuery/", "/executors/", "/storage/"]
    paths += [f"{app}/{name}" for name in ("environment", "jobs", "stages", "sql?details=true&planDescription=true")]
    paths += [f"/SQL/execution/?id={number}" for number in range(6)]
    kept = 0
    for path in paths:
        with contextlib.suppress(OSError), urlopen(base + path, timeout=20) as answer:
            (folder / f"page-{kept}.html").write_bytes(path.encode() + b"\n" + answer.read())
            kept += 1
    return kept


def main(folder: Path, options: dict[str, str]) -> None:
    """Do all, and leave `done.json`."""
    spark = session(folder)
    done = use(spark, folder, options)
    pages = keep_pages(spark, folder)
    spark.stop()
    (folder / "done.json").write_text(json.dumps({"done": done, "pages": pages}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.stdin.read()))
