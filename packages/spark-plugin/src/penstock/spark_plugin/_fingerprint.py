"""Fingerprints of functions and DataFrames: equal only where the result is the same.

They err on the safe side: what cannot be told apart reliably gets a fingerprint that nothing else has, and runs again.
"""

import hashlib
import inspect
import types
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyspark
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

_PLAIN = (str, int, float, bool, bytes, complex, type(None), type(Ellipsis))
_SESSION_SETTINGS = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
)
# Leaves of a plan whose text says all about their rows; files are looked up one by one.
_KNOWN_LEAVES = frozenset({"LocalRelation", "Range", "OneRowRelation", "LogicalRelation"})


def digest(*parts: str) -> str:
    """One short text for many, in their order."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(f"{len(part)}:".encode())
        hashed.update(part.encode("utf-8", "surrogatepass"))
    return hashed.hexdigest()[:32]


def unique() -> str:
    """A fingerprint that nothing else has."""
    return f"unknown-{uuid.uuid4().hex}"


def function_fingerprint(function: Callable[..., Any]) -> str:
    """Of a function: its code, defaults, closure, and the functions and values that it names, as deep as they go.

    Comments, line numbers and the file's place do not count. Libraries count by their version (pyspark) or not at all.
    """
    return digest(pyspark.__version__, _value(function, _Seen()))


def session_fingerprint(spark: SparkSession) -> str:
    """Of the settings of a session that change results."""
    return digest(*(f"{name}={spark.conf.get(name, None)}" for name in _SESSION_SETTINGS))


def source_fingerprint(frame: DataFrame) -> str:
    """Of what a bounded source reads: its plan, and the path, size and modification time of each of its files.

    Unique for a source whose rows cannot be seen from here: a database, a topic, an RDD.
    """
    try:
        plan = frame._jdf.queryExecution().analyzed()
        leaves = plan.collectLeaves()
        names = [leaves.apply(index).nodeName() for index in range(leaves.size())]
    except AttributeError:  # a Spark Connect frame
        return unique()
    if not all(name.split()[0] in _KNOWN_LEAVES for name in names):
        return unique()
    files = frame.inputFiles()
    relations = sum(name.startswith("LogicalRelation") for name in names)
    if relations and not files:
        return unique()
    stamps = [_file_stamp(url) for url in sorted(files)]
    if any(stamp is None for stamp in stamps):
        return unique()
    return digest(frame._jdf.schema().json(), _plan_text(frame), *(stamp or "" for stamp in stamps))


def _plan_text(frame: DataFrame) -> str:
    conf = frame.sparkSession.conf
    before = conf.get("spark.sql.debug.maxToStringFields")
    # The default leaves columns out after the 25th.
    conf.set("spark.sql.debug.maxToStringFields", "100000")
    try:
        return str(frame._jdf.queryExecution().analyzed().canonicalized().toString())
    finally:
        conf.set("spark.sql.debug.maxToStringFields", before or "25")


def _file_stamp(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        return None
    path = Path(unquote(parts.path))
    try:
        status = path.stat()
    except OSError:
        return None
    return f"{path}|{status.st_size}|{status.st_mtime_ns}"


class _Seen:
    """Numbers objects in the order of meeting them; keeps them alive, so that no other gets their id."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, object]] = {}

    def number(self, value: object) -> int | None:
        """The object's number if it was met before."""
        known = self._numbers.get(id(value))
        if known is None:
            self._numbers[id(value)] = (len(self._numbers), value)
            return None
        return known[0]


def _value(value: object, seen: _Seen) -> str:
    """A text for a value that a function depends on."""
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, types.ModuleType):
        return f"module:{value.__name__}"
    if isinstance(value, SparkSession):
        return "session"
    number = seen.number(value)
    if number is not None:
        return f"again:{number}"
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type) and _is_library(value):
        return f"library:{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}:" + digest(*(_value(one, seen) for one in value))
    if isinstance(value, frozenset | set):
        return "set:" + digest(*sorted(_value(one, _Seen()) for one in value))
    if isinstance(value, dict):
        return "dict:" + digest(*(f"{_value(key, seen)}={_value(one, seen)}" for key, one in value.items()))
    if isinstance(value, type):
        return _class(value)
    return _pickled(value)


def _function(function: types.FunctionType, seen: _Seen) -> str:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    return digest(
        "function",
        _code(function.__code__),
        _value(function.__defaults__ or (), seen),
        _value(function.__kwdefaults__ or {}, seen),
        *(f"{name}={_cell(cell, seen)}" for name, cell in sorted(cells.items())),
        *(f"{name}={_value(one, seen)}" for name, one in sorted(named.items())),
    )


def _cell(cell: types.CellType, seen: _Seen) -> str:
    try:
        return _value(cell.cell_contents, seen)
    except ValueError:  # not filled yet
        return "empty"


def _names(code: types.CodeType) -> set[str]:
    """Names that code looks up in its globals, nested functions and lambdas included; attributes are among them."""
    names = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            names |= _names(one)
    return names


def _code(code: types.CodeType) -> str:
    constants = [_code(one) if isinstance(one, types.CodeType) else _value(one, _Seen()) for one in code.co_consts]
    return digest("code", code.co_code.hex(), *constants, "|", *code.co_names, "|", *code.co_varnames)


def _class(value: type) -> str:
    try:
        return digest("class", value.__qualname__, inspect.getsource(value))
    except (OSError, TypeError):
        return unique()


def _pickled(value: object) -> str:
    try:
        return digest("pickled", type(value).__qualname__, cloudpickle.dumps(value).hex())  # type: ignore[no-untyped-call]  # has no types
    except Exception:
        # Whatever refuses to be pickled cannot be compared either.
        return unique()


def _is_library(value: object) -> bool:
    """Whether a value comes with an installed distribution or Python itself, not from the user's own files."""
    module = inspect.getmodule(value)
    origin = getattr(module, "__file__", None)
    if module is None:
        return False
    return origin is None or "site-packages" in origin or origin.startswith(_PYTHON_HOME)


_PYTHON_HOME = str(Path(inspect.__file__).parent)
