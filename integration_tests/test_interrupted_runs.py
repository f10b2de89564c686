import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from penstock.telemetry.testing import wait_until

ROOT = Path(__file__).resolve().parents[1]
TEST = """
import subprocess, sys

def test_it_starts_a_process(request):
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print(left.pid, flush=True)
    left.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_interrupted_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    """Neither by Ctrl-C nor by a kill, though the process is in a session of its own."""
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "conftest", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / ".pytest.ini"), f"--rootdir={tmp_path}", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        left = psutil.Process(int(next(line for line in run.stdout if line.strip().isdigit())))
        run.send_signal(number)
    wait_until(lambda: not left.is_running(), "the process still runs")
