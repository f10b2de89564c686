"""Runs the Python of Markdown pages, in one process with one Spark session: page by page, block after block.

Called with a folder for results and the pages' paths; the endpoint of an emulator is in the environment. Each page
begins with streams of its own making (`flights`, `delays`, `returns`) and finds `spark` where it does not make it.
Names of hosts in `PENSTOCK_HOW_TO_HOSTS` (JSON) are replaced by addresses of services that run.
"""

import contextlib
import io
import json
import os
import shutil
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.sql import SparkSession

from integration_tests.docs_pages import BLOCK, name_of
from penstock.spark_plugin import configure, ensure_java

FLIGHTS = [
    ("LH 400", "FRA", 12),
    ("BA 117", "LHR", 45),
    ("LH 716", "FRA", 3),
    ("AF 6", "CDG", 0),
    ("KL 641", "AMS", 31),
    ("IB 6251", "MAD", 7),
]
STREAMS = {"flights": 2, "delays": 1, "returns": 1}
ENDPOINT = os.environ["AWS_ENDPOINT_URL_KINESIS"]


def control(method: str, path: str, **body: Any) -> dict[str, Any]:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"{ENDPOINT}/_emulator/{path}", data, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read() or b"{}")
        return found


def seed() -> None:
    """The streams, six flights, two of them in `returns` as well, and the stream of a table with three changes."""
    control("POST", "reset")
    client = boto3.client("kinesis")
    for name, shards in STREAMS.items():
        client.create_stream(StreamName=name, ShardCount=shards)
    for name in STREAMS:
        client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    records: list[Any] = [
        {"Data": json.dumps(dict(zip(("flight", "origin", "minutes"), one, strict=True))).encode(), "PartitionKey": key}
        for number, one in enumerate(FLIGHTS)
        for key in (str(number),)
    ]
    client.put_records(StreamName="flights", Records=records)
    client.put_records(StreamName="returns", Records=records[:2])
    control("POST", "dynamodb-streams", do="enable", table="orders")
    first, second = ({"id": {"S": number}, "amount": {"N": amount}} for number, amount in (("1", "12.50"), ("2", "3")))
    by_ttl = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
    for item, images in (
        (first, {"new": first}),
        (second, {"new": second}),
        (second, {"old": second, "user_identity": by_ttl}),
    ):
        control("POST", "dynamodb-streams", do="change", table="orders", keys={"id": item["id"]}, **images)


def clean_up(spark: SparkSession) -> None:
    """Leave nothing of a page: no query, no table, no file where it was run."""
    for query in spark.streams.active:
        query.stop()
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} IF EXISTS `{table.name}`")
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def minutes_passing() -> Iterator[None]:
    """Move the emulator's clock meanwhile: reads of the stream of a table end after a minute without changes."""
    stopped = threading.Event()

    def move() -> None:
        while not stopped.wait(0.2):
            control("POST", "clock", advance_seconds=5)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def run_page(page: Path, spark: SparkSession) -> dict[str, Any]:
    """Run all blocks of a page but those that are marked; what was printed, and how it ended."""
    seed()
    text = page.read_text()
    for name, address in json.loads(os.environ.get("PENSTOCK_HOW_TO_HOSTS", "{}")).items():
        text = text.replace(name, address)
    namespace: dict[str, Any] = {"__name__": page.stem, "spark": spark}
    printed = io.StringIO()
    began = time.monotonic()
    error = ""
    try:
        for block in BLOCK.finditer(text):
            marker = block["marker"] or ""
            if marker.startswith("not run"):
                continue
            if marker == "pytest":
                test = Path(f"test_{page.stem.replace('-', '_')}.py").absolute()
                test.write_text(block["code"])
                code = pytest.main(
                    ["-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={test.parent}", str(test)]
                )
                assert code == 0, f"pytest ended with {code}"
                continue
            # Tracebacks show the line numbers of the page.
            lines = text.count("\n", 0, block.start("code"))
            hurried = minutes_passing() if page.stem == "dynamodb-streams" else contextlib.nullcontext()
            with contextlib.redirect_stdout(printed), hurried:
                exec(compile("\n" * lines + block["code"], str(page), "exec"), namespace)
    except BaseException:
        error = traceback.format_exc()
    clean_up(spark)
    seconds = round(time.monotonic() - began, 1)
    return {"printed": printed.getvalue(), "error": error, "seconds": seconds, "calls": control("GET", "stats")}


def main() -> None:
    results, *pages = map(Path, sys.argv[1:])
    # Spark resolves paths in the folder in which its JVM was started.
    work = results / "work"
    work.mkdir()
    os.chdir(work)
    ensure_java()
    spark = configure(SparkSession.builder).getOrCreate()
    for page in pages:
        found = run_page(page, spark)
        # The rename makes the whole file appear at once.
        (results / "result").write_text(json.dumps(found))
        (results / "result").rename(results / f"{name_of(page)}.json")
    spark.stop()


if __name__ == "__main__":
    main()
