"""The store of results: what is kept, and what a crash leaves of its files."""

import errno
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.spark_plugin._stages.store.pins import Pin, RunPins
from penstock.spark_plugin._stages.store.store import CommittedStage, StageFolder, StageStore

FINGERPRINTS = [character * 24 for character in "abcd"]


def result(store: StageStore, fingerprint: str) -> StageFolder:
    """A committed result of 100 bytes, besides its marker."""
    folder = store.stage("daily", fingerprint)
    folder.output("daily").mkdir(parents=True)
    (folder.output("daily") / "part.parquet").write_bytes(b"." * 100)
    folder.commit(CommittedStage("daily", fingerprint, rows=1, size_bytes=100, seconds=0.1, outputs={}))
    return folder


def pins(store: StageStore, fingerprint: str) -> RunPins:
    pinned = {"daily": Pin(fingerprint=fingerprint, code="c", inputs={})}
    return RunPins(pipeline="p", store=str(store.path), stages=pinned)


def test_results_that_somebody_uses_are_kept(tmp_path: Path) -> None:
    """Those of the last run on this store or on one that shares its results, and one that is computed just now."""
    mine, other = (StageStore(tmp_path / name, stages=tmp_path / "shared") for name in ("mine", "other"))
    own, others, computed, unused = (result(mine, one) for one in FINGERPRINTS)
    mine.pin(pins(mine, FINGERPRINTS[0]))
    other.pin(pins(other, FINGERPRINTS[1]))
    with other.computing("daily", FINGERPRINTS[2]):
        assert mine.clean_up() > 100
        assert [one.committed() is not None for one in (own, others, computed, unused)] == [True, True, True, False]
    assert mine.clean_up() > 100
    assert [one.committed() is not None for one in (own, others, computed)] == [True, True, False]
    assert mine.clean_up() == 0


def test_pins_are_whole_or_those_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that cannot note what it uses leaves the note of the run before."""
    store = StageStore(tmp_path)
    before = pins(store, FINGERPRINTS[0])
    store.pin(before)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            store.pin(pins(store, FINGERPRINTS[1]))
    assert store.pins() == before


def at_one_path(tmp_path: Path, disk: str) -> StageStore:
    """A store as its host has it mounted, at the same path as all hosts."""
    (tmp_path / disk).mkdir(exist_ok=True)
    mounted = tmp_path / "mounted"
    mounted.unlink(missing_ok=True)
    mounted.symlink_to(tmp_path / disk)
    return StageStore(mounted, stages=tmp_path / "shared")


def test_hosts_with_stores_of_their_own_at_one_path_keep_each_others_results(tmp_path: Path) -> None:
    """What a store is known by is in the store, and is not a path."""
    for disk, fingerprint in zip("ab", FINGERPRINTS, strict=False):
        store = at_one_path(tmp_path, disk)
        assert store.pins() is None
        result(store, fingerprint)
        store.pin(pins(store, fingerprint))
        assert store.clean_up() == 0
    first = at_one_path(tmp_path, "a")
    assert first.pins() == pins(first, FINGERPRINTS[0])
    first.forget()
    assert [first.stage("daily", one).committed() is not None for one in FINGERPRINTS[:2]] == [False, True]


def test_a_store_that_is_mounted_elsewhere_has_its_snapshot(tmp_path: Path) -> None:
    """Its pins are found by what the store is known by."""
    before = StageStore(tmp_path / "here", stages=tmp_path / "shared")
    before.pin(pins(before, FINGERPRINTS[0]))
    (tmp_path / "here").rename(tmp_path / "there")
    after = StageStore(tmp_path / "there", stages=tmp_path / "shared")
    assert after.pins() == pins(before, FINGERPRINTS[0])
    after.pin(pins(after, FINGERPRINTS[1]))
    assert len(list((tmp_path / "shared/.pins").iterdir())) == 1


def test_what_a_store_is_known_by_leads_out_of_no_folder(tmp_path: Path) -> None:
    """Others may have written it."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/.id").write_text("../../out")
    store = StageStore(tmp_path / "store")
    store.pin(pins(store, FINGERPRINTS[0]))
    assert store.pins() == pins(store, FINGERPRINTS[0])
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_store_without_hard_links_has_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system of objects."""

    def link(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    store = StageStore(tmp_path)
    store.pin(pins(store, FINGERPRINTS[0]))
    assert StageStore(tmp_path).pins() == pins(store, FINGERPRINTS[0])


def test_a_copy_of_a_store_goes_on_with_its_snapshot_and_keeps_the_results_of_the_original(tmp_path: Path) -> None:
    """What it is known by was copied as well."""
    original, copy = (StageStore(tmp_path / name, stages=tmp_path / "shared") for name in ("original", "copy"))
    first, second = (result(original, one) for one in FINGERPRINTS[:2])
    with original:
        original.pin(pins(original, FINGERPRINTS[0]))
    shutil.copytree(original.path, copy.path)
    with copy:
        assert copy.pins() == pins(copy, FINGERPRINTS[0])
        copy.pin(pins(copy, FINGERPRINTS[1]))
        copy.clean_up()
        known = copy.identity()
    assert [one.committed() is not None for one in (first, second)] == [True, True]
    assert original.pins() == pins(original, FINGERPRINTS[0])
    assert known != original.identity()
    with StageStore(copy.path, stages=tmp_path / "shared") as again:
        assert (again.identity(), again.pins()) == (known, pins(copy, FINGERPRINTS[1]))


@pytest.mark.parametrize("sees_each_other", [True, False])
def test_a_store_at_two_paths_is_no_copy_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sees_each_other: bool
) -> None:
    """By a link, or by two mounts whose files the operating system does not take for the same."""
    store = StageStore(tmp_path / "store", stages=tmp_path / "shared")
    with store:
        store.pin(pins(store, FINGERPRINTS[0]))
    (tmp_path / "mounted").symlink_to(store.path)
    if not sees_each_other:
        monkeypatch.setattr(os.path, "samefile", lambda *_: False)
    with StageStore(tmp_path / "mounted", stages=tmp_path / "shared") as mounted:
        assert (mounted.identity(), mounted.pins()) == (store.identity(), pins(store, FINGERPRINTS[0]))


@pytest.mark.parametrize(
    ("beside", "later"), [("", {}), ("csv rates.csv", {"beside": "csv rates.csv"}), ("", {"of_a_later_version": 1})]
)
def test_a_marker_says_no_more_than_it_has_to_and_is_read_whatever_else_it_says(
    tmp_path: Path, beside: str, later: dict[str, object]
) -> None:
    """A driver of another version that shares the results takes a marker that it cannot read for none."""
    folder = result(StageStore(tmp_path), FINGERPRINTS[0])
    committed = CommittedStage("daily", FINGERPRINTS[0], rows=1, size_bytes=1, seconds=0.1, outputs={}, beside=beside)
    folder.commit(committed)
    marker = folder.path / "_COMMITTED.json"
    document = json.loads(marker.read_text())
    assert document.get("beside", "") == beside
    assert ("beside" in document) == bool(beside)
    marker.write_text(json.dumps(document | later))
    assert folder.committed() == committed


@pytest.mark.parametrize("ends", ["pin", "forget"])
def test_pins_that_go_by_the_path_of_their_store_are_read_until_there_are_others(tmp_path: Path, ends: str) -> None:
    """As former versions named them: only those that say that they are of this path."""
    store = StageStore(tmp_path / "store", stages=tmp_path / "shared")
    name = hashlib.sha256(str(store.path).encode()).hexdigest()[:16]
    former = tmp_path / "shared/.pins" / f"{name}.json"
    others = replace(pins(store, FINGERPRINTS[0]), store="/elsewhere")
    others.write(former)
    assert store.pins() is None
    pins(store, FINGERPRINTS[0]).write(former)
    result(store, FINGERPRINTS[0])
    assert store.pins() == pins(store, FINGERPRINTS[0])
    assert store.clean_up() == 0
    if ends == "pin":
        store.pin(pins(store, FINGERPRINTS[0]))
        assert store.pins() == pins(store, FINGERPRINTS[0])
    else:
        store.forget()
        assert store.pins() is None
    assert not former.exists()
