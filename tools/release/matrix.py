"""The matrix of Spark and Python: each of its cells run, or named with the reason why not."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

_SUMMARY = re.compile(r"\d+ (?:passed|failed|error).* in [\d.]+s.*")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One environment of `hatch.toml` in which tests are run."""

    environment: str
    spark: str
    python: str
    """Its version; empty means the version that runs the matrix."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cell."""

    cell: Cell
    words: str
    """The tests' own summary, or why they were not run."""
    passed: bool = False
    skipped: bool = False


def find_cells(hatch_toml: str) -> list[Cell]:
    """The cells of the environment `compat`, and `lowest`."""
    environments = tomllib.loads(hatch_toml)["envs"]
    cells = [
        Cell(environment=f"compat.py{python}-{spark}", spark=spark, python=python)
        for matrix in environments["compat"]["matrix"]
        for spark, python in product(matrix["spark"], matrix["python"])
    ]
    return [*cells, Cell(environment="lowest", spark="lowest", python="")]


def has_python(version: str) -> bool:
    """Whether it is installed and runs: a name on the path may belong to a launcher for another version."""
    found = shutil.which(f"python{version}")
    if found is None:
        return False
    check = "import sys; print('%d.%d' % sys.version_info[:2])"
    ended = subprocess.run([found, "-c", check], capture_output=True, text=True, check=False)
    return ended.stdout.strip() == version


def run_cell(cell: Cell) -> tuple[int, str]:
    """Make the environment and run its tests. Returns the exit code and all that was written."""
    command = ["hatch", "run", f"{cell.environment}:test"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return ended.returncode, ended.stdout


def run_matrix(
    cells: Sequence[Cell],
    has: Callable[[str], bool] = has_python,
    run: Callable[[Cell], tuple[int, str]] = run_cell,
) -> Iterator[Outcome]:
    """Run one cell after another; those that fail do not keep the others from being run."""
    for cell in cells:
        if cell.python and not has(cell.python):
            yield Outcome(cell=cell, words=f"skipped: no Python {cell.python} on the path that runs", skipped=True)
            continue
        code, written = run(cell)
        failed = [line for line in written.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        summaries = _SUMMARY.findall(written)
        lines = written.strip().splitlines() or ["nothing was written"]
        summary = summaries[-1].strip("= ") if summaries else f"no test was run: {lines[-1]}"
        yield Outcome(cell=cell, words="; ".join([summary, *failed]), passed=code == 0)


def table_row(outcome: Outcome) -> str:
    """Its row of the table in Markdown."""
    cell = outcome.cell
    return f"| {cell.spark} | {cell.python or 'as hatch has it'} | {outcome.words.replace('|', '/')} |"


def read_cells(root: Path, names: Sequence[str]) -> list[Cell]:
    """Those of the repository, or of these the named ones.

    Raises:
        ValueError: no cell has such a name.
    """
    cells = find_cells((root / "hatch.toml").read_text())
    known = {cell.environment: cell for cell in cells}
    if wrong := sorted(set(names) - known.keys()):
        raise ValueError(f"no cell {', '.join(wrong)}; there are {', '.join(known)}")
    return [known[name] for name in names] or cells
