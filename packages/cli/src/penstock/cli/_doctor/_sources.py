"""Does Spark find the data source, or is another package in the way?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from penstock.cli._doctor._python import pyspark_version
from penstock.cli._doctor._surroundings import Finding, Surroundings, ok, problem, skipped

FORMAT: Final = "kinesis"
# What Spark does: it imports each top-level package pyspark_*, and looks for a class DefaultSource. In a child, as an
# import may do anything; a line before each, so that one that ends the process is known.
_LOOK: Final = """\
import importlib, json, pkgutil, sys
for module in sorted({info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")}):
    print(json.dumps({"module": module}), flush=True)
    answer = {"module": module}
    try:
        found = importlib.import_module(module)
        answer["file"] = found.__file__
        if hasattr(found, "DefaultSource"):
            answer["format"] = found.DefaultSource.name()
    except BaseException as error:
        answer["error"] = type(error).__name__ + ": " + str(error)
    print(json.dumps({**answer, "done": True}), flush=True)
"""


def check_data_sources(surroundings: Surroundings) -> Iterator[Finding]:
    """Every package `pyspark_*` has to import, or Spark finds no data source at all; one of them is `kinesis`."""
    if pyspark_version(surroundings) is None:
        yield skipped("Discovery", "PySpark is not installed")
        return
    ran = surroundings.run([surroundings.executable, "-c", _LOOK], surroundings.environ)
    seen = _answers(ran.out)
    broken = False
    for module, answer in seen.items():
        error = answer.get("error") or ("" if answer.get("done") else "it ends the process")
        if error:
            broken = True
            owner = _owner(surroundings, module)
            text = f"{module} (from {owner}) fails on import, and Spark finds no data source at all: {error}"
            yield problem("Discovery", text, f"pip uninstall {owner}, or repair it")
    if ran.code is None:
        yield skipped("Discovery", f"no child process could look: {ran.errors[-200:]}")
        return
    named = [module for module, answer in seen.items() if str(answer.get("format", "")).lower() == FORMAT]
    if len(named) > 1:
        owners = [_owner(surroundings, module) for module in named]
        text = f"{len(named)} packages have the format {FORMAT}, and Spark takes one of them: " + ", ".join(
            f"{module} (from {owner})" for module, owner in zip(named, owners, strict=True)
        )
        others = [owner for owner in owners if owner != "penstock-spark-plugin"]
        yield problem("Discovery", text, f"pip uninstall {' '.join(others)}")
    elif not named:
        if surroundings.version("penstock-spark-plugin") is not None and not broken:
            text = f"penstock-spark-plugin is installed, but the format {FORMAT} is missing"
            cure = f'{surroundings.executable} -c "import penstock.spark_plugin" says why'
            yield problem("Discovery", text, cure)
    elif not broken:
        yield ok("Discovery", f"the format {FORMAT} is found, in {named[0]}; {len(seen)} packages pyspark_* import")


def _answers(out: str) -> dict[str, dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {}
    for line in out.splitlines():
        try:
            answer = json.loads(line)
        except ValueError:
            # Something that a package prints when it is imported.
            continue
        if isinstance(answer, dict) and "module" in answer:
            answers[str(answer["module"])] = answer
    return answers


def _owner(surroundings: Surroundings, module: str) -> str:
    """The distribution that has a top-level package."""
    for distribution in surroundings.distributions():
        name = distribution.metadata["Name"]
        files = distribution.files or []
        if name and any(file.parts and file.parts[0] in (module, f"{module}.py") for file in files):
            return str(name)
        if name == "penstock-spark-plugin" and module in (
            "pyspark_kinesis",
            "pyspark_firehose",
            "pyspark_dynamodb",
            "pyspark_sqs",
            "pyspark_dynamodb_streams",
        ):
            # Installed for editing: the files are elsewhere.
            return str(name)
    return module
