"""Executors, workers and shard readers of a standalone cluster come, and are killed, under a running query."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_clusters import Cluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds executors, and binds 127.0.0.11, as Linux does")

HOSTS = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
LONG_SECONDS = 240.0
"""For an executor that comes again, on a busy machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master, and a worker of two cores; tests add workers of other hosts."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as one:
        one.add_worker(HOSTS[0], cores=2)
        yield one


class Followed:
    """The table that a driver writes, and the readers that it has."""

    def __init__(self, folder: Path, source: Any, until: Callable[..., None]) -> None:
        self.folder, self.source, self._until = folder, source, until
        self.driver: subprocess.Popen[bytes] | None = None

    def rows(self) -> list[list[str]]:
        assert self.driver is None or self.driver.poll() is None, f"the driver has ended: {self.log()}"
        return [row for file in (self.folder / "table").glob("*.json") for row in json.loads(file.read_text())]

    def readers(self) -> list[dict[str, Any]]:
        file = self.folder / "readers"
        return json.loads(file.read_text()) if file.exists() else []

    def put_and_read(self, count: int, what: str) -> None:
        """Put records; each of all that were put is in the table once."""
        self.source.put(count)
        wanted = len(self.source.put_keys)
        self._until(lambda: len(self.rows()) >= wanted, lambda: f"{what}: {self.log()}", seconds=LONG_SECONDS)
        rows = self.rows()
        assert len(rows) == wanted
        assert {(shard, number): data.encode() for shard, number, data, _ in rows} == self.source.put_keys

    def three_readers_without(self, pid: int) -> list[dict[str, Any]]:
        """Wait for the reader of this process to have one in its place."""

        def are_there() -> bool:
            found = self.readers()
            return len(found) == len(HOSTS) and pid not in {one["pid"] for one in found}

        self._until(are_there, lambda: f"no reader in place of {pid}: {self.log()}", seconds=LONG_SECONDS)
        return self.readers()

    def log(self) -> str:
        return (self.folder / "driver.log").read_text()[-6000:]


def test_executors_come_and_go(
    cluster: Cluster, make_stream: Callable[[int], Any], until: Callable[..., None], tmp_path: Path
) -> None:
    """Each record once: while a worker joins, and after an executor was killed."""
    source = make_stream(4)
    options = source.options(
        initialPosition="TRIM_HORIZON",
        recordPublisher="efo",
        efoConsumerName="cluster",
        jobId="cluster",
        maxPartitions="4",
        maxRecordsPerBatch="60",
        registryStore=str(tmp_path / "registry.db"),
    )
    followed = Followed(tmp_path, source, until)

    def rows_of(executor: str) -> int:
        return sum(1 for row in followed.rows() if row[3] == executor)

    with cluster.driver(tmp_path, "127.0.0.2", options) as followed.driver:
        followed.put_and_read(100, "nothing comes from the first executor")
        until((tmp_path / "reader").exists, "there is no progress")
        assert (tmp_path / "reader").read_text().startswith("127.0.0.2:")
        (first,) = cluster.executors()

        cluster.add_worker(HOSTS[1], cores=2)
        until(lambda: len(cluster.executors()) == 2, "the new worker has no executor")
        (second,) = cluster.executors().keys() - {first}

        def reads_more(executor: str) -> bool:
            # What was put may have been read before this looked, and by the other one: there is always more.
            if len(followed.rows()) >= len(source.put_keys):
                source.put(40)
            return rows_of(executor) > before

        before = 0
        until(lambda: reads_more(second), "the new executor reads nothing")

        before = rows_of(first)
        source.put(200)
        until(lambda: reads_more(first), "the first executor reads no more")
        os.kill(cluster.executors()[first], signal.SIGKILL)
        followed.put_and_read(100, "records of the killed executor are missing")
        assert len({executor for *_, executor in followed.rows()}) >= 2


def test_readers_are_killed_with_their_workers(
    cluster: Cluster, make_stream: Callable[[int], Any], until: Callable[..., None], tmp_path: Path
) -> None:
    """Every row once, whoever dies; each reader comes again; when the session has stopped nothing is left of them."""
    for host in HOSTS[len(cluster.hosts) :]:
        cluster.add_worker(host, cores=2)
    source = make_stream(8)
    options = source.options(
        initialPosition="TRIM_HORIZON",
        recordPublisher="efo",
        efoConsumerName="readers",
        jobId="readers",
        maxPartitions="3",
        registryStore=str(tmp_path / "registry.db"),
    )
    readers = {"count": 3, "options": {name: options[name] for name in options if name in AWS_OPTIONS}}
    followed = Followed(tmp_path, source, until)
    source.put(100)
    (tmp_path / "events").mkdir()
    shown: dict[str, Any] = {
        "spark_eventLog_enabled": "true",
        "spark_eventLog_compress": "false",
        "spark_eventLog_dir": (tmp_path / "events").as_uri(),
        # Nothing is placed before all executors are there: else two readers may share one.
        "spark_cores_max": str(2 * len(HOSTS)),
        "spark_scheduler_minRegisteredResourcesRatio": "1.0",
        "spark_scheduler_maxRegisteredResourcesWaitingTime": "120s",
    }
    with cluster.driver(tmp_path, "127.0.0.2", options, readers, spark_local_dir=str(tmp_path), **shown) as driver:
        followed.driver = driver
        followed.put_and_read(100, "no rows come to the readers")
        first = followed.three_readers_without(0)
        assert sorted(one["host"] for one in first) == list(HOSTS)
        assert all(one["address"].startswith(f"{one['host']}:") for one in first)
        until(lambda: (tmp_path / "reader").exists(), "there is no progress")
        assert set((tmp_path / "reader").read_text().split(",")) == {one["address"] for one in first}

        (file,) = tmp_path.glob("spark-*/userFiles-*/penstock-readers/fleet.json")
        token = json.loads(file.read_text())["token"]

        os.kill(first[0]["pid"], signal.SIGKILL)
        followed.put_and_read(100, "rows are missing after a reader was killed")
        second = followed.three_readers_without(first[0]["pid"])
        assert {one["address"] for one in second} & {one["address"] for one in first}, "the others were disturbed"

        lost = second[2]
        cluster.kill_worker(lost["host"])
        followed.put_and_read(100, "rows are missing after a worker was killed")
        last = followed.three_readers_without(lost["pid"])
        assert lost["host"] not in {one["host"] for one in last}
        followed.put_and_read(100, "rows are missing at the end")

        (tmp_path / "end").touch()
        assert driver.wait(LONG_SECONDS) == 0, followed.log()
        everybody = [*first, *second, *last]
        until(lambda: not any(Path(f"/proc/{one['pid']}").exists() for one in everybody), "a process is left")
        assert [one["socket"] for one in last if Path(one["socket"]).parent.exists()] == []
        until(lambda: source.consumers() == [], "a stream consumer is left")
    events = "".join(one.read_text() for one in (tmp_path / "events").rglob("*") if one.is_file())
    assert "penstock: shard reader 1 of 3" in events
    for text in (events, followed.log(), *cluster.logs()):
        assert not any(word in text for word in (token, "BEGIN CERTIFICATE", "PRIVATE KEY"))


AWS_OPTIONS = ("region", "endpointUrl", "awsAccessKeyId", "awsSecretAccessKey")
