"""Drivers that are killed with SIGKILL: the next run gives the right rows, and nothing of the dead ones is left.

PENSTOCK_KILLS says how many random points a test tries; `hatch run prove hostile --spark` tries 30 in each session.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from connect_servers import connect_server
from pyspark.sql import SparkSession
from s3_servers import options, running_s3, s3_client

from penstock.rpc.testing import service_process
from penstock.spark_plugin import Pipeline, PipelineRun

DRIVER = Path(__file__).parents[2] / "runs_driver.py"
FILES = 6
CHANGES = 90
"""About as many files as a whole run makes, also for a moment."""
KILLS_IN_A_ROW = 5


class World:
    """A folder with rates and numbers, and drivers that join them."""

    def __init__(self, folder: Path, until: Callable[..., None], **given: Any) -> None:
        self.folder, self.until, self.given = folder, until, given
        (folder / "numbers").mkdir(parents=True)
        self.set_rates(3)

    def set_rates(self, first: int) -> None:
        (self.folder / "new").write_text(f"k,v\n0,1\n0,{first - 1}\n1,10\n2,100\n")
        (self.folder / "new").rename(self.folder / "rates.csv")

    def put(self, *numbers: int) -> None:
        (self.folder / "new").write_text("".join(f"{number}\n" for number in numbers))
        (self.folder / "new").rename(self.folder / "numbers" / f"{numbers[0]}.csv")

    @contextmanager
    def driver(self) -> Iterator[subprocess.Popen[bytes]]:
        """A driver, with its JVM if it has one in a process group of their own, which is killed at the end."""
        (self.folder / "states.json").unlink(missing_ok=True)
        with (self.folder / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, DRIVER, self.folder, json.dumps(self.given)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                env={**os.environ, **self.given.get("jvm", {})},
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait(self, process: "subprocess.Popen[bytes]", reached: Callable[[], bool], what: str) -> None:
        self.until(lambda: reached() or process.poll() is not None, what)
        assert reached(), (self.folder / "driver.log").read_text()[-4000:]

    def kill_at(self, point: str) -> int:
        """Kill a driver that has come to a point of the pipeline's functions; the process that is held there."""
        (self.folder / f"hold-{point}").touch()
        with self.driver() as process:
            self.wait(process, (self.folder / f"reached-{point}").exists, point)
        return int((self.folder / f"reached-{point}").read_text())

    def kill_after(self, changes: int) -> None:
        """Kill a driver that has made so many files; one that makes fewer ends before."""
        before, seen = self.files(), set[str]()

        def reached() -> bool:
            seen.update(self.files() - before)
            return len(seen) >= changes or process.poll() is not None

        with self.driver() as process:
            self.until(reached, "the driver does nothing")

    def finish(self) -> dict[str, str]:
        """Let a driver run to its end; the states of its stages when its live stage was deployed."""
        with self.driver() as process:
            self.wait(process, lambda: process.poll() == 0, "no end")
        found: dict[str, str] = json.loads((self.folder / "states.json").read_text())
        return found

    @property
    def rows(self) -> list[list[int]]:
        """What Spark reads of the table: files that its log names."""
        logs = (self.folder / "table/_spark_metadata").glob("[0-9]*")
        named = {json.loads(line)["path"] for log in logs for line in log.read_text().splitlines()[1:]}
        lines = [line for url in named for line in Path(url.removeprefix("file://")).read_text().splitlines()]
        return sorted([row["n"], row["total"]] for row in map(json.loads, lines))

    @property
    def commits(self) -> dict[Path, int]:
        """When each result of a stage was committed, by its marker."""
        return {path: path.stat().st_mtime_ns for path in (self.folder / "store/stages").glob("*/*/_COMMITTED.json")}

    def files(self) -> set[str]:
        # Folders may go meanwhile, which `rglob` does not take.
        found = (Path(folder) / name for folder, _, names in os.walk(self.folder) for name in names)
        return {str(path.relative_to(self.folder)) for path in found}

    def left(self) -> set[str]:
        """What lies among the results and is neither committed nor says what is."""
        stages = self.folder / "store/stages"
        kept = {stages / ".pins" / f"{(self.folder / 'store/.id').read_text()}.json"}
        for marker in self.commits:
            document = json.loads(marker.read_text())
            kept |= {marker, marker.with_name("_STARTED.json")}
            for vertex in document["outputs"].values():
                folder = marker.parent / document["attempt"] / vertex
                for name in ("_SUCCESS", *(file[0] for file in document["files"][vertex])):
                    kept |= {folder / name, folder / f".{name}.crc"}
        there = {name for name in self.files() if name.startswith(("store/stages/", "store/."))}
        return there - {"store/.id"} - {str(path.relative_to(self.folder)) for path in kept}

    def put_all(self) -> None:
        """The numbers of a run that ends."""
        for number in range(FILES):
            self.put(number, number + 100)

    def check(self, states: dict[str, str]) -> None:
        """All rows are there once, and nothing is left."""
        assert states.pop("table") in ("running", "finished")
        assert states.keys() == {"totals", "ranks"}
        totals = {0: 3, 1: 10, 2: 100}
        assert self.rows == sorted([n, totals[n % 3]] for first in range(FILES) for n in (first, first + 100))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of Spark Connect: it lives on when its clients are killed, and so do their jobs."""
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


def place(request: pytest.FixtureRequest, session: str) -> dict[str, Any]:
    """Where drivers have their jobs: on the server, in the JVM of this process, or in a JVM that is killed as well."""
    if session == "connect":
        return {"remote": request.getfixturevalue("server")}
    if session == "classic":
        return {}
    spark: SparkSession = request.getfixturevalue("spark")
    gateway: Any = spark.sparkContext._gateway
    java = gateway.java_parameters
    return {"jvm": {"PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.auth_token}}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("session", ["connect", "classic"])
def test_a_run_continues_where_drivers_were_killed(
    request: pytest.FixtureRequest, until: Callable[..., None], tmp_path: Path, session: str
) -> None:
    """At random points, with other rates after each: what was committed is used again, and no row is lost or doubled.

    Jobs continue on the server, or in the JVM; with PENSTOCK_KILLS each classic driver has a JVM that is killed too.
    """
    seed = int(os.environ.get("PENSTOCK_KILLS_SEED") or random.randrange(10**6))
    chosen = random.Random(seed)
    kills = int(os.environ.get("PENSTOCK_KILLS") or 2)
    if session == "classic" and "PENSTOCK_KILLS" not in os.environ:
        session = "jvm"
    given = place(request, session)
    for first in range(0, kills, KILLS_IN_A_ROW):
        world = World(tmp_path / str(first), until, **given)
        world.put_all()
        for number in range(min(KILLS_IN_A_ROW, kills - first)):
            committed, changes = world.commits, chosen.randrange(CHANGES)
            print(f"{session}, seed {seed}: kill {first + number + 1} after {changes} files", flush=True)
            world.kill_after(changes)
            assert committed.items() <= world.commits.items()
            if any(path.parts[-3] == "totals" for path in world.commits):
                world.set_rates(999)
        committed = world.commits
        world.check(world.finish())
        assert committed.items() <= world.commits.items()
        assert sorted(path.parts[-3] for path in world.commits) == ["ranks", "totals"]
        assert world.left() == set()


def test_a_run_on_s3_continues_where_its_client_was_killed(
    server: str, until: Callable[..., None], tmp_path: Path
) -> None:
    """In a stage, after another was committed: its claim runs out, and its job, which could still write, is ended."""
    with running_s3() as endpoint_url:
        client = s3_client(endpoint_url)
        client.create_bucket(Bucket="stages")
        given = {"store": "s3://stages/store", "store_options": options(endpoint_url, claimSeconds="2")}
        world = World(tmp_path / "world", until, remote=server, **given)
        world.put_all()
        world.kill_at("stage")
        world.set_rates(999)
        (world.folder / "hold-stage").unlink()
        states = world.finish()
        assert (states["totals"], states["ranks"]) == ("reused", "finished")
        world.check(states)
        keys = [one["Key"] for one in client.list_objects_v2(Bucket="stages", Prefix="store/stages/")["Contents"]]
    attempts = {tuple(key.split("/")[2:5]) for key in keys if key.endswith(".parquet")}
    assert sorted(stage for stage, _, _ in attempts) == ["ranks", "totals"]
    assert len(keys) == len([key for key in keys if key.endswith((".parquet", "_STARTED.json", "_COMMITTED.json"))]) + 1


def test_a_run_with_files_of_spark_continues_where_its_client_was_killed(
    server: str, until: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`stageFormat=spark`, on a file system without conditional writes: the stage scheduler decides about the store."""
    pytest.importorskip("penstock.services.stage_scheduler")
    with service_process("penstock.services.stage_scheduler", ["serve"]) as service:
        monkeypatch.setenv("PENSTOCK_STAGES_ENDPOINT", service.address)
        world = World(tmp_path / "world", until, remote=server, files=f"file://{tmp_path}/world/store")
        world.put_all()
        world.kill_at("stage")
        world.set_rates(999)
        (world.folder / "hold-stage").unlink()
        states = world.finish()
        assert (states["totals"], states["ranks"]) == ("reused", "finished")
        world.check(states)


@pytest.mark.parametrize("session", ["connect", "jvm"])
def test_the_batch_write_of_a_killed_driver_is_ended_by_the_next_run(
    request: pytest.FixtureRequest, until: Callable[..., None], tmp_path: Path, session: str
) -> None:
    """A server, and a JVM that outlives its Python, would add the dead driver's rows to the next one's."""
    world = World(tmp_path / "world", until, **place(request, session), sink="held")
    held = world.kill_at("sink")
    world.given["sink"] = "free"
    states = world.finish()
    assert states == {"totals": "reused", "ranks": "reused", "report": "finished"}
    until(lambda: not Path(f"/proc/{held}").exists(), "the task of the dead driver runs")
    lines = [line for file in (world.folder / "report").glob("*.csv") for line in file.read_text().splitlines()]
    assert sorted(lines) == ["0,3", "1,10", "2,100"]


@pytest.mark.timeout(3600)
def test_refreshes_whose_clients_are_killed(server: str, until: Callable[..., None], tmp_path: Path) -> None:
    """Between two stages that are computed again, and as the live query restarts: no row is lost or doubled, and the
    next run refreshes."""
    seed = int(os.environ.get("PENSTOCK_KILLS_SEED") or random.randrange(10**6))
    chosen, kills = random.Random(seed), int(os.environ.get("PENSTOCK_KILLS") or 3) // 3
    print(f"seed {seed}", flush=True)
    world = World(tmp_path / "world", until, remote=server, refresh="1s")
    states = world.folder / "states.json"

    def is_refreshed() -> bool:
        new = [path.parts[-3] for path in world.commits.keys() - old.keys()]
        return sorted(new) == ["ranks", "totals"]

    def has_rows(count: int) -> bool:
        return len(world.rows) == count

    for number in range(kills + 2):
        old = world.commits
        world.put(10 * number, 10 * number + 1)
        if number == 1:
            (world.folder / "hold-stage").touch()
        with world.driver() as process:
            world.wait(process, lambda: states.exists() and has_rows(2 * number + 2), "rows are missing")  # noqa: B023
            old = world.commits
            world.set_rates(5 + number)
            if number == 1:
                world.wait(process, (world.folder / "reached-stage").exists, "no refresh")
            else:
                world.wait(process, is_refreshed, "no refresh")
                # Not a wait for anything: a random point of what follows.
                threading.Event().wait(chosen.random() * (number <= kills))
            if number > kills:
                world.wait(process, lambda: not old.keys() & world.commits.keys(), "the old results stay")  # noqa: B023
                world.put(999, 1002)
                world.wait(process, lambda: has_rows(2 * number + 4), "rows are missing")  # noqa: B023
                # Before it is killed once more, which may be while it removes an old result.
                world.wait(process, lambda: world.left() == set(), "something is left")
        (world.folder / "hold-stage").unlink(missing_ok=True)
    numbers = [n for first in range(kills + 2) for n in (10 * first, 10 * first + 1)]
    assert [n for n, _ in world.rows] == [*numbers, 999, 1002]
    assert [total for n, total in world.rows if n in (999, 1002)] == [6 + kills] * 2


def test_the_query_of_a_killed_driver_in_the_same_session_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """Its Python has died, and its JVM and the session have not: Spark refuses a second query of one name."""

    def run() -> PipelineRun:
        pipeline = Pipeline("live", store=tmp_path / "store")
        pipeline.source(bounded=False, name="rows")(lambda spark: spark.readStream.format("rate").load())
        pipeline.sink(name="out")(lambda rows: rows.writeStream.format("noop"))
        return pipeline.run(spark)

    dead = run()
    dead._store.release()  # as the end of the process does
    following = run()
    assert not dead.queries["out"].isActive
    assert following.queries["out"].isActive
    dead.stop()
    following.stop()
