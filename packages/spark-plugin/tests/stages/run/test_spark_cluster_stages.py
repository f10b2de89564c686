"""Stages and dead letters of a standalone cluster whose hosts share no folder: all of it is on S3."""

import contextlib
import json
import os
import signal
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s3_servers import options, running_s3, s3_client
from spark_clusters import Cluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds executors, and binds 127.0.0.2, as Linux does")

_DRIVER = Path(__file__).parents[2] / "cluster_stages_driver.py"


def test_stages_and_dead_letters_on_s3_need_no_shared_folder(
    make_stream: Callable[[int], Any],
    until: Callable[..., None],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Two hosts, one of which is killed in the middle of a stage, and then the driver: the next one, from a third
    address, uses what was committed, computes the rest, and each bad row is one dead letter, also when an executor is
    killed as it writes."""
    stream = make_stream(2)
    with running_s3() as endpoint_url, Cluster(tmp_path_factory.mktemp("hosts")) as cluster:
        s3 = s3_client(endpoint_url)
        s3.create_bucket(Bucket="stages", ACL="public-read-write")
        s3.put_object(Bucket="stages", Key="hold", Body=b"hold", ACL="public-read")
        for host in ("127.0.0.1", "127.0.0.2"):
            cluster.add_worker(host)
        given = {
            "store": "s3://stages/store",
            "store_options": options(endpoint_url, claimSeconds="10"),
            "letters": "s3://stages/letters",
            "hold_url": f"{endpoint_url}/stages/hold",
            "sink": stream.options(),
        }
        environment = {"AWS_ENDPOINT_URL_S3": endpoint_url}

        def keys(prefix: str, end: str = "") -> list[str]:
            found = s3.list_objects_v2(Bucket="stages", Prefix=prefix).get("Contents", ())
            return [one["Key"] for one in found if one["Key"].endswith(end)]

        def driver(host: str) -> contextlib.AbstractContextManager[object]:
            return cluster.driver(tmp_path, host, given, file=_DRIVER, environment=environment)

        with driver("127.0.0.3"):
            until(lambda: bool(keys("store/stages/ranks/", "_STARTED.json")), lambda: _tail(tmp_path))
            until(lambda: len(cluster.executors()) == 2, lambda: _tail(tmp_path))
            cluster.kill_worker("127.0.0.2")
        (committed,) = keys("store/stages/totals/", "_COMMITTED.json")
        assert not keys("store/stages/ranks/", "_COMMITTED.json")
        s3.put_object(Bucket="stages", Key="hold", Body=b"continue", ACL="public-read")
        cluster.add_worker("127.0.0.5")
        with driver("127.0.0.4"):
            until((tmp_path / "states.json").exists, lambda: _tail(tmp_path))
            until(lambda: len(keys("letters/")) >= 2, lambda: _tail(tmp_path))
            os.kill(next(iter(cluster.executors().values())), signal.SIGKILL)
            seen = len(keys("letters/"))
            until(lambda: len(keys("letters/")) >= seen + 2, lambda: _tail(tmp_path))
        assert json.loads((tmp_path / "states.json").read_text())["totals"] == "reused"
        assert keys("store/stages/totals/", "_COMMITTED.json") == [committed]
        letters = [
            json.loads(line)
            for key in keys("letters/")
            for line in s3.get_object(Bucket="stages", Key=key)["Body"].read().splitlines()
        ]
        values = sorted(int(b64decode(one["data"]).split()[0]) for one in letters)
        assert values == list(range(0, 10 * len(values), 10))
        assert {one["reason"] for one in letters} == {"bad row"}, letters[0]
        totals = {k: sum(range(k, 1000, 10)) for k in range(10)}
        sent = {tuple(map(int, data.split())) for data in stream.held()}
        assert {(value, total) for value, total in sent if total != totals[value % 10]} == set()
        assert {value % 10 for value, _ in sent} == set(range(1, 10))
    folders = {path.name for path in tmp_path.iterdir()}
    assert folders <= {"checkpoint", "driver.log", "states.json", "spark-warehouse", "artifacts"}, folders


def _tail(folder: Path) -> str:
    return (folder / "driver.log").read_text()[-3000:]
