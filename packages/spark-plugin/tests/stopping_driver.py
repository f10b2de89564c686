"""A driver that a test starts: it makes sessions, queries and frames, and stops them, as it is told on its input."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def descendants(process: int) -> Iterator[int]:
    """Processes below one, by /proc."""
    for task in Path(f"/proc/{process}/task").glob("*"):
        # A thread, and the process, may end between two looks.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def sources() -> list[int]:
    """The processes of sources."""
    found = []
    for process in descendants(os.getpid()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if RUNNER in Path(f"/proc/{process}/cmdline").read_text():
                found.append(process)
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
        own = {os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir()}
        for line in Path("/proc/net/unix").read_text().splitlines():
            # The last but one of its columns is the socket's inode.
            if "/dev/shm/penstock-reader-" in line and f"socket:[{line.split()[-2]}]" in own:
                found.add(str(Path(line.split()[-1]).parent))
    return sorted(found)


def keepers() -> list[int]:
    """Processes that wait to give back what was registered eagerly; they are nobody's children."""
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
