import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from s3_servers import options, running_s3, s3_client

from penstock.rpc.testing import service_process

DRIVER = Path(__file__).parents[2] / "runs_driver.py"
FILES = 6


@contextmanager
def driver(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with its JVM in a process group of their own, which is killed at the end."""
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, DRIVER, folder, *arguments],
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended, and was seen to
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rows(folder: Path) -> list[list[int]]:
    return sorted(row for file in (folder / "table").glob("*.json") for row in json.loads(file.read_text()))


def commits(folder: Path) -> dict[Path, int]:
    """When each result of a stage was committed, by its marker."""
    return {path: path.stat().st_mtime_ns for path in (folder / "store/stages").glob("*/*/_COMMITTED.json")}


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket that the drivers have their store in; a client of it."""
    with running_s3() as endpoint_url:
        client = s3_client(endpoint_url)
        client.create_bucket(Bucket="stages")
        monkeypatch.setenv("PENSTOCK_TEST_STORE", "s3://stages/store")
        monkeypatch.setenv("PENSTOCK_TEST_STORE_OPTIONS", json.dumps(options(endpoint_url, claimSeconds="10")))
        yield client


def commits_on_s3(client: Any) -> dict[Path, int]:
    """As `commits`."""
    found = client.list_objects_v2(Bucket="stages", Prefix="store/stages/").get("Contents", ())
    markers = (one for one in found if one["Key"].endswith("_COMMITTED.json"))
    return {Path(one["Key"]): one["LastModified"].timestamp() for one in markers}


def test_a_run_on_s3_goes_on_where_its_driver_was_killed(s3: Any, until: Callable[..., None], tmp_path: Path) -> None:
    """kill -9 during a stage, after another was committed: its claim runs out, and nothing is left of the attempt."""
    check_kills(("stage",), until, tmp_path, lambda: commits_on_s3(s3))
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket="stages", Prefix="store/stages/")["Contents"]]
    attempts = {tuple(key.split("/")[2:5]) for key in keys if key.endswith(".parquet")}
    assert sorted(stage for stage, _, _ in attempts) == ["ranks", "totals"]
    assert not (tmp_path / "store").exists()


def test_a_run_by_a_scheduler_goes_on_where_its_driver_was_killed(
    until: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that writes on no condition: the scheduler decides who has the store, and when a killed driver
    has it no more."""
    pytest.importorskip("penstock.services.stage_scheduler")
    monkeypatch.setenv("PENSTOCK_TEST_FILES", f"file://{tmp_path}/store")
    with service_process("penstock.services.stage_scheduler", ["serve"]) as service:
        monkeypatch.setenv("PENSTOCK_STAGES_ENDPOINT", service.address)
        check_kills(("stage",), until, tmp_path, lambda: commits(tmp_path))
    assert {path.parts[-5] for path in (tmp_path / "store/stages").glob("*/*/*/*/*.parquet")} == {"ranks", "totals"}


def test_a_run_goes_on_where_its_driver_was_killed(until: Callable[..., None], tmp_path: Path) -> None:
    """kill -9 during a stage, between its commit and the deployment, and in mid-stream: the snapshot is kept although
    the inputs change meanwhile, and no row is lost or doubled."""
    check_kills(("stage", "deployment", "stream"), until, tmp_path, lambda: commits(tmp_path))


def check_kills(
    points: tuple[str, ...], until: Callable[..., None], tmp_path: Path, commits: Callable[[], dict[Path, int]]
) -> None:
    (tmp_path / "rates.csv").write_text("k,v\n0,1\n0,2\n1,10\n2,100\n")
    (tmp_path / "table").mkdir()
    (tmp_path / "numbers").mkdir()
    for number in range(FILES):
        (tmp_path / "numbers" / f"{number}.csv").write_text(f"{number}\n{number + 100}\n")
    states = tmp_path / "states.json"

    def log() -> str:
        return (tmp_path / "driver.log").read_text()[-3000:]

    def reached(point: str) -> bool:
        return (tmp_path / f"reached-{point}").exists() and (point != "stream" or states.exists())

    def check_states() -> None:
        ranks = "reused" if any(path.parts[-3] == "ranks" for path in committed) else "finished"
        assert json.loads(states.read_text()) == {"totals": "reused", "ranks": ranks, "table": "running"}

    committed: dict[Path, int] = {}
    for point in points:
        (tmp_path / f"reached-{point}").unlink(missing_ok=True)
        (tmp_path / f"hold-{point}").touch()
        with driver(tmp_path) as process:
            until(lambda: reached(point) or process.poll() is not None, f"{point} was not reached")  # noqa: B023
            assert process.poll() is None, log()
        if point == "stream":
            check_states()
            states.unlink()
        assert committed.items() <= commits().items()  # What was committed is not computed again.
        committed = commits()
        # Also during a stage its inputs were committed before: they are what it goes on with.
        assert {path.parts[-3] for path in committed} == ({"totals"} if point == "stage" else {"totals", "ranks"})
        (tmp_path / f"hold-{point}").unlink()
        (tmp_path / "rates.csv").write_text("k,v\n0,999\n1,999\n2,999\n")

    def done() -> bool:
        return len(rows(tmp_path)) >= 2 * FILES and states.exists()

    with driver(tmp_path) as process:
        until(lambda: done() or process.poll() is not None, "rows are missing")
        assert process.poll() is None, log()
    check_states()
    assert committed.items() <= commits().items()
    assert len(commits()) == 2
    totals = {0: 3, 1: 10, 2: 100}
    numbers = [n for first in range(FILES) for n in (first, first + 100)]
    assert rows(tmp_path) == sorted([n, totals[n % 3]] for n in numbers)


def test_refresh_interrupted_by_the_death_of_its_driver(until: Callable[..., None], tmp_path: Path) -> None:
    """kill -9 between two stages that are computed again: the next run continues with the old rows, and refreshes;
    no row is lost or doubled."""

    def set_rates(first: int) -> None:
        (tmp_path / "new").write_text(f"k,v\n0,{first}\n1,10\n2,100\n")
        (tmp_path / "new").rename(tmp_path / "rates.csv")

    def put(*numbers: int) -> None:
        (tmp_path / "new").write_text("".join(f"{number}\n" for number in numbers))
        (tmp_path / "new").rename(tmp_path / "numbers" / f"{numbers[0]}.csv")

    def has_written(count: int) -> bool:
        return len(rows(tmp_path)) == count and (tmp_path / "states.json").exists()

    def is_refreshed() -> bool:
        return {path.parts[-3] for path in commits(tmp_path).keys() - old.keys()} == {"totals", "ranks"}

    for folder in ("table", "numbers"):
        (tmp_path / folder).mkdir()
    set_rates(3)
    put(0, 1)
    with driver(tmp_path, "1s") as process:
        until(lambda: has_written(2) or process.poll() is not None, "rows are missing")
        old = commits(tmp_path)
        (tmp_path / "hold-stage").touch()
        set_rates(5)
        until(lambda: (tmp_path / "reached-stage").exists() or process.poll() is not None, "no refresh")
        put(3, 4)  # the stream goes on meanwhile
        until(lambda: has_written(4) or process.poll() is not None, "rows are missing")
        assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
    assert [path.parts[-3] for path in commits(tmp_path).keys() - old.keys()] == ["totals"]
    (tmp_path / "hold-stage").unlink()
    (tmp_path / "states.json").unlink()
    with driver(tmp_path, "1s") as process:
        # The old results are removed when the query has restarted with the new ones.
        until(lambda: not commits(tmp_path).keys() & old.keys() or process.poll() is not None, "no refresh")
        assert is_refreshed()
        put(6, 7)
        until(lambda: has_written(6) or process.poll() is not None, "rows are missing")
        assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
    assert json.loads((tmp_path / "states.json").read_text()) == {
        "totals": "reused",
        "ranks": "reused",
        "table": "running",
    }
    assert rows(tmp_path) == [[0, 3], [1, 10], [3, 3], [4, 10], [6, 5], [7, 10]]
