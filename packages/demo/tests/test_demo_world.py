"""What the demo makes and clears: its own, and nothing else."""

from pathlib import Path

import pytest

from penstock.demo._settings import DemoSettings
from penstock.demo._world import Folders, open_world
from penstock.demo.errors import DemoError
from penstock.emulator.testing import running_emulator


def test_folders_that_hold_others_files_are_not_cleared(tmp_path: Path) -> None:
    """`--folder .` beside a folder logs of somebody's own is refused with the cure; what a demo left is cleared."""
    folders = Folders(tmp_path)
    folders.clear()
    for name in ("run/store/commits/0", "run/counts.sqlite-wal", "logs/spark-driver.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("of the last run")
    folders.clear()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    for theirs in (tmp_path / "logs" / "app.log", tmp_path / "run" / "results.csv"):
        theirs.write_text("mine")
        (tmp_path / "run" / "job.json").write_text("{}")
        with pytest.raises(DemoError, match=f"{theirs.parent} .*{theirs.name}.*--folder"):
            folders.clear()
        assert theirs.read_text() == "mine"
        assert (tmp_path / "run" / "job.json").exists()
        theirs.unlink()


def test_a_stream_is_deleted_when_the_other_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Kinesis of one's own it would cost money for as long as nobody looks."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with running_emulator() as kinesis:
        kinesis.faults.add("error", code="InvalidArgumentException", operation="CreateStream", skip=1)
        settings = DemoSettings(endpoint_url=kinesis.endpoint_url, folder=tmp_path)
        with pytest.raises(DemoError, match="InvalidArgumentException"), open_world(settings):
            pytest.fail("there is no world with one stream")
        kinesis.faults.clear()
        assert kinesis.client().list_streams()["StreamNames"] == []
