import re
import sqlite3
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_sink_of_your_own_in_the_readme_runs(tmp_path: Path) -> None:
    """The example is copied out of the README and run as it stands."""
    (example,) = re.findall(r"<!-- run by the tests -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == ""
    assert ended.stdout == "1000\n"
    with sqlite3.connect(tmp_path / "lines.db") as database:
        rows = database.execute("select count(*), count(distinct text) from lines").fetchall()
    assert rows == [(1_000, 1_000)]


def test_every_option_of_the_writer_is_in_the_readme() -> None:
    """The table of options is complete."""
    from penstock.async_sink import AsyncSinkConfig

    text = README.read_text()
    assert [name for name in AsyncSinkConfig.__dataclass_fields__ if f"`{name}`" not in text] == []
