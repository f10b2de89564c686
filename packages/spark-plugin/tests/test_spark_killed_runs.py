import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("runs_driver.py")
FILES = 6


@contextmanager
def driver(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with its JVM in a process group of their own, which is killed at the end."""
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, DRIVER, folder], stdout=log, stderr=log, start_new_session=True, cwd=folder
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rows(folder: Path) -> list[list[int]]:
    return sorted(row for file in (folder / "table").glob("*.json") for row in json.loads(file.read_text()))


@pytest.mark.parametrize(
    ("point", "states"),
    [
        ("stage", {"totals": "reused", "ranks": "finished"}),
        ("commit", {"totals": "reused", "ranks": "reused"}),
        ("deployment", {"totals": "reused", "ranks": "reused"}),
        ("stream", {"totals": "reused", "ranks": "reused"}),
    ],
)
def test_a_run_goes_on_where_its_driver_was_killed(
    point: str, states: dict[str, str], until: Callable[..., None], tmp_path: Path
) -> None:
    """kill -9 during a stage, after its commit, before the deployment, in mid-stream: the snapshot is kept, though the
    inputs change meanwhile; no row is lost or doubled."""
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n0,2\n1,10\n2,100\n")
    (tmp_path / "table").mkdir()
    (tmp_path / "numbers").mkdir()
    for number in range(FILES):
        (tmp_path / "numbers" / f"{number}.csv").write_text(f"{number}\n{number + 100}\n")
    # After the commit of the last bounded stage nothing runs before the deployment: it is held there.
    held = "deployment" if point == "commit" else point
    (tmp_path / f"hold-{held}").touch()

    def log() -> str:
        return (tmp_path / "driver.log").read_text()[-3000:]

    def reached() -> bool:
        if point == "commit":
            return any((tmp_path / "store/stages/ranks").glob("*/_COMMITTED.json"))
        return (tmp_path / f"reached-{held}").exists()

    with driver(tmp_path) as process:
        until(lambda: reached() or process.poll() is not None, "the point was not reached", seconds=90)
        assert process.poll() is None, log()
    (tmp_path / f"hold-{held}").unlink()
    (tmp_path / "rates.csv").write_text("k,v\n0,999\n1,999\n2,999\n")
    with driver(tmp_path) as process:
        until(lambda: len(rows(tmp_path)) >= 2 * FILES or process.poll() is not None, "rows are missing", seconds=90)
        assert process.poll() is None, log()
        found = json.loads((tmp_path / "states.json").read_text())
    assert found == {**states, "table": "running"}
    totals = {0: 3, 1: 10, 2: 100}
    numbers = [n for first in range(FILES) for n in (first, first + 100)]
    expected = sorted([n, totals[n % 3]] for n in numbers)
    if point == "stage":
        # Its inputs were committed before: they are what it goes on with.
        assert any((tmp_path / "store/stages/totals").glob("*/_COMMITTED.json"))
    assert rows(tmp_path) == expected
