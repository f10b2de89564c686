import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("recovery_driver.py")


def table(folder: Path) -> list[tuple[str, str, str]]:
    files = (folder / "table").glob("*.json")
    return [tuple(row) for file in files for row in json.loads(file.read_text())]


@contextmanager
def driver(folder: Path, options: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with its JVM in a process group of their own, which is killed at the end."""
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, DRIVER, folder, json.dumps(options)], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_killed_driver_loses_nothing_and_doubles_nothing(
    make_stream: Callable[[int], Any], until: Callable[..., None], tmp_path: Path
) -> None:
    """kill -9 in mid-stream, after a split, then again from the checkpoint: each record once in an idempotent table."""
    source = make_stream(2)
    source.put(200)
    options = source.options(
        initialPosition="TRIM_HORIZON",
        recordPublisher="efo",
        jobId="recovery",
        registryStore=str(tmp_path / "registry.db"),
        maxRecordsPerBatch="70",
        efoConsumerName="recovery",
    )

    def failed() -> str:
        return f"rows: {len(table(tmp_path))}; " + (tmp_path / "driver.log").read_text()[-3000:]

    with driver(tmp_path, options):
        until(lambda: len(table(tmp_path)) >= 100, "no rows before the kill", seconds=90)
        source.split("shardId-000000000000")
        source.put(200)
        until(lambda: len(table(tmp_path)) >= 230, "no rows after the split", seconds=60)
    source.put(100)
    with driver(tmp_path, options):
        until(lambda: len(table(tmp_path)) >= 500, "rows are missing", seconds=120)
    rows = table(tmp_path)
    assert len(rows) == 500, failed()
    assert {(shard, number): data.encode() for shard, number, data in rows} == source.put_keys
