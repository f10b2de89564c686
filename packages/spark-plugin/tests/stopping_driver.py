"""A driver that a test starts: it makes sessions, queries and frames, and stops them, by commands on its input."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin import configure, ensure_java

FOLDER = Path(sys.argv[1])
RUNNER = "python_streaming_source_runner"


def session() -> SparkSession:
    """The session; a new one after `stop`."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(FOLDER / "warehouse"),
    }
    builder = configure(SparkSession.builder.master("local[2]"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def sources() -> list[int]:
    """The processes of sources."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(RUNNER in word for word in process.cmdline()):
                found.append(process.pid)
    return found


def start(options: dict[str, str], checkpoint: str) -> int:
    """Start a query; its rows, when it has read what is there."""
    rows: list[int] = []

    def keep(frame: DataFrame, _batch: int) -> None:
        rows.append(frame.count())

    frame = session().readStream.format("kinesis").options(**options).load()
    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(FOLDER / checkpoint)).start()
    query.processAllAvailable()
    return sum(rows)


def load(options: dict[str, str]) -> bool:
    """Make a streaming frame of which nothing is started."""
    return session().readStream.format("kinesis").options(**options).load().isStreaming


def refusal(options: dict[str, str]) -> str:
    """What a bounded read says that cannot have these options."""
    try:
        return f"{session().read.format('kinesis').options(**options).load().count()} rows"
    except AnalysisException as error:
        return str(error)


def memory() -> list[str]:
    """Folders in memory of readers in the processes of sources."""
    found = set()
    for process in sources():
        with contextlib.suppress(psutil.Error):
            sockets = (one.laddr for one in psutil.Process(process).net_connections("unix"))
            found |= {str(Path(one).parent) for one in sockets if one.startswith("/dev/shm/penstock-reader-")}
    return sorted(found)


def keepers() -> list[int]:
    """Processes that wait to give back what was registered eagerly; they have no parent process."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_ours = f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}" in (process / "environ").read_text()
            if is_ours and "spark_plugin._reading.session.eager" in (process / "cmdline").read_text():
                found.append(int(process.name))
    return found


def stop() -> None:
    """Stop the session; the JVM stays, as in a notebook."""
    session().stop()


COMMANDS = {each.__name__: each for each in (start, sources, load, refusal, memory, keepers, stop)}

if __name__ == "__main__":
    ensure_java()
    for line in sys.stdin:
        command, arguments = json.loads(line)
        answer: Any = COMMANDS[command](**arguments)
        print("answer", json.dumps(answer), flush=True)
