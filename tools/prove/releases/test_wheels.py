import importlib.metadata
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from importlib.util import source_from_cache
from pathlib import Path

import py4j
import pyspark
import pytest
import readme_renderer.markdown
from packaging.requirements import Requirement

from penstock.emulator.testing import running_emulator
from penstock.spark_plugin import ensure_java
from tools import quick_spark
from tools.release.artefacts import artefact_problems, build, wheel_contents, wheel_metadata, wheel_of
from tools.release.versions import Member, find_members, problems

ROOT = Path(__file__).resolve().parents[3]

MEMBERS = find_members(ROOT)
UV = str(Path(sys.executable).with_name("uv"))
each_member = pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)

CONSTRAINTS = "constraints.txt"

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


Alone = Callable[..., str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source archives of all members, and the wheels made of them.

    In a folder of a name that was never there: uv takes from its cache what it once found in a folder of that name.
    """
    folder = Path(tempfile.mkdtemp(prefix="built", dir=tmp_path_factory.getbasetemp()))
    for member in MEMBERS:
        build(member, folder, isolated=False)
    pack_installed("pyspark", folder)
    versions = {member.name: member.version for member in MEMBERS} | {"pyspark": pyspark.__version__}
    (folder / CONSTRAINTS).write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
    return folder


def pack_installed(name: str, folder: Path) -> None:
    """Make a wheel of what is installed here, without its scripts.

    The index has PySpark's source alone, and an installer takes a minute to make a wheel of that, again and again. What
    Spark's workers import is taken compiled, if it is there.
    """
    distribution = importlib.metadata.distribution(name)
    files = [file for file in distribution.files or [] if ".." not in file.parts and file.suffix != ".pyc"]
    with zipfile.ZipFile(folder / f"{name}-{distribution.version}-py3-none-any.whl", "w") as wheel:
        for file in files:
            if file.name != "RECORD":
                compiled = quick_spark.HOME / Path(*file.parts[1:])
                wheel.write(compiled if file.suffix == ".zip" and compiled.exists() else file.locate(), str(file))
        (record,) = (file for file in files if file.name == "RECORD")
        wheel.writestr(str(record), "".join(f"{file},,\n" for file in files))


@pytest.fixture(scope="module")
def alone(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Gives the Python of an environment with nothing but some requirements, the same for the same ones.

    Siblings are from what was built.
    """
    made: dict[tuple[str, ...], Path] = {}
    compiled: dict[int, Path] = {}

    def python_with(*requirements: str) -> str:
        if requirements not in made:
            folder = tmp_path_factory.mktemp("environment")
            subprocess.run([UV, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
            install = [UV, "pip", "install", "-q", "-p", str(folder), "--find-links", str(built), *requirements]
            install += ["-c", str(built / CONSTRAINTS)]
            # First from the cache alone, which is quicker than an index.
            if subprocess.run([*install, "--offline"], capture_output=True, check=False).returncode:
                subprocess.run(install, check=True)
            if made:
                compiled.update(compiled_in(list(made.values())[-1]))
            share(compiled, folder)
            made[requirements] = folder
        return str(made[requirements] / "bin" / "python")

    return python_with


def compiled_in(folder: Path) -> dict[int, Path]:
    """What Python has compiled in an environment, by the numbers of the files that it has the sources in."""
    compiled = folder.rglob("__pycache__/*.pyc")
    return {Path(source_from_cache(str(file))).stat().st_ino: file for file in compiled}


def share(compiled: dict[int, Path], folder: Path) -> None:
    """Give an environment what was compiled of the same files, which uv links from its cache."""
    for source in folder.rglob("*.py"):
        file = compiled.get(source.stat().st_ino)
        if file is not None:
            copy = source.parent / "__pycache__" / file.name
            copy.parent.mkdir(exist_ok=True)
            copy.hardlink_to(file)


def modules_of(member: Member) -> list[str]:
    """Import names of all of its modules."""
    source = member.folder / "src"
    names = [".".join(file.relative_to(source).with_suffix("").parts) for file in source.rglob("*.py")]
    return sorted(name.removesuffix(".__init__") for name in names)


def words_of(html: str) -> str:
    """The visible text of a page, with the alternative text of images."""
    return re.sub(r"<[^>]+>", "", re.sub(r'<img[^>]* alt="([^"]*)"[^>]*>', r"\1", html))


def needs_no_extra(module: str) -> bool:
    """Whether it is not a command, no help for tests, nor what an extra is for."""
    last = module.rpartition(".")[2]
    return last not in {"__main__", "testing", "pytest_plugin", "telemetry"} and not last.startswith("_connect_")


def test_the_packages_can_be_released_together() -> None:
    """One version, siblings pinned to it, a heading in each changelog, the licence in each package."""
    assert problems(MEMBERS, (ROOT / "LICENSE").read_text()) == []


@each_member
def test_artefacts_hold_what_belongs_there_and_nothing_else(member: Member, built: Path) -> None:
    """Licence and marker of types are in; tests, caches and an `__init__.py` that hides other packages are not."""
    assert artefact_problems(member, built) == []


@each_member
def test_a_source_archive_makes_the_wheel_of_the_tree(member: Member, built: Path, tmp_path: Path) -> None:
    """A build from the source archive gives the same files, byte for byte."""
    build(member, tmp_path, from_tree=True, isolated=False)
    assert wheel_contents(wheel_of(member, tmp_path)) == wheel_contents(wheel_of(member, built))


@each_member
def test_a_wheel_has_its_name_and_the_bounds_of_siblings(member: Member, built: Path) -> None:
    """A sibling of this version or a later patch is accepted, a sibling of the next minor version is not."""
    metadata = wheel_metadata(wheel_of(member, built))
    assert metadata["license-expression"] == ["Apache-2.0"]
    assert metadata["license-file"] == ["LICENSE"]
    names = {other.name for other in MEMBERS}
    siblings = [one for one in map(Requirement, metadata.get("requires-dist", [])) if one.name in names]
    major, minor, patch = map(int, member.version.split("."))
    for sibling in siblings:
        assert sibling.specifier.contains(member.version), sibling
        assert sibling.specifier.contains(f"{major}.{minor}.{patch + 1}"), sibling
        assert not sibling.specifier.contains(f"{major}.{minor + 1}.0"), sibling
        assert not sibling.specifier.contains(f"{major + 1}.0.0"), sibling


@each_member
def test_a_wheel_says_what_it_is_for_and_where_it_runs(member: Member, built: Path) -> None:
    """Words to find it by, and classifiers: an alpha, on the Pythons that the matrix tries, no others."""
    metadata = wheel_metadata(wheel_of(member, built))
    (words,) = metadata["keywords"]
    assert {"aws", "kinesis", "streaming"} < set(words.split(","))
    hatch = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]
    (matrix,) = hatch["compat"]["matrix"]
    said = set(metadata["classifier"])
    prefix = "Programming Language :: Python :: "
    assert {one.removeprefix(prefix) for one in said if one.startswith(prefix)} == {"3 :: Only", *matrix["python"]}
    assert {one for one in said if one.startswith("Operating System")} == {"Operating System :: POSIX :: Linux"}
    assert "Development Status :: 3 - Alpha" in said
    assert metadata["requires-python"] == [f">={min(matrix['python'])}"]
    assert ("Typing :: Typed" in said) == bool(modules_of(member))


@each_member
def test_a_readme_is_rendered_by_an_index(member: Member, built: Path) -> None:
    """The wheel's description is Markdown that an index can show, with its code as code."""
    metadata = wheel_metadata(wheel_of(member, built))
    assert metadata["description-content-type"] == ["text/markdown"]
    (text,) = metadata["description"]
    warnings = io.StringIO()
    rendered = readme_renderer.markdown.render(text, stream=warnings)
    assert rendered is not None
    assert warnings.getvalue() == ""
    assert f">{member.name}<" in rendered
    assert "```" not in rendered


@each_member
def test_a_readme_leads_nowhere_that_an_index_has_not(member: Member, built: Path) -> None:
    """Links to files of the repository are plain text in a wheel's description; its text is the README's."""
    (text,) = wheel_metadata(wheel_of(member, built))["description"]
    readme = (member.folder / "README.md").read_text()
    shown, whole = readme_renderer.markdown.render(text), readme_renderer.markdown.render(readme)
    assert shown is not None
    assert whole is not None
    places = set(re.findall(r'(?:href|src)="([^"]*)"', shown))
    headings = {f"#{name}" for name in re.findall(r'id="([^"]*)"', shown)}
    assert {place for place in places - headings if not place.startswith(("http://", "https://"))} == set()
    assert words_of(shown) == words_of(whole)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    # The demo is where nearly all others are: the environment with everything has it.
    "member",
    [member for member in MEMBERS if member.name != "penstock-demo"],
    ids=lambda member: member.name,
)
def test_a_wheel_installed_alone_imports_whole(member: Member, alone: Alone, tmp_path: Path) -> None:
    """In an empty environment, with nothing but what the package declares, each of its modules imports."""
    # PySpark is the only dependency that is not installed: a platform has its own.
    extra = "[pyspark]" if member.name == "penstock-spark-plugin" else ""
    python = alone(f"{member.name}{extra}")
    modules = [name for name in modules_of(member) if needs_no_extra(name)]
    subprocess.run([python, "-c", IMPORT_ALL, *modules], check=True, cwd=tmp_path)


PLATFORM = """
import importlib.metadata, sys
from penstock.spark_plugin import configure
from pyspark.sql import SparkSession

for name in ("pyspark", "pyspark-client", "py4j"):
    try:
        sys.exit(f"{importlib.metadata.version(name)} of {name} was installed")
    except importlib.metadata.PackageNotFoundError:
        pass
options = {"streamName": "flights", "endpointUrl": sys.argv[1], "region": "us-east-1"}
options |= {"awsAccessKeyId": "test", "awsSecretAccessKey": "test"}
spark = configure(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")).getOrCreate()
rows = spark.range(20).selectExpr("CAST(id AS STRING) AS data", "CAST(id AS STRING) AS partitionKey")
rows.write.format("kinesis").options(**options).mode("append").save()
stream = spark.readStream.format("kinesis").options(**options, initialPosition="TRIM_HORIZON").load()
query = stream.writeStream.format("memory").queryName("read").trigger(availableNow=True).start()
query.awaitTermination()
print("read", spark.table("read").count())
"""


def read_with_spark_of_the_platform(python: str, folder: Path) -> int:
    """Rows that `PLATFORM` read, with PySpark on PYTHONPATH without a distribution."""
    home = folder / "spark" / "python"
    home.mkdir(parents=True)
    for module in (pyspark, py4j):
        (home / module.__name__).symlink_to(Path(str(module.__file__)).parent)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environ = {"SPARK_HOME": str(home / "pyspark"), **environ, "PYTHONPATH": str(home)}
    environ |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    ensure_java(environ=environ)
    with running_emulator() as emulator:
        emulator.client().create_stream(StreamName="flights", ShardCount=1)
        command = [python, "-c", PLATFORM, emulator.endpoint_url]
        ran = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False)
    found = re.search(r"^read (\d+)$", ran.stdout, re.MULTILINE)
    assert found, ran.stderr[-3000:]
    return int(found[1])


@pytest.mark.timeout(600)
def test_the_plugin_works_with_the_spark_that_is_there(alone: Alone, tmp_path: Path) -> None:
    """As on platforms: PySpark is on PYTHONPATH without a distribution, and installing the plugin brings no other."""
    assert read_with_spark_of_the_platform(alone("penstock-spark-plugin"), tmp_path) == 20


# What Databricks Runtime 17.3 LTS has of the packages that ours need, by its release notes.
DATABRICKS_17_3 = """
boto3==1.36.2
botocore==1.36.3
cffi==1.17.1
cryptography==43.0.3
filelock==3.18.0
grpcio==1.67.0
grpcio-status==1.67.0
idna==3.7
importlib-metadata==6.6.0
jinja2==3.1.5
jmespath==1.0.1
jsonschema==4.23.0
numpy==2.1.3
opentelemetry-api==1.32.1
opentelemetry-sdk==1.32.1
packaging==24.2
pandas==2.2.3
platformdirs==3.10.0
prometheus-client==0.21.0
protobuf==5.29.4
pyarrow==19.0.1
python-dateutil==2.9.0.post0
requests==2.32.3
rich==13.9.4
s3transfer==0.11.3
six==1.16.0
typing-extensions==4.12.2
urllib3==2.3.0
wrapt==1.17.0
zipp==3.21.0
"""


@pytest.mark.timeout(900)
def test_the_plugin_is_installed_beside_the_packages_of_databricks(built: Path, tmp_path: Path) -> None:
    """As `%pip` does it: what the runtime has new enough is used, what is too old is shadowed, and nothing replaced."""
    runtime, notebook = tmp_path / "runtime", tmp_path / "notebook"
    for folder in (runtime, notebook):
        subprocess.run([UV, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
    (tmp_path / "runtime.txt").write_text(DATABRICKS_17_3)
    install = [UV, "pip", "install", "-q", "-p", str(runtime), "-r", str(tmp_path / "runtime.txt")]
    subprocess.run(install, check=True)
    listed = [UV, "pip", "freeze", "-q", "-p", str(runtime)]
    before = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    (below,) = (runtime / "lib").glob("python*/site-packages")
    (own,) = (notebook / "lib").glob("python*/site-packages")
    # After the notebook's paths, as in a runtime.
    (own / "runtime.pth").write_text(f"{below}\n")
    subprocess.run([UV, "pip", "install", "-q", "-p", str(notebook), "pip"], check=True)
    python = str(notebook / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--find-links", str(built)]
    # By the page's line: without the second, newer OpenTelemetry would come, which the runtime's SDK does not take.
    page = (ROOT / "docs" / "pages" / "how-to" / "databricks.md").read_text()
    (wanted,) = re.findall(r"^%pip install (.*)$", page, re.MULTILINE)
    subprocess.run([*pip, *shlex.split(wanted)], check=True)
    assert subprocess.run(listed, capture_output=True, text=True, check=True).stdout == before
    there = {line.split("==")[0] for line in DATABRICKS_17_3.split()}
    freeze = [UV, "pip", "freeze", "-q", "-p", python]
    in_notebook = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout.split()
    shadowed = there & {line.split("==")[0] for line in in_notebook}
    assert shadowed == {"boto3", "botocore", "grpcio", "platformdirs", "protobuf", "s3transfer"}
    assert read_with_spark_of_the_platform(python, tmp_path) == 20


@pytest.mark.timeout(600)
def test_all_wheels_together_make_one_working_installation(built: Path, alone: Alone, tmp_path: Path) -> None:
    """In an empty environment with all extras, each public module imports, and no package owns `penstock`."""
    wheels = [wheel_of(member, built) for member in MEMBERS]
    extras = [wheel_metadata(wheel).get("provides-extra", []) for wheel in wheels]
    wanted = [f"{member.name}[{','.join(extra)}]" for member, extra in zip(MEMBERS, extras, strict=True)]
    python = alone(*wanted)
    parts = [name.split(".") for member in MEMBERS for name in modules_of(member)]
    public = [".".join(names) for names in parts if not any(name.startswith("_") for name in names)]
    assert len(public) > 2 * len(MEMBERS)
    check = IMPORT_ALL + "import penstock\nassert penstock.__file__ is None\nassert len(list(penstock.__path__)) == 1\n"
    subprocess.run([python, "-c", check, *public], check=True, cwd=tmp_path)
    versions = subprocess.run(
        [str(Path(python).with_name("penstock")), "--version"], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert all(f"{member.name} {member.version}" in " ".join(versions.split()) for member in MEMBERS), versions
