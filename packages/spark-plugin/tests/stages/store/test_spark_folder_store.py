"""A store in a folder: what identifies it, and its rows as Spark writes them."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from store_lives import FINGERPRINTS, FolderWorld, compute, folder_store, pins

from penstock.spark_plugin._stages.store.pins import Pin, RunPins
from penstock.spark_plugin._stages.store.result import CommittedStage
from penstock.spark_plugin._stages.store.store import StageStore

ROW = """
    select cast(1 as long) as k, 1.5d as d, cast(1.25 as decimal(9,2)) as m, 'a' as s, true as b, binary('x') as raw,
        timestamp'2026-01-02 03:04:05' as at, timestamp_ntz'2026-01-02 03:04:05' as local, date'2026-01-02' as day,
        array(named_struct('x', 1, 'y', map('p', array(2)))) as nested, interval '1 02:03:04' day to second as span
"""


@pytest.mark.parametrize("rows", [1, 0])
def test_committed_rows_have_the_schema_that_spark_finds_without_a_job(
    spark: SparkSession, tmp_path: Path, rows: int
) -> None:
    """Reading a committed result runs no job, and gives the columns and rows that Spark finds in the files."""
    result = folder_store(tmp_path / "a store").stage("daily", FINGERPRINTS[0])
    frame = spark.sql(ROW).limit(rows)
    result.begin("daily")
    result.write("daily", frame)
    assert result.measure(["daily"])[0] == rows
    result.commit(CommittedStage("daily", FINGERPRINTS[0], rows=1, size_bytes=1, seconds=0.1, outputs={"daily": "x"}))
    assert (result.damage(), result.shows_size) == ("", True)
    context = spark.sparkContext
    context.setJobGroup("read committed", "")
    try:
        found = result.read(spark, "daily")
        jobs = context.statusTracker().getJobIdsForGroup("read committed")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None unsets
    assert len(jobs) == 0
    (folder,) = Path(result.location).glob("*/daily")
    assert found.schema == spark.read.parquet(f"file://{folder}").schema
    assert found.collect() == frame.collect()


def test_pins_that_stay_the_same_are_not_written_again(tmp_path: Path) -> None:
    """A run that continues with what is pinned leaves the file as it is; other pins replace it."""
    store = folder_store(tmp_path)
    before = RunPins(pipeline="p", store="s", stages={"one": Pin(fingerprint="f", code="c", inputs={"zero": "g"})})
    store.pin(before)
    (file,) = (tmp_path / "stages" / ".pins").glob("*.json")
    ino = file.stat().st_ino
    store.pin(before)
    assert file.stat().st_ino == ino
    ended = RunPins(pipeline="p", store="s", stages=before.stages, ended=True)
    store.pin(ended)
    assert store.pins() == ended


def at_one_path(tmp_path: Path, disk: str) -> StageStore:
    """A store as its host has it mounted, at the same path as all hosts."""
    (tmp_path / disk).mkdir(exist_ok=True)
    mounted = tmp_path / "mounted"
    mounted.unlink(missing_ok=True)
    mounted.symlink_to(tmp_path / disk)
    return folder_store(mounted, tmp_path / "shared")


def test_hosts_with_stores_of_their_own_at_one_path_keep_each_others_results(tmp_path: Path) -> None:
    """The identity of a store is in the store, and is not its path."""
    world = FolderWorld(tmp_path)
    for disk, fingerprint in zip("ab", FINGERPRINTS, strict=False):
        store = at_one_path(tmp_path, disk)
        assert store.pins() is None
        compute(store, world, fingerprint)
        store.pin(pins(store, fingerprint))
        assert store.clean_up() == 0
    first = at_one_path(tmp_path, "a")
    assert first.pins() == pins(first, FINGERPRINTS[0])
    first.forget()
    assert [first.stage("daily", one).committed() is not None for one in FINGERPRINTS[:2]] == [False, True]


def test_a_store_that_is_mounted_elsewhere_has_its_snapshot(tmp_path: Path) -> None:
    before = folder_store(tmp_path / "here", tmp_path / "shared")
    before.pin(pins(before, FINGERPRINTS[0]))
    (tmp_path / "here").rename(tmp_path / "there")
    after = folder_store(tmp_path / "there", tmp_path / "shared")
    assert after.pins() == pins(before, FINGERPRINTS[0])
    after.pin(pins(after, FINGERPRINTS[1]))
    assert len(list((tmp_path / "shared/.pins").iterdir())) == 1


@pytest.mark.parametrize("links", [True, False])
def test_an_identity_leads_out_of_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool) -> None:
    """Others may have written it. It needs no hard links."""
    if not links:

        def link(*_: object, **__: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(os, "link", link)
    else:
        (tmp_path / "store").mkdir()
        (tmp_path / "store/.id").write_text("../../out")
    store = folder_store(tmp_path / "store")
    store.pin(pins(store, FINGERPRINTS[0]))
    assert folder_store(tmp_path / "store").pins() == pins(store, FINGERPRINTS[0])
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_copy_of_a_store_has_its_snapshot_and_keeps_the_results_of_the_original(tmp_path: Path) -> None:
    """The identity was copied as well."""
    original, copy = (folder_store(tmp_path / name, tmp_path / "shared") for name in ("original", "copy"))
    for one in FINGERPRINTS[:2]:
        compute(original, FolderWorld(tmp_path), one)
    with original:
        original.pin(pins(original, FINGERPRINTS[0]))
    shutil.copytree(original.name, copy.name)
    with copy:
        assert copy.pins() == pins(copy, FINGERPRINTS[0])
        copy.pin(pins(copy, FINGERPRINTS[1]))
        copy.clean_up()
        identity = copy.identity()
    assert [original.stage("daily", one).committed() is not None for one in FINGERPRINTS[:2]] == [True, True]
    assert original.pins() == pins(original, FINGERPRINTS[0])
    assert identity != original.identity()
    with folder_store(tmp_path / "copy", tmp_path / "shared") as again:
        assert (again.identity(), again.pins()) == (identity, pins(copy, FINGERPRINTS[1]))


@pytest.mark.parametrize("sees_each_other", [True, False])
def test_a_store_at_two_paths_is_not_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sees_each_other: bool
) -> None:
    """By a link, or by two mounts whose files the operating system does not take for the same."""
    store = folder_store(tmp_path / "store", tmp_path / "shared")
    with store:
        store.pin(pins(store, FINGERPRINTS[0]))
    (tmp_path / "mounted").symlink_to(store.name)
    if not sees_each_other:
        monkeypatch.setattr(os.path, "samefile", lambda *_: False)
    with folder_store(tmp_path / "mounted", tmp_path / "shared") as mounted:
        assert (mounted.identity(), mounted.pins()) == (store.identity(), pins(store, FINGERPRINTS[0]))
