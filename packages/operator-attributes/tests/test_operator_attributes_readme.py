import builtins
import re
from pathlib import Path

import pytest

from penstock.operator_attributes import JobGraph, compile

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_example_prints_the_plan_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A reader sees what the README promises, to the line."""
    exec(builtins.compile(block("python"), "flights.py", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith(block("text"))
    assert "state: FINISHED, attempt 1, 12.5 s, 1,095 rows" in printed


def test_the_json_example_is_a_graph_that_compiles() -> None:
    """It is the same job."""
    assert [stage.name for stage in compile(JobGraph.from_json(block("json"))).stages] == ["daily", "delays"]
