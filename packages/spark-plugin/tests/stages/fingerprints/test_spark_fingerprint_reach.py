"""How far a function's fingerprint reaches: into what it imports as it runs, and into what its objects hold."""

import importlib
import logging
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark_plugin._stages.fingerprints.code import look_at


def function_fingerprint(function: Callable[..., Any]) -> str:
    return look_at(function).fingerprint


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., types.ModuleType]]:
    """Writes a module of the user's, and imports it again."""
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
    """Their versions count; one that is missing, as on a driver that only its executors need it on, is not an error."""
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
    """The caller of the function gets the error; the fingerprint is the same each time."""
    helpers("")
    (tmp_path / "user_rates.py").write_text("raise OSError('no such disk')\n")
    del sys.modules["user_rates"]
    text = "def build(x):\n    try:\n        import user_rates\n    except OSError:\n        return x\n"
    assert function_fingerprint(function(text)) == function_fingerprint(function(text))


@pytest.mark.parametrize(
    "text",
    [
        "def build(x): return x + rates.STEP\n",
        "def build(x): return map(lambda y: y + rates.STEP, x)\n",
        "def build(x): return rates.of(x)\n",
        "def build(x): return rates.Rate().of(x)\n",
        "def build(x): return x + package.user_rates.STEP\n",
        "def build(x):\n    import user_rates as r\n    return x + r.STEP\n",
        "def build(x):\n    from user_rates import STEP\n    return x + STEP\n",
        "def make(r):\n    return lambda x: x + r.STEP\nbuild = make(rates)\n",
    ],
)
def test_values_of_a_module_count_where_they_are_named(helpers: Callable[..., types.ModuleType], text: str) -> None:
    """As after `from module import STEP`: it may come from the environment, and the file is the same."""
    package = helpers("", "user_package/__init__.py")
    rates = helpers("STEP = OTHER = 0\ndef of(x): return x + STEP\nclass Rate:\n    def of(self, x): return x + STEP\n")
    vars(package)["user_rates"] = rates

    def fingerprint() -> str:
        return function_fingerprint(function(text, rates=rates, package=package))

    before = fingerprint()
    vars(rates)["OTHER"] = 1
    assert fingerprint() == before
    vars(rates)["STEP"] = 1
    assert fingerprint() != before


def test_what_a_module_holds_beside_what_is_named_need_not_be_comparable(
    helpers: Callable[..., types.ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    """A logger is known by its name, a lock by its kind; what cannot be pickled is like no other where it is named."""
    module = helpers(
        "import logging, threading\nlog = logging.getLogger('rates')\nlock = threading.Lock()\nrows = iter(())\n"
        "rows = (row for row in rows)\n"
    )

    def fingerprint(text: str, **names: Any) -> str:
        return function_fingerprint(function(text, **names))

    for text in ("def build(x): helpers.log.info(x)\n", "def build(x):\n    with helpers.lock: return x\n"):
        assert fingerprint(text, helpers=module) == fingerprint(text, helpers=module)
    caplog.set_level(logging.INFO)
    for text in ("def build(x): return next(helpers.rows)\n", "def build(x): return next(rows)\n"):
        names = {"helpers": module, "rows": module.rows}
        assert fingerprint(text, **names) != fingerprint(text, **names)
        assert (
            "the stage of build is computed in each run: it depends on an object of builtins.generator" in caplog.text
        )
        caplog.clear()


def test_what_a_function_sets_itself_is_not_an_input(helpers: Callable[..., types.ModuleType]) -> None:
    """Otherwise its stage would be computed again by the next run of the same process."""
    module = helpers("calls = 0\ndef clean(x):\n    global calls\n    calls += 1\n    return x\n")
    text = "def build(x): return helpers.clean(x)\n"
    before = function_fingerprint(function(text, helpers=module))
    module.clean(1)
    assert function_fingerprint(function(text, helpers=module)) == before

    text = "def build(x):\n    build.calls += 1\n    return build.client or x\n"
    build = function(text)
    vars(build).update(calls=0, client=None)
    before = function_fingerprint(build)
    build(1)
    assert function_fingerprint(build) == before


@pytest.mark.parametrize(
    "text",
    [
        "rate = {0}\ndef clean(x):\n    global rate\n    rate = rate + 0\n    return x * rate\n",
        "rate = {0}\ndef clean(x, given=None):\n    global rate\n    if given: rate = given\n    return x * rate\n",
        "def clean(x): return x * clean.rate\nclean.rate = {0}\n",
        "def rates(): ...\nrates.last = {0}\ndef clean(x): return x * rates.last\n",
        "def clean(x):\n    clean.rate += 0\n    return x * clean.rate\nclean.rate = {0}\n",
    ],
)
def test_what_a_function_begins_with_counts(helpers: Callable[..., types.ModuleType], text: str) -> None:
    """Also in a global that it sets on a path of its code, and in attributes of functions that are named."""

    def fingerprint(rate: int) -> str:
        return function_fingerprint(helpers(text.format(rate)).clean)

    assert fingerprint(2) == fingerprint(2)
    assert fingerprint(2) != fingerprint(3)


def test_what_a_function_makes_once_is_not_an_input(helpers: Callable[..., types.ModuleType]) -> None:
    """A table that is read by the first call, or a client that is there already and cannot be compared."""
    text = "def clean(x):\n    global table\n    table = table or {1: 2}\n    return table\n"
    lazy = helpers(f"table = None\n{text}")
    before = function_fingerprint(lazy.clean)
    lazy.clean(1)
    assert function_fingerprint(lazy.clean) == before
    client = helpers(f"table = (row for row in ())\n{text}")
    assert function_fingerprint(client.clean) == before


@pytest.mark.parametrize(
    "text",
    [
        "def rates():\n    if not hasattr(rates, 'cache'): rates.cache = {1: 2}\n    return rates.cache\n",
        "def rates():\n    try: return rates.cache\n    except AttributeError: rates.cache = (row for row in ())\n",
        "def rates():\n    rates.calls += 1\n    return rates.calls\nrates.calls = 0\n",
    ],
)
@pytest.mark.parametrize("reads", ["", "    print(rates.calls if hasattr(rates, 'calls') else rates.cache)\n"])
def test_what_a_function_keeps_from_its_first_call_is_not_an_input(
    helpers: Callable[..., types.ModuleType], text: str, reads: str
) -> None:
    """Neither of it, nor of a function that calls it and reads what it has kept."""
    module = helpers(f"{text}def clean(x):\n    rates()\n{reads}    return x\n")
    before = function_fingerprint(module.clean)
    module.clean(1)
    assert function_fingerprint(module.clean) == before


HIDDEN = {
    "cached": "import functools\n@functools.cache\ndef f(n): return f(n - 1) * {0} if n else 1\n",
    "cached method": "import functools\nclass f:\n    @functools.lru_cache(8)\n    def g(self): return {0}\n",
    "cached property": "import functools\nclass f:\n    @functools.cached_property\n    def g(self): return {0}\n",
    "dispatched by type": (
        "import functools\n@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: int): return {0}\n"
    ),
    "metaclass": "class M(type):\n    def rate(cls): return {0}\nclass f(metaclass=M): pass\n",
    "types of fields": "import dataclasses\n@dataclasses.dataclass\nclass f:\n    x: {0} < 2 and int or float\n",
    "metadata of fields": (
        "import dataclasses\n@dataclasses.dataclass\nclass f:\n"
        "    x: int = dataclasses.field(metadata={{'column': {0}}})\n"
    ),
    "types of a named tuple": "import typing\nclass f(typing.NamedTuple):\n    x: typing.Literal[{0}]\n",
    "positional patterns": "class f:\n    __match_args__ = ('a', 'b')[: {0}]\n",
    "deleter": "class f:\n    x = property(None, None, lambda self: {0})\n",
    "method of a text": "class T(str):\n    def g(self): return {0}\nf = T('x')\n",
    "method of a named tuple": (
        "import typing\nclass T(typing.NamedTuple):\n    x: int\n    def g(self): return {0}\nf = T(0)\n"
    ),
    "method of an enum": "import enum\nclass T(enum.Enum):\n    A = []\n    def g(self): return {0}\nf = T.A\n",
    "value of an enum": "import enum\nclass T(enum.Enum):\n    A = [{0}]\nf = T.A\n",
    "default of a dictionary": "import collections\nf = collections.defaultdict(lambda: {0})\n",
    "function of an object": "import types, functools\nf = types.SimpleNamespace(g=functools.cache(lambda: {0}))\n",
    "new type": "import typing\nclass T:\n    x = {0}\nf = typing.NewType('f', T)\n",
}


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
def test_code_behind_what_is_pickled_by_its_name_counts(helpers: Callable[..., types.ModuleType], text: str) -> None:
    """And what says how a class works: its class, the types of its fields, its patterns."""

    def fingerprint(value: int) -> str:
        return function_fingerprint(function("def build(x): return f\n", f=helpers(text.format(value)).f))

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)


@pytest.mark.parametrize(
    ("before", "after"),
    [("*x", "x"), ("x, /", "x"), ("x, *, y=1", "x, y=1"), ("**x", "x")],
)
def test_how_arguments_are_taken_counts(before: str, after: str) -> None:
    """Their names and the instructions may be the same."""
    text = "def helper({}): return x\ndef build(x): return helper(x)\n"
    assert function_fingerprint(function(text.format(before))) != function_fingerprint(function(text.format(after)))


def test_an_object_that_is_pickled_by_a_name_is_unlike_anything(helpers: Callable[..., types.ModuleType]) -> None:
    """What it does cannot be seen from there."""
    module = helpers("class Memo:\n    def __reduce__(self): return 'f'\nf = Memo()\n")
    build = function("def build(x): return f\n", f=module.f)
    assert function_fingerprint(build) != function_fingerprint(build)


PROGRAM = """
import dataclasses, enum, functools, typing
from penstock.spark_plugin._stages.fingerprints.code import look_at
T = typing.TypeVar("T")
class Color(enum.Enum):
    RED = {"a", "b", "c"}
@dataclasses.dataclass
class Row(typing.Generic[T]):
    x: typing.Annotated[int, {"d", "e", "f"}]
    y: "typing.Optional[Row]" = dataclasses.field(default=None, metadata={"names": {"g", "h", "i"}})
    def get(self) -> T: ...
class Held:
    def __init__(self):
        self.names, self.rows, self.apply = {"j", "k", "l"}, [Row(1)], lambda x: x + 1
@functools.cache
def cached(n): return cached(n - 1) if n else Color.RED
held = Held()
def build(x): return held.apply(x), cached(1)
print(look_at(build).fingerprint)
"""


def test_another_process_finds_the_same_fingerprint(tmp_path: Path) -> None:
    """Whatever order its sets have, and where its objects lie; also of what the script itself declares."""
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    found = {
        subprocess.run(
            [sys.executable, str(program)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(found) == 1
    assert "unknown" not in found.pop()


def test_pyspark_counts_by_its_version_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster it may lie with the rest of Spark, and not where distributions are installed."""
    module = types.ModuleType("pyspark.of_a_cluster")
    file = tmp_path / "of_a_cluster.py"
    module.__file__ = str(file)
    vars(module)["lock"] = threading.Lock()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    file.write_text("")
    build = function("def build(x): return F.lock\n", F=module)
    before = function_fingerprint(build)
    file.write_text("# a comment")
    assert function_fingerprint(build) == before
