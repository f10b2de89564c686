"""The store of results: what is kept, and what a crash leaves of its files."""

import errno
import os
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
