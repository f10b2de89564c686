"""Nothing that reaches a file's name leads out of the folder that it is for."""

import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from store_lives import folder_store

from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._stages.store.pins import Pin, RunPins, safe_name
from penstock.spark_plugin._stages.store.result import CommittedStage
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin._writing.dead_letters import DeadLetterFile
from penstock.spark_plugin._writing.records import WriteAttempt
from penstock.spark_plugin.errors import PipelineDefinitionError, StoreUnusableError

FINGERPRINT = "0123456789abcdef"
NAMES = [
    "..",
    ".",
    "",
    "../../out",
    "/etc/passwd",
    "a/../../b",
    "..\\..\\b",
    "a\0b",
    "~",
    ".pins",
    ".locks",
    "CON",
    "é" * 300,
]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder next to the store, with a file and a folder in it that must stay as they are."""
    (tmp_path / "outside" / FINGERPRINT).mkdir(parents=True)
    (tmp_path / "outside" / "precious").write_text("precious")
    (tmp_path / "outside" / FINGERPRINT / "precious").write_text("precious")
    return tmp_path / "outside"


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return folder_store(tmp_path / "store")


def untouched(outside: Path) -> bool:
    files = {path.relative_to(outside): path.read_text() for path in outside.rglob("*") if path.is_file()}
    return files == dict.fromkeys((Path("precious"), Path(FINGERPRINT) / "precious"), "precious")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_visible_component(tmp_path: Path, name: str) -> None:
    """The name of a stage, a vertex, a sink or a seam, whatever its text."""
    component = safe_name(name)
    (tmp_path / component).mkdir()
    assert not component.startswith(".")
    assert [path.name for path in tmp_path.iterdir()] == [component]
    assert Path(Pipeline("p", store=tmp_path).seam(name)).parent == tmp_path / "seams"


def test_a_folder_that_is_swapped_for_a_link_meanwhile_is_not_followed(store: StageStore, outside: Path) -> None:
    """Another process swaps results for links and back, as fast as it can, while results are removed."""
    (outside / FINGERPRINT / "_COMMITTED.json").write_text(json.dumps({"stage": "daily", "fingerprint": FINGERPRINT}))
    stages = outside.parent / "store/stages"
    stage, ended = stages / "daily", threading.Event()

    def swap() -> None:
        kept = stages / ".kept"
        while not ended.is_set():
            for name, target in ((stage / FINGERPRINT, outside / FINGERPRINT), (stage, outside)):
                with suppress(OSError):
                    name.rename(kept)
                    name.symlink_to(target)
                with suppress(OSError):
                    name.unlink()
                    kept.rename(name)
            shutil.rmtree(kept, ignore_errors=True)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(100):
            with suppress(OSError, StoreUnusableError):
                store.stage("daily", FINGERPRINT).begin("daily")
                (stage / FINGERPRINT / "attempt").mkdir()
            with suppress(OSError, StoreUnusableError):
                store.clean_up()
    finally:
        ended.set()
        thread.join()
    assert (outside / "precious").read_text() == "precious"
    assert (outside / FINGERPRINT / "precious").read_text() == "precious"
    assert (outside / FINGERPRINT / "_COMMITTED.json").exists()


def test_a_checkpoint_that_was_never_begun_is_mended(store: StageStore, tmp_path: Path) -> None:
    """What a driver left that was killed as it wrote its first offsets goes; the offsets of a query that began stay."""
    offsets = tmp_path / "store/live/live/checkpoint/offsets"
    store.mend_checkpoint("live")
    assert not offsets.exists()
    offsets.mkdir(parents=True)
    for name in (".0.5b7e.tmp", "..0.5b7e.tmp.crc"):
        (offsets / name).touch()
    store.mend_checkpoint("live")
    assert not offsets.exists()
    offsets.mkdir(parents=True)
    for name in ("0", ".0.crc", ".1.5b7e.tmp"):
        (offsets / name).touch()
    store.mend_checkpoint("live")
    assert len(list(offsets.iterdir())) == 3


@pytest.mark.parametrize("fingerprint", ["..", "/etc", "a/b", "", "a b", "x" * 200])
def test_a_fingerprint_that_others_left_is_not_believed(store: StageStore, outside: Path, fingerprint: str) -> None:
    """A file of pins that names a folder elsewhere counts for nothing, and no stage has such a folder."""
    store.pin(RunPins(pipeline="p", store="s", stages={"daily": Pin(fingerprint=fingerprint, code="c", inputs={})}))
    assert store.pins() is None
    with pytest.raises(StoreUnusableError, match="is not a fingerprint"):
        store.stage("daily", fingerprint)
    assert untouched(outside)


def test_links_that_lead_out_of_a_store_are_not_followed(store: StageStore, outside: Path) -> None:
    """Those of results and checkpoints are refused; cleaning up leaves alone what they point to."""
    root = outside.parent / "store"
    for link in ("stages/daily", f"stages/hourly/{FINGERPRINT}", "live/delays", "live/out/checkpoint"):
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(outside)
    for stage in ("daily", "hourly"):
        with pytest.raises(StoreUnusableError, match="leads out of"):
            store.stage(stage, FINGERPRINT).begin(stage)
        with pytest.raises(StoreUnusableError, match="leads out of"):
            store.stage(stage, FINGERPRINT).committed()
    for sink in ("delays", "out"):
        with pytest.raises(StoreUnusableError, match="leads out of"):
            store.checkpoint_url(sink)
    store.clean_up()
    with suppress(StoreUnusableError):
        store.forget()
    assert untouched(outside)


def test_links_in_place_of_a_stores_own_files_are_not_written_through(store: StageStore, outside: Path) -> None:
    """They are errors; only one in place of its lock is met before anything runs."""
    precious, root = outside / "precious", outside.parent / "store"
    result = store.stage("daily", FINGERPRINT)
    result.begin("daily")
    (root / f"stages/daily/{FINGERPRINT}/_COMMITTED.json").symlink_to(precious)
    with pytest.raises(OSError, match="it is a link"):
        result.commit(CommittedStage("daily", FINGERPRINT, rows=1, size_bytes=1, seconds=0.0, outputs={}))
    store.pin(RunPins(pipeline="p", store="s"))
    (pins,) = (root / "stages/.pins").iterdir()
    for link in (os.symlink, os.link):
        pins.unlink()
        link(precious, pins)
        with suppress(OSError):
            store.pin(RunPins(pipeline="q", store="s"))
        assert untouched(outside)
    (root / "lock").symlink_to(precious)
    with pytest.raises(StoreUnusableError):
        store.__enter__()
    assert untouched(outside)


@pytest.mark.timeout(60)
def test_fifos_in_place_of_a_stores_own_files_do_not_block(store: StageStore, outside: Path) -> None:
    """Other users may write into the folder of a store."""
    root = outside.parent / "store"
    result = store.stage("daily", FINGERPRINT)
    result.begin("daily")
    os.mkfifo(root / f"stages/daily/{FINGERPRINT}/_COMMITTED.json")
    with pytest.raises(OSError, match="not a regular file"):
        result.commit(CommittedStage("daily", FINGERPRINT, rows=1, size_bytes=1, seconds=0.0, outputs={}))
    os.mkfifo(root / "lock")
    with pytest.raises(StoreUnusableError):
        store.__enter__()


def test_two_names_never_share_a_folder(tmp_path: Path) -> None:
    """Two sinks with one checkpoint would lose rows: the second one is refused, by name."""
    pipeline = Pipeline("p", store=tmp_path)
    pipeline.source(bounded=True, name="grüße")(lambda spark: spark)
    with pytest.raises(PipelineDefinitionError, match="one folder"):
        pipeline.source(bounded=True, name="größe")(lambda spark: spark)


def test_a_dead_letter_is_not_written_through_a_link(tmp_path: Path, outside: Path) -> None:
    """A user who may write into the folder cannot guess the name of a file that is being written."""
    folder = tmp_path / "dead"
    folder.mkdir()
    attempt = WriteAttempt(job="query", batch=1, partition=2, attempt=3)
    guessed = f".{DeadLetterFile(folder, attempt).path.stem}.3.{os.getpid()}.partial"
    (folder / guessed).symlink_to(outside / "grown")
    names = []
    for _ in range(2):
        file = DeadLetterFile(folder, attempt)
        file.add([{"data": "x"}])
        (partial,) = (path.name for path in folder.iterdir() if path.name.endswith(".partial") and path.name != guessed)
        names.append(partial)
        file.commit()
    assert len(set(names)) == 2
    assert untouched(outside)
    assert not (outside / "grown").exists()


@pytest.mark.parametrize("job", ["..", "../../out", "/etc/passwd", ".", "a\\..\\b", "_nightly"])
def test_dead_letters_stay_in_their_folder(tmp_path: Path, job: str) -> None:
    """A query's name, which users choose, is part of the file's name: one that Spark does not take for hidden."""
    file = DeadLetterFile(tmp_path / "dead", WriteAttempt(job=job, batch=1, partition=2, attempt=3))
    file.add([{"data": "x"}])
    file.commit()
    (written,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert written.parent == tmp_path / "dead"
    assert not written.name.startswith((".", "_"))
