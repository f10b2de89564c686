import os
import re
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.demo._children import Child
from penstock.demo._settings import DemoSettings
from penstock.demo.errors import DemoError
from penstock.demo.producer import Pace

Start = Callable[[str], Child]
SCRIPT = """
import subprocess, sys
from penstock.demo._children import Parent, tell
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("not json", flush=True)
parent = Parent()
tell(ready=True, grandchild=grandchild.pid)
parent.go.wait(600)
tell(went_on=True)
parent.stop.wait(600)
tell(stopped=True)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    (tmp_path / "child_script.py").write_text(SCRIPT)
    (tmp_path / "broken_script.py").write_text("raise SystemExit(3)")
    children: list[Child] = []

    def run(module: str) -> Child:
        child = Child("child", module, [], log=tmp_path / "child.log", environment={"PYTHONPATH": str(tmp_path)})
        children.append(child)
        return child

    yield run
    for child in children:
        child.end(1)


def test_a_child_tells_ends_when_asked_and_takes_its_own_children_along(start: Start, tmp_path: Path) -> None:
    """SIGTERM lets it finish; what it started is gone too; what is not JSON is in its log."""
    child = start("child_script")
    assert child.wait_for("ready", 60) is True
    grandchild = os.pidfd_open(child.latest["grandchild"])
    assert child.end() == 0
    assert child.latest["stopped"] is True
    ended, _, _ = select.select([grandchild], [], [], 30)
    os.close(grandchild)
    assert ended
    assert "not json" in (tmp_path / "child.log").read_text()


def test_a_child_that_ends_early_is_an_error_with_its_log(start: Start) -> None:
    """The run does not wait for what will never come."""
    with pytest.raises(DemoError, match="ended with 3"):
        start("broken_script").wait_for("ready", 60)


def test_the_pace_spreads_entries_evenly() -> None:
    """Entry n leaves n / rate seconds after the start; without a rate nothing waits."""
    pace = Pace(100.0, now=10.0)
    assert pace.delay_seconds(0, 10.0) == 0
    assert pace.delay_seconds(50, 10.2) == pytest.approx(0.3)
    assert pace.delay_seconds(50, 11.0) == 0
    assert Pace(None, now=0.0).delay_seconds(10**6, 0.0) == 0


@pytest.mark.parametrize("arguments", [["--rows", "0"], ["--rate", "-1"], ["--rows", "many"], ["--unknown"]])
def test_a_wrong_argument_ends_with_a_usage_message(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command line is checked before anything starts."""
    with pytest.raises(SystemExit) as ended:
        DemoSettings.parse(arguments)
    assert ended.value.code == 2
    assert re.fullmatch(r"penstock demo: .*: see penstock demo --help\n", capsys.readouterr().err)


def test_an_interrupt_does_not_spare_what_a_child_has_started(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the demo waits for a child's end: the child and its own children are ended all the same."""
    child = start("child_script")
    child.wait_for("ready", 60)
    grandchild = os.pidfd_open(child.latest["grandchild"])
    wait = child._process.wait

    def interrupted(_seconds: float) -> None:
        monkeypatch.setattr(child._process, "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(child._process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.end()
    ended, _, _ = select.select([grandchild], [], [], 10)
    os.close(grandchild)
    assert ended
