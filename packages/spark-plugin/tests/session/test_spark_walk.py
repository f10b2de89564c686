"""The examples of the README run as printed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin._spark import SPARK_TELLS_LIMITS

README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"<!-- walk -->\n```python\n(.*?)```", re.DOTALL)
_EXPECTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    """With the two streams of the walk."""
    with running_emulator() as running:
        client = running.client()
        for name in ("flights", "delays"):
            client.create_stream(StreamName=name, ShardCount=2)
            client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
        yield running


def test_the_walk_works_as_written(emulator: RunningEmulator, tmp_path: Path) -> None:
    """All blocks in order, in one process with one session; each `print` prints what its comment says."""
    blocks = _BLOCK.findall(README.read_text())
    assert len(blocks) >= 6
    script = tmp_path / "walk.py"
    script.write_text("\n".join(blocks))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PENSTOCK_"))}
    environment |= {
        "AWS_ENDPOINT_URL_KINESIS": emulator.endpoint_url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "XDG_STATE_HOME": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 "
        "--conf spark.ui.showConsoleProgress=false pyspark-shell",
    }
    walk = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert walk.returncode == 0, walk.stderr[-4000:]
    printed = [line for line in walk.stdout.splitlines() if not line.startswith(("|", "+")) and line]
    expected = _EXPECTED.findall("\n".join(blocks))
    if not SPARK_TELLS_LIMITS:
        # Older ones show no numbers of a source.
        expected.remove("('flights',) 3")
    assert printed == expected
