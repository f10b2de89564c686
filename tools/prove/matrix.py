"""Penstock's wheels with each Spark and each Python, in environments of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.emulator.testing import running_emulator
from tools.release.artefacts import build
from tools.release.matrix import has_python
from tools.release.versions import find_members

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SUMMARY = "the built wheels read, write, survive kills and speak Connect with each Spark and each Python"

_ROOT = Path(__file__).resolve().parents[2]
_SPARKS = ("4.0.2", "4.1.4", "4.2.1", "4.3.0")
_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_CHECKS = ("polling", "efo", "write", "available-now", "dynamodb-streams", "sql", "kill", "connect")
_SHOWN = ("pyarrow", "protobuf", "grpcio")
_BLOCK = re.compile(r"<!-- walk -->\n```python\n(.*?)```", re.DOTALL)
_EXPECTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)
_SUBMIT = (
    "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 "
    "--conf spark.ui.showConsoleProgress=false pyspark-shell"
)
_CHECK_SECONDS = 1800


@dataclass(frozen=True)
class Pair:
    """A Spark and a Python that are tried together."""

    spark: str
    python: str


@dataclass
class Outcome:
    """What became of a pair.

    Attributes:
        pair: of which it is.
        untried: why nothing was run, if nothing was.
        passed: whether each check held, by its name.
        words: what is to be said of each check.
        versions: of what was installed with it.
    """

    pair: Pair
    untried: str = ""
    passed: dict[str, bool] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--spark", nargs="+", default=_SPARKS, help=f"versions; default: {' '.join(_SPARKS)}")
    parser.add_argument("--python", nargs="+", default=_PYTHONS, help=f"versions; default: {' '.join(_PYTHONS)}")
    parser.add_argument("--with", nargs="+", default=(), dest="constraints", help="other packages, as pyarrow==19.0.1")


def run(arguments: argparse.Namespace) -> bool:
    """Try one pair after another, and print a table; a pair whose Python is not there is named as untried."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="matrix-") as name:
        folder = Path(name)
        for member in find_members(_ROOT):
            if member.folder.parent.name == "packages":
                build(member, folder / "wheels", from_tree=True, isolated=False)
        for python, spark in product(arguments.python, arguments.spark):
            outcome = try_pair(Pair(spark, python), folder, tuple(arguments.constraints))
            print(table_row(outcome), flush=True)
            outcomes.append(outcome)
    print("\n" + "\n".join(table(outcomes)))
    tried = [one for one in outcomes if not one.untried]
    return bool(tried) and all(all(one.passed.values()) for one in tried)


def try_pair(pair: Pair, folder: Path, constraints: tuple[str, ...] = ()) -> Outcome:
    """Make an environment of the wheels in a folder, run the walk and all checks in it, and remove it."""
    outcome = Outcome(pair)
    if not has_python(pair.python):
        outcome.untried = f"no Python {pair.python} on the path"
        return outcome
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        python = place / "environment" / "bin" / "python"
        uv = str(Path(sys.executable).with_name("uv"))
        wanted = ["penstock-spark-plugin[connect,pyspark]", "penstock-emulator", f"pyspark=={pair.spark}", *constraints]
        install = [uv, "pip", "install", "-q", "-p", str(python), "--find-links", str(folder / "wheels"), *wanted]
        for command in ([uv, "venv", "-q", "-p", f"python{pair.python}", str(python.parents[1])], install):
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                outcome.passed["install"] = False
                outcome.words["install"] = ended.stderr.strip()[-300:]
                return outcome
        outcome.versions = _versions(python)
        outcome.passed["walk"], outcome.words["walk"] = _walk(python, place)
        for check, passed, words in _checks(python, place):
            outcome.passed[check], outcome.words[check] = passed, words
    return outcome


def table_row(outcome: Outcome) -> str:
    """Its row of the table in Markdown."""
    pair = outcome.pair
    if outcome.untried:
        return f"| {pair.spark} | {pair.python} | not run: {outcome.untried} | |"
    failed = [f"{name} FAILED ({outcome.words[name]})" for name, passed in outcome.passed.items() if not passed]
    passed = [name for name, passed in outcome.passed.items() if passed]
    said = "; ".join([*failed, f"{', '.join(passed)} pass"] if passed else failed).replace("|", "/").replace("\n", " ")
    beside = ", ".join(f"{name} {version}" for name, version in outcome.versions.items())
    return f"| {pair.spark} | {pair.python} | {said} | {beside} |"


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """The lines of a table in Markdown, and what each version does with limits and progress."""
    yield "| Spark | Python | result | with |"
    yield "| --- | --- | --- | --- |"
    yield from map(table_row, outcomes)
    yield ""
    for one in outcomes:
        if words := one.words.get("available-now"):
            yield f"- Spark {one.pair.spark}, Python {one.pair.python}, `Trigger.AvailableNow` of 250: {words}"


def _versions(python: Path) -> dict[str, str]:
    ask = f"import importlib.metadata as m; print(*(m.version(one) for one in {_SHOWN!r}))"
    ended = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return dict(zip(_SHOWN, ended.stdout.split(), strict=True))


def _environment(place: Path) -> dict[str, str]:
    """Without what would tell Spark's processes of another environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PENSTOCK_", "PYSPARK_"))}
    for name in ("PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV"):
        kept.pop(name, None)
    return kept | {"XDG_STATE_HOME": str(place / "state"), "SPARK_LOCAL_IP": "127.0.0.1"}


def _walk(python: Path, place: Path) -> tuple[bool, str]:
    """The example of the plugin's README, as it is written."""
    code = "\n".join(_BLOCK.findall((_ROOT / "packages" / "spark-plugin" / "README.md").read_text()))
    (place / "walk.py").write_text(code)
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    with running_emulator() as emulator:
        for name in ("flights", "delays"):
            emulator.client().create_stream(StreamName=name, ShardCount=2)
        environment = _environment(place) | keys | {"AWS_ENDPOINT_URL_KINESIS": emulator.endpoint_url}
        environment |= {"PYSPARK_SUBMIT_ARGS": _SUBMIT}
        code_and_words = _run([str(python), "walk.py"], place, environment)
    if code_and_words[0]:
        return False, code_and_words[2].strip()[-300:]
    printed = [line for line in code_and_words[1].splitlines() if line and not line.startswith(("|", "+"))]
    expected = _EXPECTED.findall(code)
    left = [line for line in expected if line not in printed]
    # The numbers of the progress, which Spark shows since 4.2.
    allowed = ["('flights',) 3"] if not _tells_numbers(python) else []
    return left == allowed and len(printed) == len(expected) - len(allowed), f"{len(printed)} lines as printed"


def _tells_numbers(python: Path) -> bool:
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pyspark.sql.streaming.datasource') is None)"
    return subprocess.run([python, "-c", ask], check=False).returncode == 0


def _checks(python: Path, place: Path) -> Iterator[tuple[str, bool, str]]:
    driver = str(Path(__file__).with_name("matrix_driver.py"))
    for names in (_CHECKS[:-1], _CHECKS[-1:]):  # one with a session of Spark Connect is a process of its own
        with running_emulator() as emulator:
            command = [str(python), driver, emulator.endpoint_url, str(place / "checks"), *names]
            code, out, errors = _run(command, place, _environment(place))
        told = [json.loads(line) for line in out.splitlines() if line.startswith('{"check"')]
        for one in told:
            yield one["check"], one["passed"], one["words"]
        for name in names[len(told) :]:
            yield name, False, f"not run: the process ended with {code}: {errors.strip()[-200:]}"


def _run(command: list[str], place: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    try:
        ended = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"it did not end in {_CHECK_SECONDS} s"
    return ended.returncode, ended.stdout, ended.stderr
