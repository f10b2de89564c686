"""Spark Declarative Pipelines, run by their own command, with the data sources of this package."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from connect_servers import connect_server
from pyspark.sql import SparkSession
from spark_fixtures import Stream

from penstock.emulator.testing import RunningEmulator

pytest.importorskip("pyspark.pipelines", reason="Spark has declarative pipelines from 4.1 on")

SPEC = """
name: flights
storage: file://{folder}/storage
libraries:
  - glob:
      include: jobs.py
"""


@dataclass
class Server:
    """A server of Spark Connect, and where it keeps its tables."""

    url: str
    folder: Path

    def rows(self, spark: SparkSession, table: str) -> list[Any]:
        """What a table holds, read by another session."""
        return spark.read.parquet(str(self.folder / "warehouse" / table)).collect()


@pytest.fixture(scope="module")
def server(kinesis: RunningEmulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests: their pipelines and tables have their own names. It finds Kinesis without registration."""
    folder = tmp_path_factory.mktemp("server")
    aws = {
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL_KINESIS": kinesis.endpoint_url,
    }
    with connect_server(folder, **aws) as url:
        yield Server(url, folder)


def run_pipeline(folder: Path, server: Server) -> "subprocess.CompletedProcess[str]":
    """Runs the pipeline of a folder, as `spark-pipelines` does after it has started four JVMs to find out how."""
    return subprocess.run(
        [sys.executable, "-m", "pyspark.pipelines.cli", "run"],
        env={**os.environ, "SPARK_REMOTE": server.url, "SPARK_CONNECT_MODE_ENABLED": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def run(tmp_path: Path, server: Server) -> Callable[[str], "subprocess.CompletedProcess[str]"]:
    """Runs a file of definitions."""
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))

    def run(code: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "jobs.py").write_text(code)
        return run_pipeline(tmp_path, server)

    return run


def test_tables_views_and_sinks(
    spark: SparkSession, make_stream: Callable[[int], Any], run: Callable[[str], Any], server: Server
) -> None:
    """A streaming table reads a stream on from where its last run ended, a view all of it; a sink writes one."""
    source, target = make_stream(2), make_stream(1)
    live = source.options(initialPosition="TRIM_HORIZON")
    code = f"""
from pyspark import pipelines as dp

SOURCE, TARGET = {json.dumps(live)}, {json.dumps(target.options())}

dp.create_sink("delays", format="kinesis", options=TARGET)

@dp.table
def landed():
    return spark.readStream.format("kinesis").options(**SOURCE).load().select("data", "partitionKey")

@dp.materialized_view
def counted():
    return spark.read.format("kinesis").options(**SOURCE).load().selectExpr("count(*) as flights")

@dp.append_flow(target="delays")
def written():
    return spark.readStream.table("landed")
"""
    for records in (20, 30):
        source.put(records)
        done = run(code)
        assert done.returncode == 0, done.stdout + done.stderr
        held = len(source.put_keys)
        landed = server.rows(spark, "landed")
        assert sorted(bytes(row["data"]) for row in landed) == sorted(source.put_keys.values())
        assert [row["flights"] for row in server.rows(spark, "counted")] == [held]
    assert set(target.held()) == set(source.put_keys.values())


def test_a_staged_job_is_no_definition(tmp_path: Path, run: Callable[[str], Any]) -> None:
    """Neither in a file of definitions nor in the function of one: its queries would run beside Spark's own graph."""
    code = f"""
from pyspark import pipelines as dp

from penstock.spark_plugin import Pipeline, run_staged

pipeline = Pipeline("delays", store="{tmp_path}/store")


@pipeline.source(bounded=True)
def numbers(spark):
    return spark.range(3)


@pipeline.sink()
def out(numbers):
    return numbers.write.format("noop").mode("overwrite")


def told(call):
    try:
        call()
    except Exception as error:
        with open("{tmp_path}/told", "a") as file:
            print(f"{{type(error).__name__}}: {{error}}", file=file)


told(lambda: pipeline.run(spark))


@dp.table
def live():
    frame = spark.readStream.format("rate").load()
    told(lambda: run_staged(frame.writeStream.format("noop"), store="{tmp_path}/other"))
    told(lambda: pipeline.run(spark))
    raise SystemExit("seen")
"""
    run(code)
    cure = (
        "cannot run inside of Spark Declarative Pipelines, whose files and functions only define what "
        "`spark-pipelines` runs: start it as a job of its own (`python job.py`), and let the definitions "
        "read what it writes"
    )
    site = f"{tmp_path}/jobs.py"
    assert (tmp_path / "told").read_text().splitlines() == [
        f"PipelineDefinitionError: pipeline 'delays' ({site}:6) {cure}",
        f"PipelineDefinitionError: run_staged ({site}:33) {cure}",
        f"PipelineDefinitionError: pipeline 'delays' ({site}:6) {cure}",
    ]
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "other").exists()


def test_the_definitions_of_the_page_run(
    spark: SparkSession, kinesis: RunningEmulator, server: Server, tmp_path: Path
) -> None:
    """The definitions of the page: a streaming table, a temporary view, a sink, and a materialised view
    in SQL."""
    page = (Path(__file__).parents[4] / "docs" / "pages" / "how-to" / "sql.md").read_text()
    [code] = re.findall(
        r"<!-- not run: by spark-pipelines[^>]*-->\n```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    [sql] = re.findall(r"```sql\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "jobs.py").write_text(code)
    (tmp_path / "views.sql").write_text(sql)
    spec = SPEC.format(folder=tmp_path) + "  - glob:\n      include: views.sql\n"
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    client = kinesis.client()
    for stream in ("flights", "late-flights"):
        client.create_stream(StreamName=stream, ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    for flight, origin, minutes in (("LH 400", "FRA", 12), ("BA 117", "LHR", 45), ("LH 716", "FRA", 3)):
        row = json.dumps({"flight": flight, "origin": origin, "minutes": minutes})
        client.put_record(StreamName="flights", Data=row.encode(), PartitionKey=flight)
    done = run_pipeline(tmp_path, server)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(map(tuple, server.rows(spark, "by_origin"))) == [("FRA", 2), ("LHR", 1)]
    written = Stream(kinesis, "late-flights").held()
    assert sorted(json.loads(data)["flight"] for data in written) == ["BA 117", "LH 400"]
    for stream in ("flights", "late-flights"):
        client.delete_stream(StreamName=stream)
