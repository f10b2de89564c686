import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"


def run_example(number: int, folder: Path) -> str:
    """Standard output of an example, copied out of the README and run as it stands."""
    examples = re.findall(r"<!-- run by the tests -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    script = folder / "example.py"
    script.write_text(examples[number])
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == ""
    assert ended.returncode == 0
    return ended.stdout


def test_the_sink_of_your_own_in_the_readme_runs(tmp_path: Path) -> None:
    """It writes each line once."""
    assert run_example(0, tmp_path) == "1000\n"
    with sqlite3.connect(tmp_path / "lines.db") as database:
        rows = database.execute("select count(*), count(distinct text) from lines").fetchall()
    assert rows == [(1_000, 1_000)]


def test_the_codec_of_your_own_in_the_readme_runs(tmp_path: Path) -> None:
    """Its assertion holds."""
    assert run_example(1, tmp_path) == ""


def test_the_strategy_of_your_own_in_the_readme_runs(tmp_path: Path) -> None:
    """Nothing leaves before it says so, and then everything, though nobody wakes the writer."""
    assert run_example(2, tmp_path) == "0\n1000\n"


def test_the_sinks_and_strategies_in_the_readme_can_be_made() -> None:
    """The short pieces too: what they import is there, and takes those arguments."""
    pieces = re.findall(r"(?<!run by the tests -->\n)```python\n(.*?)```", README.read_text(), re.DOTALL)
    # What reaches a stream is run by the tests of releases, alone with the wheel.
    made = [piece.replace("asyncio.run(main())", "") for piece in pieces if "write_batches(" not in piece]
    assert len(made) >= 3
    names: dict[str, Any] = {}
    for piece in made:
        # Each goes on where the one before it ended, as a reader does.
        exec(compile(piece, str(README), "exec"), names)


def test_every_option_of_the_writer_is_in_the_readme() -> None:
    """The table of options is complete."""
    from penstock.async_sink import AsyncSinkConfig

    text = README.read_text()
    assert [name for name in AsyncSinkConfig.__dataclass_fields__ if f"`{name}`" not in text] == []


def test_every_line_of_the_drafts_names_tests_that_exist() -> None:
    """Each row of the table of FLIP-242 has at least one."""
    text = README.read_text()
    section = text[text.index("### FLIP-242, line by line") :].split("\n### ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ") and not line.startswith("| **")]
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    named = {row[0]: re.findall(r"`(test_\w+)`", row[-1]) for row in rows[2:]}
    assert len(named) > 25
    assert [line for line, names in named.items() if not names] == []
    assert [name for names in named.values() for name in names if f"def {name}(" not in tests] == []
