"""The recipe in `deploy/conda`, by rattler-build's own parser: it says what the packages say of themselves."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from rattler_build import RecipeParseError, Stage0Recipe

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "deploy" / "conda" / "recipe.yaml"
FOLDERS = {
    tomllib.loads(path.read_text())["project"]["name"]: path.parent
    for kind in ("packages", "services")
    for path in (ROOT / kind).glob("*/pyproject.toml")
}
# What channels of conda call otherwise than the index of Python does.
NAMES = {"isal": "python-isal", "prometheus-client": "prometheus_client"}


def declared(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text())


def brought(name: str, extras: frozenset[str] = frozenset()) -> Iterator[tuple[str, Requirement | None]]:
    """The Penstock packages of an installation by name, and the other packages that each of them needs."""
    project = declared(name)["project"]
    yield name, None
    optional = project.get("optional-dependencies", {})
    for text in [*project.get("dependencies", ()), *(one for extra in extras for one in optional[extra])]:
        requirement = Requirement(text)
        if requirement.name in FOLDERS:
            yield from brought(requirement.name, frozenset(requirement.extras))
        else:
            yield name, requirement


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """As rattler-build understands it: what it does not know is an error."""
    (variant,) = Stage0Recipe.from_file(RECIPE).render()
    return variant.recipe.to_dict()


def test_rattler_build_refuses_what_it_does_not_know() -> None:
    """So that the recipe's own parsing says something."""
    with pytest.raises(RecipeParseError):
        Stage0Recipe.from_yaml(RECIPE.read_text().replace("requirements:", "requires:"))


def test_it_installs_the_packages_that_pip_would(recipe: dict[str, Any]) -> None:
    """All Penstock packages of `pip install penstock`, with their commands, without an index."""
    ours = {name for name, _ in brought("penstock")}
    command, *folders = recipe["build"]["script"].split(" ./")
    assert command == "python -m pip install --no-deps --no-build-isolation -vv"
    assert sorted(folders) == sorted(str(FOLDERS[name].relative_to(ROOT)) for name in ours)
    scripts = {key: value for name in ours for key, value in declared(name)["project"].get("scripts", {}).items()}
    assert dict(one.split(" = ") for one in recipe["build"]["python"]["entry_points"]) == scripts


def test_it_needs_of_others_what_the_packages_do(recipe: dict[str, Any]) -> None:
    """Each with the highest of the bounds that they set, and what builds them."""
    lowest: dict[str, Version] = {}
    for _, requirement in brought("penstock"):
        if requirement is not None:
            (bound,) = requirement.specifier
            assert (bound.operator, requirement.marker) == (">=", None), requirement
            name = NAMES.get(requirement.name, requirement.name)
            lowest[name] = max(lowest.get(name, Version("0")), Version(bound.version))
    (python,) = {declared(name)["project"]["requires-python"] for name in FOLDERS}
    wanted = [f"python {python}", *(f"{name} >={version}" for name, version in sorted(lowest.items()))]
    assert recipe["requirements"]["run"] == wanted
    (builders,) = {tuple(declared(name)["build-system"]["requires"]) for name in FOLDERS}
    tools = [one.replace(">=", " >=") for one in builders]
    assert recipe["requirements"]["host"] == [f"python {python}", "pip", *tools]
    spark = Requirement(*declared("penstock-spark-plugin")["project"]["optional-dependencies"]["pyspark"])
    assert recipe["requirements"]["run_constraints"] == [f"{spark.name} {spark.specifier}"]


def test_it_says_of_itself_what_the_package_says(recipe: dict[str, Any]) -> None:
    project = declared("penstock")["project"]
    assert recipe["package"] == {"name": "penstock", "version": project["version"]}
    assert (recipe["about"]["summary"], recipe["about"]["license"]) == (project["description"], project["license"])
    assert yaml.safe_load(RECIPE.read_text())["source"]["path"] == "../.."
