"""Nothing that reaches a file's name leads out of the folder that it is for."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from penstock.spark_plugin import Pipeline
from penstock.spark_plugin._stages.store.pins import Pin, RunPins
from penstock.spark_plugin._stages.store.store import CommittedStage, StageFolder, StageStore
from penstock.spark_plugin._writing._dead_letters import DeadLetterFile
from penstock.spark_plugin._writing._record_ids import WriteAttempt
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


def committed(stage: str) -> CommittedStage:
    return CommittedStage(stage=stage, fingerprint=FINGERPRINT, rows=1, size_bytes=1, seconds=0.0, outputs={})


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder next to the store, with a file and a folder in it that must stay as they are."""
    (tmp_path / "outside" / FINGERPRINT).mkdir(parents=True)
    (tmp_path / "outside" / "precious").write_text("precious")
    (tmp_path / "outside" / FINGERPRINT / "precious").write_text("precious")
    return tmp_path / "outside"


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path / "store")


def untouched(outside: Path) -> bool:
    files = {path.relative_to(outside): path.read_text() for path in outside.rglob("*") if path.is_file()}
    return files == dict.fromkeys((Path("precious"), Path(FINGERPRINT) / "precious"), "precious")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_visible_folder_in_the_store(store: StageStore, name: str) -> None:
    """Of a stage, a vertex, a sink and a seam, whatever its text; it can be written, read and wiped."""
    with store, store.computing(name, FINGERPRINT):
        folder = store.stage(name, FINGERPRINT)
        assert folder.path.parent.parent == store.stages
        assert not folder.path.parent.name.startswith(".")
        assert folder.output(name).parent == folder.path
        assert store.checkpoint(name).parent.parent == store.path / "live"
        assert Path(Pipeline("p", store=store.path).seam(name)).parent == store.path / "seams"
        folder.path.mkdir(parents=True)
        folder.commit(committed(name))
        assert folder.committed() is not None
        store.pin(RunPins(pipeline=name, store=str(store.path)))
    assert store.clean_up() > 0
    assert {path.name for path in store.path.parent.iterdir()} == {"store"}


@pytest.mark.parametrize("marker", [None, "{}", '{"stage": "photos", "fingerprint": "other"}', "[]", "not JSON"])
def test_what_is_not_ours_is_never_removed(store: StageStore, marker: str | None) -> None:
    """A store on a folder that holds other things: folders, files, and a marker that somebody made up."""
    photos, thesis = store.stages / "photos" / "2024", store.stages / "thesis" / "draft"
    theirs = [
        photos / "beach.jpg",
        thesis / "deep" / "chapter.tex",
        store.stages / "photos" / "index",
        store.stages / "x",
    ]
    theirs += [store.path / "live" / "band" / "song", store.path / "seams" / "dress" / "pattern.txt"]
    for file in theirs:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious")
    if marker is not None:
        (photos / "_COMMITTED.json").write_text(marker)
    with store:
        assert store.clean_up() == 0
        store.forget()
    assert [file.read_text() for file in theirs] == ["precious"] * len(theirs)


def test_what_an_interrupted_run_left_is_removed(store: StageStore) -> None:
    """A driver that was killed as it computed leaves a folder without a result."""
    folder = store.stage("daily", FINGERPRINT)
    folder.begin("daily")
    (folder.output("daily") / "_temporary").mkdir(parents=True)
    (folder.output("daily") / "_temporary" / "part").write_bytes(b"." * 100)
    assert store.clean_up() > 100
    assert not folder.path.exists()


class Killed(BaseException):
    """Stands for kill -9: nothing is tidied up."""


@pytest.mark.parametrize("call", ["json.dump", "os.fsync", "pathlib.Path.replace"])
def test_a_driver_that_is_killed_as_it_begins_a_stage_leaves_no_obstacle(
    store: StageStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Before its folder says whose it is: the next driver computes the stage, or cleans up."""
    folder = store.stage("daily", FINGERPRINT)

    def begin_and_die() -> None:
        def die(*_: object) -> None:
            raise Killed

        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(call, die)
            folder.begin("daily")
        assert list(folder.path.iterdir())

    begin_and_die()
    folder.begin("daily")
    folder.path.joinpath("_STARTED.json").unlink()
    begin_and_die()
    store.clean_up()
    assert not folder.path.exists()


def test_a_folder_that_says_nothing_of_whose_it_is_is_of_a_driver_that_was_killed(store: StageStore) -> None:
    """One that lacked time to write it: as long as nothing else lies in it."""
    folder = store.stage("daily", FINGERPRINT)
    folder.path.mkdir(parents=True)
    started = folder.path / "_STARTED.json"
    started.touch()
    folder.begin("daily")
    started.write_bytes(b"")
    (folder.path / "precious").write_text("precious")
    with pytest.raises(StoreUnusableError, match=rf"{folder.path} .*move it away, and run again"):
        folder.begin("daily")
    assert store.clean_up() == 0
    assert (folder.path / "precious").read_text() == "precious"


def test_a_folder_that_is_swapped_for_a_link_meanwhile_is_not_followed(
    store: StageStore, outside: Path, tmp_path: Path
) -> None:
    """A co-writer swaps results for links and back, as fast as it can, while results are removed."""
    (outside / FINGERPRINT / "_COMMITTED.json").write_text(json.dumps(asdict(committed("daily"))))
    stage, ended = store.stages / "daily", threading.Event()

    def swap() -> None:
        kept = store.stages / ".kept"
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
        for _ in range(300):
            with suppress(OSError, StoreUnusableError):
                folder = StageFolder(stage / FINGERPRINT)
                folder.path.mkdir(parents=True, exist_ok=True)
                folder.commit(committed("daily"))
            store.clean_up()
    finally:
        ended.set()
        thread.join()
    assert (outside / "precious").read_text() == "precious"
    assert (outside / FINGERPRINT / "precious").read_text() == "precious"


def test_a_checkpoint_that_was_never_begun_is_mended(store: StageStore) -> None:
    """What a driver left that was killed as it wrote its first offsets goes; the offsets of a query that began stay."""
    offsets = store.checkpoint("live") / "offsets"
    store.mend_checkpoint("live")
    assert not offsets.exists()
    offsets.mkdir(parents=True)
    for name in (".0.5b7e.tmp", "..0.5b7e.tmp.crc"):
        (offsets / name).touch()
    store.mend_checkpoint("live")
    assert not list(offsets.iterdir())
    for name in ("0", ".0.crc", ".1.5b7e.tmp"):
        (offsets / name).touch()
    store.mend_checkpoint("live")
    assert len(list(offsets.iterdir())) == 3


@pytest.mark.parametrize("fingerprint", ["..", "../..", "/etc", "a/b", "", "a b", "x" * 200])
def test_a_fingerprint_that_others_left_is_not_believed(store: StageStore, outside: Path, fingerprint: str) -> None:
    """A file of pins that names a folder elsewhere counts for nothing, and no stage has such a folder."""
    pins = RunPins(pipeline="p", store="s", stages={"daily": Pin(fingerprint=fingerprint, code="c", inputs={})})
    store.pin(pins)
    assert store.pins() is None
    with pytest.raises(StoreUnusableError, match="is not a fingerprint"):
        store.stage("daily", fingerprint)
    assert untouched(outside)


def test_links_that_lead_out_of_a_store_are_not_followed(store: StageStore, outside: Path) -> None:
    """Those of results and checkpoints are refused; cleaning up leaves alone what they point to."""
    store.stages.mkdir(parents=True)
    (store.path / "live").mkdir()
    (store.stages / "daily").symlink_to(outside)
    (store.path / "live" / "delays").symlink_to(outside)
    with pytest.raises(StoreUnusableError, match="leads out of"):
        store.stage("daily", FINGERPRINT)
    with pytest.raises(StoreUnusableError, match="leads out of"):
        store.checkpoint("delays")
    (store.stages / "hourly").mkdir()
    (store.stages / "hourly" / FINGERPRINT).symlink_to(outside)
    store.clean_up()
    store.forget()
    assert untouched(outside)


def test_links_in_place_of_a_stores_own_files_are_not_written_through(store: StageStore, outside: Path) -> None:
    """Its lock is refused; markers and pins replace the link, not what it points to."""
    precious = outside / "precious"
    folder = store.stage("daily", FINGERPRINT)
    folder.path.mkdir(parents=True)
    (folder.path / f"_COMMITTED.json.{os.getpid()}").symlink_to(precious)
    folder.commit(committed("daily"))
    assert json.loads((folder.path / "_COMMITTED.json").read_text())["stage"] == "daily"
    store.pin(RunPins(pipeline="p", store="s"))
    (pins,) = (store.stages / ".pins").iterdir()
    pins.with_name(f"{pins.name}.{os.getpid()}").symlink_to(precious)
    store.pin(RunPins(pipeline="q", store="s"))
    assert store.pins() == RunPins(pipeline="q", store="s")
    (store.path / "lock").symlink_to(precious)
    with pytest.raises(StoreUnusableError):
        store.__enter__()
    assert untouched(outside)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_that_comes_while_a_file_is_replaced_is_not_written_through(
    store: StageStore, outside: Path, monkeypatch: pytest.MonkeyPatch, link: Callable[[Path, Path], None]
) -> None:
    """Between the removal of what had the name and the making of the file: an error, whichever kind of link it is."""
    precious, unlink = outside / "precious", Path.unlink
    store.pin(RunPins(pipeline="p", store="s"))

    def plant(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        if path.parent.name == ".pins":
            link(precious, path)

    before = precious.read_text()
    monkeypatch.setattr(Path, "unlink", plant)
    with pytest.raises(OSError, match="exists"):
        store.pin(RunPins(pipeline="q", store="s"))
    monkeypatch.undo()
    assert precious.read_text() == before
    assert store.pins() == RunPins(pipeline="p", store="s")


def test_two_names_never_share_a_folder(tmp_path: Path) -> None:
    """Two sinks with one checkpoint would lose rows: the second one is refused, by name."""
    pipeline = Pipeline("p", store=tmp_path)
    pipeline.source(bounded=True, name="grüße")(lambda spark: spark)
    with pytest.raises(PipelineDefinitionError, match="one folder"):
        pipeline.source(bounded=True, name="größe")(lambda spark: spark)


def test_a_dead_letter_is_written_through_nobodys_link(tmp_path: Path, outside: Path) -> None:
    """Whoever may write into the folder cannot tell the name of a file that is being written."""
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
