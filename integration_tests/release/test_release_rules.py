import re
import shutil
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

from tools.dependencies import read_lock
from tools.prove.matrix import Outcome as PairOutcome
from tools.prove.matrix import Pair, try_pair
from tools.prove.matrix import table_row as table_row_of_pair
from tools.release.matrix import find_cells, has_python, read_cells, run_matrix, table_row
from tools.release.versions import (
    find_members,
    problems,
    read_member,
    set_version,
    sibling_bounds,
    with_heading,
    with_version,
)

ROOT = Path(__file__).resolve().parents[2]

LICENCE = (ROOT / "LICENSE").read_text()
TODAY = date(2026, 11, 20)
DEPLOYED = ("deploy/helm/penstock/Chart.yaml", "deploy/conda/recipe.yaml")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What a release looks at, of three members."""
    for member in ("packages/aws", "packages/rpc", "services/sink-gateway"):
        target = tmp_path / member
        target.mkdir(parents=True)
        for name in ("pyproject.toml", "CHANGELOG.md", "LICENSE"):
            shutil.copy(ROOT / member / name, target)
    for name in DEPLOYED:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "bounds"),
    [("0.1.0", ">=0.1.0,<0.2"), ("0.9.3", ">=0.9.3,<0.10"), ("2.4.1", ">=2.4.1,<3"), ("1.0.0rc1", ">=1.0.0rc1,<2")],
)
def test_siblings_are_bounded_by_what_may_break(version: str, bounds: str) -> None:
    """Before 1.0 the next minor version may break, from then on the next major one."""
    assert sibling_bounds(version) == bounds


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "", "1.0.0+local"])
def test_a_version_that_no_release_has_is_refused(version: str) -> None:
    """The error shows what one looks like."""
    with pytest.raises(ValueError, match=r"such as 1\.2\.3"):
        sibling_bounds(version)


def test_a_version_is_set_in_all_members_and_nothing_is_left_to_complain_about(repository: Path) -> None:
    """Versions, bounds of siblings and headings change; names, other requirements and sources do not."""
    changed = set_version(repository, "0.2.0", TODAY)
    assert len(changed) == 8
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
    assert set_version(repository, "0.2.0", TODAY) == []


def test_setting_a_version_updates_the_chart_and_the_recipe(repository: Path) -> None:
    """Helm requires a semantic version for a candidate. Images have the version of the packages."""
    set_version(repository, "0.2.0rc1", TODAY)
    chart, recipe = (yaml.safe_load((repository / name).read_text()) for name in DEPLOYED)
    assert (chart["version"], chart["appVersion"]) == ("0.2.0-rc.1", "0.2.0rc1")
    assert recipe["context"] == {"version": "0.2.0rc1"}
    chart, recipe = (yaml.safe_load((ROOT / name).read_text()) for name in DEPLOYED)
    assert {chart["appVersion"], recipe["context"]["version"]} == {one.version for one in find_members(ROOT)}


def test_an_invalid_version_changes_nothing(repository: Path) -> None:
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="is not a version"):
        set_version(repository, "next", TODAY)
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before


def test_each_problem_is_reported_with_its_remedy(repository: Path) -> None:
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


def test_unreleased_entries_become_those_of_the_version() -> None:
    """The entries stay below the new heading; a package that did not change says so; a second time changes nothing."""
    assert with_heading("# Changelog\n\n## Unreleased\n\n- New.\n", "0.2.0", TODAY) == (
        "# Changelog\n\n## 0.2.0 (2026-11-20)\n\n- New.\n"
    )
    unchanged = with_heading("# Changelog\n\n## 0.1.0\n\n- Old.\n", "0.2.0", TODAY)
    assert unchanged.index("## 0.2.0") < unchanged.index("No changes of its own") < unchanged.index("## 0.1.0")
    assert with_heading(unchanged, "0.2.0", TODAY) == unchanged


@pytest.mark.parametrize("heading", ["## 0.1.0", "## 0.1.0 (2026-11-19)"])
def test_later_entries_join_the_section_of_their_version(heading: str) -> None:
    """A heading without a date gets one, one with a date keeps it, and nothing is left as unreleased."""
    dated = heading if "(" in heading else f"{heading} (2026-11-20)"
    text = f"# Changelog\n\n## Unreleased\n\n- New.\n\n{heading}\n\n- Old.\n"
    assert with_heading(text, "0.1.0", TODAY) == f"# Changelog\n\n{dated}\n\n- New.\n- Old.\n"
    empty = f"# Changelog\n\n## Unreleased\n\n{heading}\n\n- Old.\n\n## 0.0.9\n\n- Older.\n"
    assert with_heading(empty, "0.1.0", TODAY) == f"# Changelog\n\n{dated}\n\n- Old.\n\n## 0.0.9\n\n- Older.\n"


def test_extras_and_markers_of_siblings_survive(tmp_path: Path) -> None:
    """Only the bounds are replaced, whatever they were, and never the project's own name."""
    text = '[project]\nname = "penstock-a"\nversion = "0.1.0"\ndependencies = ["penstock-a[x,y]~=0.1", "penstock-ab"]\n'
    new = with_version(text, "1.0.0", ["penstock-a"])
    (tmp_path / "pyproject.toml").write_text(new)
    member = read_member(tmp_path)
    assert (member.name, member.version) == ("penstock-a", "1.0.0")
    assert member.requirements == ("penstock-a[x,y]>=1.0.0,<2", "penstock-ab")


GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yaml"))
each_workflow = pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)


def follows(schema: str, file: Path) -> None:
    """Fails with what is wrong by a schema that comes with the checker."""
    checker = str(Path(sys.executable).with_name("check-jsonschema"))
    ended = subprocess.run(
        [checker, "--builtin-schema", schema, str(file)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout


@each_workflow
def test_workflows_follow_their_schema(workflow: Path) -> None:
    """By the schema of such files; every job has a bound in time, and no checkout leaves its token in the tree."""
    for schema in ("vendor.github-workflows", "custom.github-workflows-require-timeout"):
        follows(schema, workflow)
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_only_publishing_jobs_have_an_identity_token() -> None:
    """Identity is for attestations, the index and the pages; all else of a workflow reads."""
    named, rights = set(), set()
    for workflow in WORKFLOWS:
        parsed = yaml.safe_load(workflow.read_text())
        assert set(parsed["permissions"].items()) <= {("contents", "read")}
        for name, job in parsed["jobs"].items():
            written = {right for right, how in job.get("permissions", {}).items() if how == "write"}
            rights |= written
            if "id-token" in written:
                named.add(f"{workflow.stem}/{name}")
    assert named == {"docs/deploy", "publish/attest", "publish/publish"}
    assert rights == {"attestations", "id-token", "pages"}


def test_actions_are_pinned_by_digest() -> None:
    """Each `uses` names a commit, and its version in a comment; all workflows use the same commit of an action."""
    used = [line for workflow in WORKFLOWS for line in re.findall(r"\buses: *(.*)", workflow.read_text())]
    assert len(used) > 10
    assert [one for one in used if re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[0-9.]+", one) is None] == []
    assert len({one.partition("@")[0] for one in used}) == len(set(used))


LOCKED = "${{ github.workspace }}/requirements.lock"
# Of these jobs other versions than the lock's are the point.
CONSTRAINTS = {"test/compat": "${{ github.workspace }}/compat.lock", "test/lowest": ""}
INSTALLERS = re.compile(r"\b(pip3?|pipx|uvx?|npm|npx|conda|gem|curl|wget)\b")


@each_workflow
def test_a_workflow_installs_from_the_lock(workflow: Path) -> None:
    """By hash: hatch and uv by their script, environments and builds by constraints, npm by its own lock."""
    parsed = yaml.safe_load(workflow.read_text())
    for name, job in parsed["jobs"].items():
        lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
        loose = [line for line in lines if INSTALLERS.search(line)]
        assert [line for line in loose if "--require-hashes" not in line and " npm ci " not in line] == []
        if any(line.startswith("hatch ") for line in lines):
            assert "tools/install_hatch.sh" in lines
            given = {**parsed["env"], **job.get("env", {})}
            assert given["UV_CONSTRAINT"] == CONSTRAINTS.get(f"{workflow.stem}/{name}", LOCKED)
            assert given["UV_BUILD_CONSTRAINT"] == LOCKED


def test_hatch_is_installed_from_the_lock() -> None:
    """Each command of the script checks hashes: pip by its own option, uv by constraints."""
    script = (ROOT / "tools" / "install_hatch.sh").read_text()
    installs = [line for line in script.splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert "--constraint requirements.lock" in installs[1]
    checks = (ROOT / ".ci" / "run").read_text()
    assert "tools/install_hatch.sh " in checks
    assert re.findall(r"pip\W* install|npm install", checks) == []


def test_only_spark_has_another_version_than_the_lock_in_the_matrix(tmp_path: Path) -> None:
    """The command of the workflow leaves everything else as it is."""
    steps = yaml.safe_load((GITHUB / "workflows" / "test.yaml").read_text())["jobs"]["compat"]["steps"]
    (command,) = (step["run"] for step in steps if step.get("run", "").startswith("sed "))
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    whole, left = (read_lock((tmp_path / name).read_text()) for name in ("requirements.lock", "compat.lock"))
    assert [one for one in whole if one.name not in ("pyspark", "py4j")] == left
    assert len(left) == len(whole) - 2


def test_jobs_that_sign_or_publish_run_nothing() -> None:
    """They download what another job has built, and hand it on: no command, no checkout, no installation."""
    signing = {}
    for workflow in WORKFLOWS:
        for name, job in yaml.safe_load(workflow.read_text())["jobs"].items():
            if {"id-token", "attestations"} & set(job.get("permissions", {})):
                signing[f"{workflow.stem}/{name}"] = job["steps"]
    assert {name: [step for step in steps if "run" in step] for name, steps in signing.items()} == {
        "docs/deploy": [],
        "publish/attest": [],
        "publish/publish": [],
    }
    assert {step["uses"].partition("@")[0] for steps in signing.values() for step in steps} == {
        "actions/attest-build-provenance",
        "actions/attest-sbom",
        "actions/deploy-pages",
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    }


@each_workflow
def test_a_workflow_runs_commands_that_exist(workflow: Path) -> None:
    """Each `hatch run` of it is a script of hatch.toml, or a cell of its matrices."""
    hatch = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]
    known = {
        name if env == "default" else f"{env}:{name}" for env, one in hatch.items() for name in one.get("scripts", {})
    }
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if step.get("run", "").startswith("hatch run ")]
    names = {
        re.sub(r"^compat\.py\$\{\{.*?\}\}-\$\{\{.*?\}\}:", "compat:", one.removeprefix("hatch run "))
        for one in commands
    }
    assert {name.partition(" ")[0] for name in names} - known == set()


def test_the_workflow_of_tests_has_the_whole_matrix() -> None:
    """As hatch.toml has it: each Spark with each Python."""
    hatch = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]
    (wanted,) = hatch["compat"]["matrix"]
    jobs = yaml.safe_load((GITHUB / "workflows" / "test.yaml").read_text())["jobs"]
    assert jobs["compat"]["strategy"]["matrix"] == wanted


def test_forms_and_settings_of_the_repository_follow_their_schemas() -> None:
    """Forms of issues, and what updates the actions and images that are used."""
    forms = [path for path in (GITHUB / "ISSUE_TEMPLATE").iterdir() if path.stem != "config"]
    assert len(forms) >= 2
    for form in forms:
        follows("vendor.github-issue-forms", form)
    follows("vendor.github-issue-config", GITHUB / "ISSUE_TEMPLATE" / "config.yml")
    follows("vendor.renovate", GITHUB / "renovate.json")


def test_pre_commit_runs_the_tools_of_the_lint() -> None:
    """What runs before a commit, if it was installed, is what `hatch run lint` runs."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [" ".join(hook["entry"].removeprefix("hatch run ").split()[:2]) for hook in repository["hooks"]]
    lint = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]["default"]["scripts"]["lint"]
    assert entries == [" ".join(line.split()[:2]).removesuffix(" .") for line in lint]


@pytest.mark.parametrize("name", ["compat-tests.txt", "lowest-tests.txt"])
def test_the_tests_of_a_matrix_exist(name: str) -> None:
    """A list of paths for pytest: a name that is wrong would end each run at once."""
    paths = (ROOT / "tools" / "release" / name).read_text().splitlines()
    assert [path for path in paths if not (ROOT / path).exists()] == []


HATCH = """
[[envs.compat.matrix]]
spark = ["4.1", "4.3"]
python = ["3.11", "3.12"]
"""


def test_every_cell_of_the_matrix_is_run_or_named() -> None:
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


def test_a_python_that_does_not_run_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version managers leave launchers for versions that they do not start."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for version, script in (("3.98", "echo 3.98"), ("3.99", "echo not installed >&2; exit 127")):
        launcher = tmp_path / f"python{version}"
        launcher.write_text(f"#!/bin/sh\n{script}\n")
        launcher.chmod(0o755)
    assert [has_python(version) for version in ("3.97", "3.98", "3.99")] == [False, True, False]


def test_the_cells_of_the_repository_are_those_of_its_matrix() -> None:
    """One that is not there is refused with those that are."""
    assert len(read_cells(ROOT, [])) == 13
    assert [cell.spark for cell in read_cells(ROOT, ["lowest", "compat.py3.12-4.1"])] == ["lowest", "4.1"]
    with pytest.raises(ValueError, match=r"no cell compat\.py2\.7-4\.1; there are compat\.py3\.11-4\.0"):
        read_cells(ROOT, ["compat.py2.7-4.1"])


def test_a_pair_of_spark_and_python_is_tried_or_named(tmp_path: Path) -> None:
    """Without its Python nothing is made, and the table says so; a check that fails is named with what it says."""
    untried = try_pair(Pair("4.0.2", "2.7"), tmp_path)
    assert table_row_of_pair(untried) == "| 4.0.2 | 2.7 | not run: no Python 2.7 on the path | |"
    passed, words = {"walk": True, "efo": False, "kill": True}, {"efo": "AssertionError: 3 rows twice"}
    row = table_row_of_pair(PairOutcome(Pair("4.1.4", "3.11"), "", passed, words, {"pyarrow": "19.0.1"}))
    assert row == "| 4.1.4 | 3.11 | efo FAILED (AssertionError: 3 rows twice); walk, kill pass | pyarrow 19.0.1 |"
