"""Servers of Spark Connect, each in a process of its own, as users have them."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
from patience import PATIENCE_SECONDS

_SERVER = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def spark_home() -> Path:
    """Where Spark is: the home that this process names, or PySpark's own."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


@contextlib.contextmanager
def connect_server(folder: Path, **environment: str) -> Iterator[str]:
    """The URL of a server in a process of its own, as users have it, that runs while this is entered."""
    home = spark_home()
    settings = {**_SERVER, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    command = [
        str(home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, **environment}
    log = folder / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder)
    try:
        yield f"sc://127.0.0.1:{_port(server, log)}"
    finally:
        server.terminate()
        server.wait(30)


def _port(server: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        found = re.search(r"Spark Connect server started at: \S+:(\d+)", log.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"no Spark Connect server:\n{log.read_text()[-4000:]}")
