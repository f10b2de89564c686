import functools
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.types import IntegerType

from penstock.spark_plugin._stages.fingerprints.code import is_unique, look_at
from penstock.spark_plugin._stages.fingerprints.stage import look_at_source


def function_fingerprint(function: Callable[..., Any]) -> str:
    return look_at(function).fingerprint


def source_fingerprint(frame: DataFrame) -> str:
    return look_at_source(frame).fingerprint


LIMIT = 3


def helper(value: int) -> int:
    return value + LIMIT


def compiled(source: str, **names: Any) -> Callable[..., Any]:
    """A function made of text, as after an edit."""
    scope = dict(names)
    exec(compile(source, "user.py", "exec"), scope)
    function: Callable[..., Any] = scope["build"]
    return function


def test_comments_and_places_do_not_count() -> None:
    """An edit that changes no code keeps the stage."""
    before = compiled("def build(x):\n    return x + 1\n")
    after = compiled("\n\n# a comment\ndef build(x):\n    # another\n    return x + 1\n")
    assert function_fingerprint(before) == function_fingerprint(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def build(x):\n    return x + 1\n", "def build(x):\n    return x + 2\n"),
        ("def build(x):\n    return x.first()\n", "def build(x):\n    return x.last()\n"),
        ("def build(x):\n    return map(lambda y: y + 1, x)\n", "def build(x):\n    return map(lambda y: y + 2, x)\n"),
        ("def build(x, n=1):\n    return x + n\n", "def build(x, n=2):\n    return x + n\n"),
        ("def build(x):\n    return x in {1, 2}\n", "def build(x):\n    return x in {1, 3}\n"),
        ("def build(x):\n    return 1\n", "def build(x):\n    return True\n"),
    ],
)
def test_code_counts(before: str, after: str) -> None:
    """Constants, names, defaults and nested functions are all part of a function."""
    assert function_fingerprint(compiled(before)) != function_fingerprint(compiled(after))


def test_closures_and_globals_count() -> None:
    """A function depends on what it closes over, and on the globals that it or its lambdas name."""

    def make(limit: int) -> Callable[[int], int]:
        return lambda value: value + limit

    assert function_fingerprint(make(1)) == function_fingerprint(make(1))
    assert function_fingerprint(make(1)) != function_fingerprint(make(2))
    source = "def build(x):\n    return map(lambda y: y + LIMIT, x)\n"
    assert function_fingerprint(compiled(source, LIMIT=1)) != function_fingerprint(compiled(source, LIMIT=2))


def test_helpers_count_as_deep_as_they_go() -> None:
    """An edit of a helper's helper is an edit of the function."""
    source = (
        "def inner(x):\n    return x * {}\ndef outer(x):\n    return inner(x)\ndef build(x):\n    return outer(x)\n"
    )
    assert function_fingerprint(compiled(source.format(2))) != function_fingerprint(compiled(source.format(3)))
    assert function_fingerprint(compiled(source.format(2))) == function_fingerprint(compiled(source.format(2)))


def test_the_order_of_equal_looking_values_counts() -> None:
    """Two values that change places give another fingerprint, although both were met before."""
    source = "def build():\n    return (A, B, {})\n"
    a, b = [1], [2]
    first = function_fingerprint(compiled(source.format("A"), A=a, B=b))
    assert first != function_fingerprint(compiled(source.format("A"), A=b, B=a))


def test_what_cannot_be_compared_is_unlike_anything() -> None:
    """A value that cannot be pickled makes the stage run again: never a wrong result."""
    function = compiled("def build():\n    return next(ROWS)\n", ROWS=(row for row in "ab"))
    assert function_fingerprint(function) != function_fingerprint(function)


@pytest.fixture(autouse=True)
def no_stale_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is edited within a second, to the same size, would be taken for the one that was compiled."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def user_module(folder: Path, name: str, text: str) -> types.ModuleType:
    """A module of the user's, freshly imported."""
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "use",
    [
        "def build(x): return helpers.clean(x)\n",
        "def build(x): return CLEAN(x)\n",
        "def build(x): return PARTIAL(x)\n",
        "def build(x): return OBJECT.clean(x)\n",
        "def build(x): return METHOD(x)\n",
        "def build(x): return UDF(x)\n",
        "def build(x): return helpers.Cleaner().clean(x)\n",
    ],
)
def test_code_in_the_users_other_files_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    """However a function reaches a helper, an edit of the helper is seen, although its name stays the same."""
    monkeypatch.delitem(sys.modules, "user_helpers", raising=False)

    def fingerprint(step: int) -> str:
        text = f"def clean(x): return x + {step}\nclass Cleaner:\n    def clean(self, x): return x + {step}\n"
        helpers = user_module(tmp_path, "user_helpers", text)
        cleaner = helpers.Cleaner()
        names = {
            "helpers": helpers,
            "CLEAN": helpers.clean,
            "PARTIAL": functools.partial(helpers.clean),
            "OBJECT": cleaner,
            "METHOD": cleaner.clean,
            "UDF": F.udf(helpers.clean, IntegerType()),
        }
        return function_fingerprint(compiled(use, **names))

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)


def test_functions_of_a_notebook_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's module has no file; its functions are the user's all the same."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def build(step: int) -> Callable[..., Any]:
        exec(f"def helper(x): return x + {step}\ndef build(x): return helper(x)", main.__dict__)
        function: Callable[..., Any] = main.__dict__["build"]
        return function

    assert function_fingerprint(build(1)) != function_fingerprint(build(2))


def test_a_library_counts_by_its_name() -> None:
    """Functions of installed distributions are not followed into; their versions count."""
    source = "def build(x):\n    return F.sum(x)\n"
    assert function_fingerprint(compiled(source, F=F)) == function_fingerprint(compiled(source, F=F))
    assert function_fingerprint(helper) == function_fingerprint(helper)


def test_files_count_by_path_size_and_time(spark: SparkSession, tmp_path: Path) -> None:
    """A source of files is the same until one of them changes."""
    file = tmp_path / "a.csv"
    file.write_text("k,v\n1,2\n")

    def stamp() -> str:
        return source_fingerprint(spark.read.csv(str(tmp_path), schema="k int, v int", header=True))

    first = stamp()
    assert stamp() == first
    os.utime(file, ns=(1, 1))
    touched = stamp()
    assert touched != first
    (tmp_path / "b.csv").write_text("k,v\n3,4\n")
    assert stamp() not in (first, touched)


def test_rows_that_cannot_be_seen_are_unlike_anything(spark: SparkSession) -> None:
    """A range is known by its plan; an RDD of the driver's is not."""
    assert source_fingerprint(spark.range(5)) == source_fingerprint(spark.range(5))
    assert source_fingerprint(spark.range(5)) != source_fingerprint(spark.range(6))
    hidden = spark.createDataFrame(spark.sparkContext.parallelize([(1,)]), "a int")
    assert source_fingerprint(hidden) != source_fingerprint(hidden)


def test_reason_names_what_cannot_be_compared() -> None:
    """A fingerprint that is unlike any other comes with one reason."""
    looked = look_at(compiled("def build():\n    return next(ROWS)\n", ROWS=(row for row in "ab")))
    assert is_unique(looked.fingerprint)
    assert looked.world == ("an object of builtins.generator, which cannot be compared",)
    looked = look_at(helper)
    assert (looked.fingerprint, looked.world) == (function_fingerprint(helper), ())
