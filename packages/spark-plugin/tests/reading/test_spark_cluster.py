import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_clusters import Cluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds executors, and binds 127.0.0.2, as Linux does")


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master, and one worker to begin with: a new one for each try, as tests add workers."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as one:
        one.add_worker()
        yield one


def table(folder: Path) -> list[list[str]]:
    """Rows of all micro-batches: shard, sequence number, data, executor."""
    return [row for file in (folder / "table").glob("*.json") for row in json.loads(file.read_text())]


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
    )

    def rows_of(executor: str) -> int:
        return sum(1 for row in table(tmp_path) if row[3] == executor)

    def all_read(what: str) -> None:
        wanted = len(source.put_keys)
        until(lambda: len(table(tmp_path)) >= wanted, lambda: f"{what}: {_tail(tmp_path)}")
        rows = table(tmp_path)
        assert len(rows) == wanted
        assert {(shard, number): data.encode() for shard, number, data, _ in rows} == source.put_keys

    source.put(100)
    with cluster.driver(tmp_path, "127.0.0.2", options | {"registryStore": str(tmp_path / "registry.db")}):
        all_read("nothing comes from the first executor")
        until((tmp_path / "reader").exists, "there is no progress")
        assert (tmp_path / "reader").read_text().startswith("127.0.0.2:")
        (first,) = cluster.executors()

        cluster.add_worker()
        until(lambda: len(cluster.executors()) == 2, "the new worker has no executor")
        (second,) = cluster.executors().keys() - {first}

        def reads_more(executor: str) -> bool:
            # What was put may have been read before anybody looked, and by the other one: there is always more.
            if len(table(tmp_path)) >= len(source.put_keys):
                source.put(40)
            return rows_of(executor) > before

        before = 0
        until(lambda: reads_more(second), "the new executor reads nothing")

        before = rows_of(first)
        source.put(200)
        until(lambda: reads_more(first), "the first executor reads no more")
        os.kill(cluster.executors()[first], signal.SIGKILL)
        source.put(100)
        all_read("records of the killed executor are missing")
    assert len({executor for *_, executor in table(tmp_path)}) >= 2


def _tail(folder: Path) -> str:
    return (folder / "driver.log").read_text()[-3000:]
