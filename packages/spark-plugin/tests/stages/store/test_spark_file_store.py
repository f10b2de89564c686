"""A store on a file system that writes nothing on a condition: the stage scheduler decides who may write."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from store_lives import FINGERPRINTS, FolderWorld, Killed, Life, committed, compute, pins

from penstock.aws import AwsConnectionError
from penstock.operator_attributes import (
    BlockingStageScheduler,
    OperatorAttributes,
    StageState,
    open_stage_scheduler,
)
from penstock.rpc.testing import ServiceProcess, service_process
from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._objects import Objects
from penstock.spark_plugin._places import Place
from penstock.spark_plugin._stages.store.formats import StageFormat
from penstock.spark_plugin._stages.store.opening import StorePlace
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin._storage.files import FileObjects
from penstock.spark_plugin._storage.folder import FolderObjects
from penstock.spark_plugin.errors import PipelineDefinitionError, PipelineError, StoreLostError, StoreUnusableError

pytest.importorskip("penstock.services.stage_scheduler")
MODULE = "penstock.services.stage_scheduler"
SECONDS = 1.0


@pytest.fixture(scope="module")
def scheduler() -> Iterator[ServiceProcess]:
    with service_process(MODULE, ["serve"]) as service:
        yield service


class World(FolderWorld):
    """A folder, and stores in it as drivers open them: each with a client of its own."""

    own: tuple[str, ...] = ()

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self.address = address
        self.clients: list[BlockingStageScheduler] = []

    def objects(self, folder: str) -> Objects:
        return FileObjects(Place.parse(f"file://{self.folder}/{folder}"))

    def store(
        self, name: str = "store", *, stages: str = "", life: Life | None = None, seconds: float = SECONDS, **given: Any
    ) -> StageStore:
        objects = [self.objects(folder) for folder in (name, stages or f"{name}/stages")]
        self.clients.append(open_stage_scheduler(self.address))
        return StageStore(*objects, claim_seconds=seconds, service=self.clients[-1], **given)


@pytest.fixture
def world(tmp_path: Path, scheduler: ServiceProcess) -> Iterator[World]:
    one = World(tmp_path, scheduler.address)
    yield one
    for client in one.clients:
        client.close()


@pytest.mark.parametrize("seconds", [1.0, 6.0])
def test_two_drivers_at_once(world: Any, seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    """The second waits and says so, and is refused when the first one renews its claim; after the release it has it."""
    with world.store(seconds=seconds) as first:
        with pytest.raises(PipelineError, match=r"STORE_IN_USE.* process \d+ on .*, by the stage scheduler"):
            world.store(seconds=seconds).__enter__()
        assert caplog.text.count("waiting until it is renewed or runs out") == 1
        token = first._claim.token
    with world.store() as second:
        assert second._claim.token > token


def test_a_restarted_scheduler_is_not_a_sign_of_life(tmp_path: Path) -> None:
    """It gives each claim its whole time again: who waits for a dead driver waits longer, and is not refused."""
    serve = ["serve", "--store", str(tmp_path / "stages.db")]
    with ExitStack() as stack:
        service = stack.enter_context(service_process(MODULE, serve))
        world = World(tmp_path, service.address)
        world.store(seconds=3.0).__enter__()
        world.clients.pop().close()
        waits = 0

        def begin_anew(seconds: float) -> None:
            nonlocal waits
            waits += 1
            time.sleep(seconds)
            if waits == 1:
                service.process.kill()
                service.process.wait()
                port = service.address.rpartition(":")[2]
                stack.enter_context(service_process(MODULE, [*serve, "--port", port]))

        with world.store(seconds=3.0, sleep=begin_anew):
            assert waits > 1
        world.clients.pop().close()


def test_a_scheduler_that_is_gone_or_has_forgotten_ends_the_run(world: Any, until: Callable[..., None]) -> None:
    """Another driver may have the store by then; the next scheduler's first number need not be the greater one."""
    with service_process(MODULE, ["serve"]) as service:
        world.address = service.address
        store, told = world.store(), threading.Event()
        store.when_lost(lambda _: told.set())
        store.__enter__()
        store.pin(pins(store, FINGERPRINTS[0]))
        token = store._claim.token
        service.process.kill()
        service.process.wait()
        until(told.is_set, "the run is not told")
        with pytest.raises(StoreLostError, match="it could not be renewed until it ran out"):
            store.pin(pins(store, FINGERPRINTS[1]))
        store.release()
    with service_process(MODULE, ["serve"]) as service:
        world.address = service.address
        with world.store() as again:
            assert again._claim.token > token
            assert again.pins() == pins(again, FINGERPRINTS[0])
            again.pin(pins(again, FINGERPRINTS[1]))
    with pytest.raises(StoreUnusableError, match="the stage scheduler, which decides who may write there, does not"):
        world.store().__enter__()


def test_a_marker_that_takes_the_place_of_another_leaves_its_files(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without conditions two may be written at once: those who read the first one still find its rows."""
    with world.store() as store:
        late = store.stage("daily", FINGERPRINTS[0])
        late.begin("daily")
        late.wrote("daily", [("part-late.parquet", 1, 1)], "{}")
        first = compute(store, world, FINGERPRINTS[0])
        before = world.all_keys()
        assert late.commit(committed(FINGERPRINTS[0], size=1)) == first  # it looks before it writes
        with monkeypatch.context() as patch:
            patch.setattr(FileObjects, "read", lambda *_: None)  # what it has seen just before
            assert late.commit(committed(FINGERPRINTS[0], size=1)).size_bytes == 1
        store.pin(pins(store, FINGERPRINTS[0]))
        store.clean_up()
        assert {key for key in before if "/stages/daily/" in key} <= world.all_keys()
    with world.store() as store:
        store.clean_up()  # of the next run, whose readers have seen the second marker
        assert not any(key.endswith("part-1.parquet") for key in world.all_keys())


def job(folder: Path, store: StorePlace) -> Pipeline:
    pipeline = Pipeline("job", store=folder / "unused")
    pipeline.place = store
    pipeline.source(bounded=True, name="rows", fingerprint="1")(lambda spark: spark.range(100))

    @pipeline.op(attributes=OperatorAttributes(output_only_after_end_of_stream=True))
    def counts(rows: DataFrame) -> DataFrame:
        return rows.groupBy((rows["id"] % 3).alias("k")).count()

    @pipeline.sink()
    def out(counts: DataFrame) -> Any:
        return counts.write.format("json").mode("overwrite").option("path", str(folder / "out"))

    return pipeline


@pytest.mark.parametrize("wanted", ["arrow", "spark", "auto"])
def test_results_are_written_by_spark_where_it_reaches_the_store(
    spark: SparkSession, tmp_path: Path, scheduler: ServiceProcess, wanted: str
) -> None:
    """And read by it, despite a file of a late task in the folder; a run with another format reuses them."""
    place = Place.parse(f"file://{tmp_path}/store")

    def run(stage_format: str) -> StageState:
        store = StorePlace(store=place, stages=None, claim_seconds=10.0, stage_format=StageFormat(stage_format))
        run = job(tmp_path, store).run(spark, scheduler_endpoint=scheduler.address)
        rows = spark.read.json(str(tmp_path / "out")).collect()
        assert sorted((row["k"], row["count"]) for row in rows) == [(0, 34), (1, 33), (2, 33)]
        return run.states["counts"]

    assert run(wanted) is StageState.FINISHED
    (marker,) = (tmp_path / "store/stages/counts").glob("*/_COMMITTED.json")
    assert json.loads(marker.read_text())["format"] == ("arrow" if wanted == "arrow" else "spark")
    (folder,) = marker.parent.glob("*/counts")
    assert (folder / "_SUCCESS").exists() is (wanted != "arrow")
    late = next(folder.glob("part-*.parquet"))
    (folder / "part-late.parquet").write_bytes(late.read_bytes())
    (tmp_path / "out" / "part-0.json").unlink(missing_ok=True)
    for other in ("arrow", "spark"):
        assert run(other) is StageState.REUSED
    assert not list((tmp_path / "store/stages/.probes").rglob("*.parquet"))


def test_a_format_that_there_is_not_is_refused() -> None:
    """With the place, and those that there are; and of a folder, where Spark writes in any case."""
    with pytest.raises(PipelineDefinitionError) as caught:
        Pipeline("p", store="s3://bucket/x", store_options={"stageFormat": "parquet"})
    assert str(caught.value).endswith("store_options: stageFormat='parquet' must be arrow, spark or auto")
    with pytest.raises(PipelineDefinitionError) as caught:
        Pipeline("p", store="/x", store_options={"stageFormat": "spark"})
    assert str(caught.value).endswith(
        "store_options 'stageFormat' act on a store on s3://, and store='/x' is a folder: leave them out"
    )


class Refusing:
    """A file system whose renames do not replace files, as on HDFS."""

    def __init__(self, system: fs.FileSystem, dies_at: str = "") -> None:
        self._system, self._dies_at = system, dies_at

    def move(self, source: str, target: str) -> None:
        if self._system.get_file_info(target).type is fs.FileType.File:
            raise FileExistsError(target)
        if target.endswith(self._dies_at) and self._dies_at:
            raise Killed
        self._system.move(source, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


def test_objects_are_whole_where_renames_take_no_place(tmp_path: Path) -> None:
    """Also where a driver is killed between the removal of the old one and the rename of the new one."""
    objects = FileObjects(Place.parse(f"file://{tmp_path}/x"))
    plain = objects._system
    objects._system = Refusing(plain)
    first = objects.write("a/b.json", b"1", if_version=None)
    assert first is not None
    assert objects.write("a/b.json", b"2", if_version=None) is None
    assert objects.write("a/b.json", b"1", if_version=None) == first  # an answer that was lost
    second = objects.write("a/b.json", b"2", if_version=first)
    assert second is not None
    assert objects.write("a/b.json", b"3", if_version=first) is None
    objects._system = Refusing(plain, dies_at="b.json")
    with pytest.raises(Killed):
        objects.write("a/b.json", b"3", if_version=second)
    objects._system = Refusing(plain)
    found = objects.read("a/b.json")
    assert found is not None
    assert found.data == b"3"
    assert objects.write("a/b.json", b"4", if_version=found.version) is not None
    assert [(one.key, one.size) for one in objects.list("a/b")] == [("a/b.json", 1)]
    assert list(objects.list("other/")) == []
    objects.delete(["a/b.json", "a/not there"])
    assert objects.read("a/b.json") is None


@pytest.mark.parametrize("backend", ["files", "folder"])
def test_temporary_files_of_killed_writers_go_with_the_next_write_or_removal(tmp_path: Path, backend: str) -> None:
    """Those of the same object only: other drivers may be writing the objects beside it."""
    objects: Objects = FolderObjects(tmp_path)
    if backend == "files":
        objects = FileObjects(Place.parse(f"file://{tmp_path}"))
    name = "a/.tmp-{}.{}" if backend == "files" else "a/.{}.{}"
    for key in ("a/b.json", "a/b"):
        assert objects.write(key, b"1", if_version=None) is not None

    def leave() -> list[str]:
        made = [name.format(one, uuid.uuid4().hex) for one in ("b.json", "b")]
        for one in made:
            (tmp_path / one).touch()
        return made

    def left() -> list[str]:
        return sorted(one.key for one in objects.list("a/") if one.key not in ("a/b.json", "a/b"))

    made = leave()
    found = objects.read("a/b")
    assert found is not None
    assert objects.write("a/b", b"2", if_version=found.version) is not None
    assert left() == made[:1]
    objects.delete(["a/b.json"])
    assert left() == []


def test_errors_of_a_file_system_are_those_of_an_outage(tmp_path: Path) -> None:
    objects = FileObjects(Place.parse(f"file://{tmp_path}/x"))
    (tmp_path / "x").write_text("a file")
    with pytest.raises(AwsConnectionError, match="x"):
        objects.write("a/b.json", b"1", if_version=None)


@pytest.mark.parametrize(
    "url",
    ["gs://bucket/store", "abfss://container@account.dfs.core.windows.net/store"],
)
def test_a_store_without_conditions_needs_a_scheduler(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named with what to give, before anything is written."""
    monkeypatch.delenv("PENSTOCK_STAGES_ENDPOINT", raising=False)
    with pytest.raises(StoreUnusableError) as caught:
        Pipeline("p", store=url).clean_up()
    assert str(caught.value) == (
        f"the store's folder {url} cannot be used (its file system has no conditional writes, so that a stage "
        "scheduler has to decide which driver may write: give run(spark, scheduler_endpoint=…), or set "
        "PENSTOCK_STAGES_ENDPOINT): `store=` takes a folder that exists or can be made, "
        "or s3://BUCKET/FOLDER, which this driver and all executors may write"
    )


def test_a_password_in_a_url_is_not_shown() -> None:
    """Not by the pipeline's place, nor by the options of what Spark reads."""
    place = Place.parse("abfs://account:the%20key@127.0.0.1:10000/c/store?enable_tls=false&sas=secret")
    below = place.below("stages/x")
    assert below.shown == "abfs://account@127.0.0.1:10000/c/store/stages/x"
    assert below.url == "abfs://account:the%20key@127.0.0.1:10000/c/store/stages/x?enable_tls=false&sas=secret"
    assert "key" not in repr(below)
    with pytest.raises(PipelineDefinitionError) as caught:
        Pipeline("p", store="gs://user:key@bucket/x", store_options={"region": "eu-west-1"})
    assert (
        "store_options 'region' act on a store on s3://, and store='gs://user@bucket/x' is not: leave them out"
        in str(caught.value)
    )
