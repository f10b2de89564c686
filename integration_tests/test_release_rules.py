import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import yaml

from release._matrix import find_cells, has_python, read_cells, run_matrix, table_row
from release._members import find_members, read_member
from release._versions import problems, set_version, sibling_bounds, with_heading, with_version
from tools.prove.matrix import Outcome as PairOutcome
from tools.prove.matrix import Pair, try_pair
from tools.prove.matrix import table_row as table_row_of_pair

ROOT = Path(__file__).resolve().parents[1]

LICENCE = (ROOT / "LICENSE").read_text()
TODAY = date(2026, 11, 20)


@pytest.fixture
def repository(tmp_path) -> Path:
    """What a release looks at, of three members."""
    for member in ("packages/aws", "packages/rpc", "services/sink-gateway"):
        target = tmp_path / member
        target.mkdir(parents=True)
        for name in ("pyproject.toml", "CHANGELOG.md", "LICENSE"):
            shutil.copy(ROOT / member / name, target)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "bounds"),
    [("0.1.0", ">=0.1.0,<0.2"), ("0.9.3", ">=0.9.3,<0.10"), ("2.4.1", ">=2.4.1,<3"), ("1.0.0rc1", ">=1.0.0rc1,<2")],
)
def test_siblings_are_bounded_by_what_may_break(version, bounds):
    """Before 1.0 the next minor version may break, from then on the next major one."""
    assert sibling_bounds(version) == bounds


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "", "1.0.0+local"])
def test_a_version_that_no_release_has_is_refused(version):
    """The error shows what one looks like."""
    with pytest.raises(ValueError, match=r"such as 1\.2\.3"):
        sibling_bounds(version)


def test_a_version_is_set_in_all_members_and_nothing_is_left_to_complain_about(repository):
    """Versions, bounds of siblings and headings change; names, other requirements and sources do not."""
    changed = set_version(find_members(repository), "0.2.0", TODAY)
    assert len(changed) == 6
    members = find_members(repository)
    gateway = next(member for member in members if member.name == "penstock-sink-gateway")
    assert {member.version for member in members} == {"0.2.0"}
    assert "penstock-rpc[service]>=0.2.0,<0.3" in gateway.requirements
    assert "## 0.2.0 (2026-11-20)" in (gateway.folder / "CHANGELOG.md").read_text()
    assert (
        'penstock-aws = { path = "../../packages/aws", editable = true }'
        in (gateway.folder / "pyproject.toml").read_text()
    )
    # Only members that are released with it are bounded, and this repository lacks that one.
    assert "penstock-async-sink>=0.1.0,<0.2" in gateway.requirements
    assert problems(members, LICENCE, "v0.2.0") == []
    assert set_version(members, "0.2.0", TODAY) == []


def test_each_thing_that_is_wrong_is_told_with_its_cure(repository):
    """A version of its own, an unbounded sibling, no heading, no licence, another tag: one line each."""
    rpc = repository / "packages" / "rpc"
    rpc.joinpath("pyproject.toml").write_text(with_version((rpc / "pyproject.toml").read_text(), "0.3.0", []))
    rpc.joinpath("LICENSE").unlink()
    gateway = repository / "services" / "sink-gateway" / "pyproject.toml"
    gateway.write_text(gateway.read_text().replace("penstock-aws>=0.1.0,<0.2", "penstock-aws"))
    found = problems(find_members(repository), LICENCE, "v0.1.0")
    for words in (
        "versions differ: 0.1.0, 0.3.0; run: hatch run release:set 0.3.0",
        "the tag v0.1.0 is not v0.3.0",
        "penstock-sink-gateway: 'penstock-aws' has to end with >=0.1.0,<0.2",
        "penstock-rpc: CHANGELOG.md has no heading '## 0.3.0'",
        "penstock-rpc: LICENSE is missing",
    ):
        assert any(words in line for line in found), words
    assert len(found) == 5


def test_unreleased_entries_become_those_of_the_version():
    """The entries stay below the new heading; a package that did not change says so; a second time changes nothing."""
    assert with_heading("# Changelog\n\n## Unreleased\n\n- New.\n", "0.2.0", TODAY) == (
        "# Changelog\n\n## 0.2.0 (2026-11-20)\n\n- New.\n"
    )
    unchanged = with_heading("# Changelog\n\n## 0.1.0\n\n- Old.\n", "0.2.0", TODAY)
    assert unchanged.index("## 0.2.0") < unchanged.index("No changes of its own") < unchanged.index("## 0.1.0")
    assert with_heading(unchanged, "0.2.0", TODAY) == unchanged


def test_extras_and_markers_of_siblings_survive(tmp_path):
    """Only the bounds are replaced, whatever they were, and never the project's own name."""
    text = '[project]\nname = "penstock-a"\nversion = "0.1.0"\ndependencies = ["penstock-a[x,y]~=0.1", "penstock-ab"]\n'
    new = with_version(text, "1.0.0", ["penstock-a"])
    (tmp_path / "pyproject.toml").write_text(new)
    member = read_member(tmp_path)
    assert (member.name, member.version) == ("penstock-a", "1.0.0")
    assert member.requirements == ("penstock-a[x,y]>=1.0.0,<2", "penstock-ab")


def test_the_example_of_a_workflow_is_one():
    """By the schema of such files; every job has a bound in time, and only the one that publishes may say who it is."""
    checker = str(Path(sys.executable).with_name("check-jsonschema"))
    file = ROOT / "release" / "publish.example.yaml"
    for schema in ("vendor.github-workflows", "custom.github-workflows-require-timeout"):
        command = [checker, "--builtin-schema", schema, str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout
    jobs = yaml.safe_load(file.read_text())["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job["permissions"]] == ["publish"]


@pytest.mark.parametrize("name", ["compat-tests.txt", "lowest-tests.txt"])
def test_the_tests_of_a_matrix_exist(name):
    """A list of paths for pytest: a name that is wrong would end each run at once."""
    paths = (ROOT / "release" / name).read_text().splitlines()
    assert [path for path in paths if not (ROOT / path).exists()] == []


HATCH = """
[[envs.compat.matrix]]
spark = ["4.1", "4.3"]
python = ["3.11", "3.12"]
"""


def test_every_cell_of_the_matrix_is_run_or_named():
    """A cell that fails keeps no other from being run; one without its Python is skipped, and says so."""
    answers = {
        "compat.py3.11-4.1": (0, "..\n== 7 passed, 1 skipped in 3.21s (0:00:03) ==\n"),
        "compat.py3.11-4.3": (1, "FAILED test_it.py::test_a\n1 failed, 6 passed in 3.00s\n"),
        "lowest": (2, "cannot be resolved\n"),
    }
    found = list(run_matrix(find_cells(HATCH), lambda version: version == "3.11", lambda one: answers[one.environment]))
    assert [(one.cell.environment, one.passed, one.skipped) for one in found] == [
        ("compat.py3.11-4.1", True, False),
        ("compat.py3.12-4.1", False, True),
        ("compat.py3.11-4.3", False, False),
        ("compat.py3.12-4.3", False, True),
        ("lowest", False, False),
    ]
    assert table_row(found[0]) == "| 4.1 | 3.11 | 7 passed, 1 skipped in 3.21s (0:00:03) |"
    assert found[1].words == "skipped: no Python 3.12 on the path that runs"
    assert found[2].words == "1 failed, 6 passed in 3.00s; FAILED test_it.py::test_a"
    assert found[4].words == "no test was run: cannot be resolved"


def test_a_python_that_is_only_a_name_is_none(tmp_path, monkeypatch):
    """Version managers leave launchers for versions that they do not start."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for version, script in (("3.98", "echo 3.98"), ("3.99", "echo not installed >&2; exit 127")):
        launcher = tmp_path / f"python{version}"
        launcher.write_text(f"#!/bin/sh\n{script}\n")
        launcher.chmod(0o755)
    assert [has_python(version) for version in ("3.97", "3.98", "3.99")] == [False, True, False]


def test_the_cells_of_the_repository_are_those_of_its_matrix():
    """One that is not there is refused with those that are."""
    assert len(read_cells(ROOT, [])) == 13
    assert [cell.spark for cell in read_cells(ROOT, ["lowest", "compat.py3.12-4.1"])] == ["lowest", "4.1"]
    with pytest.raises(ValueError, match=r"no cell compat\.py2\.7-4\.1; there are compat\.py3\.11-4\.0"):
        read_cells(ROOT, ["compat.py2.7-4.1"])


def test_a_pair_of_spark_and_python_is_tried_or_named(tmp_path):
    """Without its Python nothing is made, and the table says so; a check that fails is named with what it says."""
    untried = try_pair(Pair("4.0.2", "2.7"), tmp_path)
    assert table_row_of_pair(untried) == "| 4.0.2 | 2.7 | not run: no Python 2.7 on the path | |"
    passed, words = {"walk": True, "efo": False, "kill": True}, {"efo": "AssertionError: 3 rows twice"}
    row = table_row_of_pair(PairOutcome(Pair("4.1.4", "3.11"), "", passed, words, {"pyarrow": "19.0.1"}))
    assert row == "| 4.1.4 | 3.11 | efo FAILED (AssertionError: 3 rows twice); walk, kill pass | pyarrow 19.0.1 |"
