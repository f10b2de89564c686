import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

README = Path(__file__).parents[1] / "README.md"


def example(folder: Path, preamble: str = "") -> list[str]:
    """Command that runs the README's example of a custom sink, after the lines of `preamble`."""
    (code,) = re.findall(r"<!-- run by the tests -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    script = folder / "example.py"
    script.write_text(preamble + code)
    return [sys.executable, str(script)]


def run_example(folder: Path, preamble: str = "") -> str:
    """Standard output of the example."""
    command = example(folder, preamble)
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    assert ended.returncode == 0
    return ended.stdout


LINES = [f"line {number}, строка {number}" for number in range(2_000)]


def lines_of(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "lines.db") as database:
        return [line for (line,) in database.execute("select line from lines order by rowid")]


def test_the_custom_sink_of_the_readme_runs(tmp_path: Path) -> None:
    """It writes each line once, and leaves no state behind."""
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    assert run_example(tmp_path) == "2000\n"
    assert sorted(lines_of(tmp_path)) == sorted(LINES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["example.py", "lines.db", "lines.txt"]


FICKLE = """\
import random
import sqlite3

connect = sqlite3.connect


def fickle(path):
    if random.random() < 0.3:
        raise sqlite3.OperationalError("database is locked")
    return connect(path)


sqlite3.connect = fickle
"""


def test_the_custom_sink_of_the_readme_loses_nothing_when_killed(tmp_path: Path) -> None:
    """Three requests of ten fail, and the process is killed twice, each time after it has saved a state."""
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    saved, offsets = tmp_path / "lines.state", [0]
    for _ in range(2):
        with subprocess.Popen(example(tmp_path, FICKLE), cwd=tmp_path) as process:
            ends = time.monotonic() + 60
            while not saved.exists() or offset_of(saved) == offsets[-1]:
                assert process.poll() is None
                assert time.monotonic() < ends
            process.send_signal(signal.SIGKILL)
        offsets.append(offset_of(saved))
    assert offsets == sorted(set(offsets))
    assert len(lines_of(tmp_path)) < len(LINES)
    # Lines after the saved offset are read again, and no line before it.
    sent = int(run_example(tmp_path, FICKLE))
    assert sent >= len(LINES) - offsets[-1]
    assert sorted(lines_of(tmp_path)) == sorted(LINES)
    assert not saved.exists()


def offset_of(saved: Path) -> int:
    raw = saved.read_bytes()
    return int(msgspec.msgpack.decode(raw[9:])[3])


def test_the_short_examples_of_the_readme_run() -> None:
    """They import names that exist and pass valid arguments."""
    pieces = re.findall(r"(?<!run by the tests -->\n)```python\n(.*?)```", README.read_text(), re.DOTALL)
    # The example that writes to a stream is run by integration_tests/docs/test_readmes.py.
    made = [piece.replace("asyncio.run(main())", "") for piece in pieces if "write_batches(" not in piece]
    assert len(made) == 2
    names: dict[str, Any] = {}
    for piece in made:
        # Each block uses the names of the blocks before it.
        exec(compile(piece, str(README), "exec"), names)
