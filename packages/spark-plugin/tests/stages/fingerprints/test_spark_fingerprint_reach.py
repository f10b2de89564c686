"""How far a function's fingerprint reaches: into what it imports as it runs, and into what its objects hold."""

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark_plugin._stages.fingerprints.code import function_fingerprint


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., types.ModuleType]]:
    """Writes a module of the user's, and imports it anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Two edits within a second have one time in a cached file.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("user_rates", "user_package", "user_package.inner", "user_package.rates")

    def write(text: str, file: str = "user_rates.py") -> types.ModuleType:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        for name in names:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))

    yield write
    for name in names:
        sys.modules.pop(name, None)


def function(text: str, **names: Any) -> Callable[..., Any]:
    scope = dict(names)
    exec(compile(text, "user.py", "exec"), scope)
    found: Callable[..., Any] = scope["build"]
    return found


@pytest.mark.parametrize(
    "text",
    [
        "def build(x):\n    from user_rates import clean\n    return clean(x)\n",
        "def build(x):\n    import user_rates as r\n    return r.clean(x)\n",
        "def build(x):\n    def f(y):\n        from user_rates import clean\n        return clean(y)\n    return f\n",
    ],
)
def test_what_is_imported_within_a_function_counts(helpers: Callable[..., types.ModuleType], text: str) -> None:
    """As udfs do it; whether it was imported before or not."""

    def fingerprint(step: int) -> str:
        helpers(f"def clean(x): return x + {step}\n")
        imported = function_fingerprint(function(text))
        del sys.modules["user_rates"]
        assert function_fingerprint(function(text)) == imported
        return imported

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)


def test_modules_of_packages_and_imports_of_imports_count(helpers: Callable[..., types.ModuleType]) -> None:
    """`from package import module`, relative ones, and those within the functions of a module that is named."""
    text = "def build(x):\n    from user_package import inner\n    return inner.clean(x)\n"

    def fingerprint(step: int) -> str:
        helpers("", "user_package/__init__.py")
        helpers("def clean(x):\n    from . import rates\n    return rates.of(x)\n", "user_package/inner.py")
        helpers(f"def of(x): return x + {step}\n", "user_package/rates.py")
        found = function_fingerprint(function(text))
        assert function_fingerprint(function(text)) == found
        return found

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)
    named = "def build(x):\n    return user_package.rates.of(x)\n"

    def by_name(step: int) -> str:
        helpers(f"def of(x): return x + {step}\n", "user_package/rates.py")
        return function_fingerprint(function(named, user_package=sys.modules["user_package"]))

    assert by_name(1) == by_name(1)
    assert by_name(1) != by_name(2)


def test_libraries_that_are_imported_within_a_function_are_not_run_for_it() -> None:
    """Their versions count; one that is not there, as on a driver that only its executors need it on, is no error."""
    text = "def build(x):\n    import wave\n    import there_is_no_such_module\n    from json import dumps\n"
    sys.modules.pop("wave", None)
    assert function_fingerprint(function(text)) == function_fingerprint(function(text))
    assert "wave" not in sys.modules
    assert function_fingerprint(function(text)) != function_fingerprint(function(text.replace("wave", "ast")))


HELD = "class Inner:\n    def rate(self): return {}\nclass Outer:\n    def __init__(self, *held): self.held = held\n"


@pytest.mark.parametrize(
    "make",
    [
        lambda module: module.Outer(module.Inner()),
        lambda module: module.Outer([{"deep": module.Inner()}]),
        lambda module: module.Outer(module.Inner().rate),
        lambda module: module.Outer(module.Inner),
        lambda module: types.SimpleNamespace(inner=module.Inner()),
    ],
    ids=["object", "containers", "method", "class", "object of a library's class"],
)
def test_the_code_of_what_an_object_holds_counts(helpers: Callable[..., types.ModuleType], make: Any) -> None:
    """An object of an object is pickled by the name of its class, whose methods are in a file of the user's."""
    text = "def build(x): return OBJECT.held[0].rate()\n"

    def fingerprint(rate: int) -> str:
        return function_fingerprint(function(text, OBJECT=make(helpers(HELD.format(rate)))))

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)


def test_what_is_tried_counts() -> None:
    """Two functions may have the same instructions, and differ in which of them an error is caught in."""
    both = "def build(a, b, c):\n    try:\n        a()\n        b()\n    except ValueError:\n        c()\n"
    one = "def build(a, b, c):\n    try:\n        a()\n    except ValueError:\n        c()\n    else:\n        b()\n"
    assert function_fingerprint(function(both)) != function_fingerprint(function(one))


def test_a_module_that_was_edited_and_not_imported_again_is_neither(
    helpers: Callable[..., types.ModuleType], tmp_path: Path
) -> None:
    """A result of the old code must not be used by a driver that has the new one."""
    text = "def build(x): return helpers.clean(x)\n"
    old = helpers("LIMIT = 1\ndef clean(x): return x + 1\n")
    before = function_fingerprint(function(text, helpers=old))
    (tmp_path / "user_rates.py").write_text("LIMIT = 1\ndef clean(x): return x + 2\n")
    between = function_fingerprint(function(text, helpers=old))
    after = function_fingerprint(function(text, helpers=helpers("LIMIT = 1\ndef clean(x): return x + 2\n")))
    assert len({before, between, after}) == 3


def test_what_is_imported_for_types_alone_is_not_run(helpers: Callable[..., types.ModuleType]) -> None:
    """It may be a script that does its work as it is imported."""
    helpers("")
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import user_rates\ndef clean(x): return x\n"
    module = helpers(text, "user_package/inner.py")
    found = function_fingerprint(function("def build(x): return helpers.clean(x)\n", helpers=module))
    assert "user_rates" not in sys.modules
    assert function_fingerprint(function("def build(x): return helpers.clean(x)\n", helpers=module)) == found


def test_an_import_that_fails_is_one_that_is_missing(helpers: Callable[..., types.ModuleType], tmp_path: Path) -> None:
    """Whoever calls the function is told; the fingerprint is the same each time."""
    helpers("")
    (tmp_path / "user_rates.py").write_text("raise OSError('no such disk')\n")
    del sys.modules["user_rates"]
    text = "def build(x):\n    try:\n        import user_rates\n    except OSError:\n        return x\n"
    assert function_fingerprint(function(text)) == function_fingerprint(function(text))
