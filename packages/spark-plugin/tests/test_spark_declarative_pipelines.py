"""Spark Declarative Pipelines, run by their own command, with the data sources of this package."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from connect_servers import connect_server
from pyspark.sql import SparkSession

pytest.importorskip("pyspark.pipelines", reason="Spark has declarative pipelines from 4.1 on")

SPEC = """
name: flights
storage: file://{folder}/storage
libraries:
  - glob:
      include: jobs.py
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.CompletedProcess[str]"]]:
    """Runs a file of definitions by `spark-pipelines run`, on one server."""
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    with connect_server(tmp_path) as url:

        def run(code: str) -> "subprocess.CompletedProcess[str]":
            (tmp_path / "jobs.py").write_text(code)
            return subprocess.run(
                [str(home / "bin" / "spark-pipelines"), "run", "--remote", url],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )

        yield run


def test_tables_views_and_sinks(
    spark: SparkSession, make_stream: Callable[[int], Any], run: Callable[[str], Any], tmp_path: Path
) -> None:
    """A streaming table reads a stream on from where its last run ended, a view all of it; a sink writes one."""
    source, target = make_stream(2), make_stream(1)
    live = source.options(initialPosition="TRIM_HORIZON")
    code = f"""
from pyspark import pipelines as dp

SOURCE, TARGET = {json.dumps(live)}, {json.dumps(target.options())}

dp.create_sink("delays", format="kinesis", options=TARGET)

@dp.table
def flights():
    return spark.readStream.format("kinesis").options(**SOURCE).load().select("data", "partitionKey")

@dp.materialized_view
def counted():
    return spark.read.format("kinesis").options(**SOURCE).load().selectExpr("count(*) as flights")

@dp.append_flow(target="delays")
def written():
    return spark.readStream.table("flights")
"""
    for records in (20, 30):
        source.put(records)
        done = run(code)
        assert done.returncode == 0, done.stdout + done.stderr
        held = len(source.put_keys)
        assert sorted(bytes(row["data"]) for row in rows(spark, tmp_path, "flights")) == sorted(
            source.put_keys.values()
        )
        assert [row["flights"] for row in rows(spark, tmp_path, "counted")] == [held]
    assert set(target.held()) == set(source.put_keys.values())


def test_a_view_is_done_before_a_table_joins_it(
    spark: SparkSession, make_stream: Callable[[int], Any], run: Callable[[str], Any], tmp_path: Path
) -> None:
    """Spark orders them as stages are ordered; each run computes the view again."""
    source = make_stream(1)
    source.put(10)
    code = f"""
from pyspark import pipelines as dp

SOURCE = {json.dumps(source.options(initialPosition="TRIM_HORIZON"))}

@dp.table
def joined():
    live = spark.readStream.format("kinesis").options(**SOURCE).load().select("data")
    return live.crossJoin(spark.read.table("totals"))

@dp.materialized_view
def totals():
    return spark.range(4).selectExpr("sum(id) as total")
"""
    done = run(code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["total"] for row in rows(spark, tmp_path, "joined")] == 10 * [6]


def rows(spark: SparkSession, folder: Path, table: str) -> list[Any]:
    return spark.read.parquet(str(folder / "warehouse" / table)).collect()
