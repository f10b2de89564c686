"""Fingerprints of functions: equal only where nothing that they run, or name, has changed.

They err on the safe side: what cannot be distinguished reliably gets a fingerprint that nothing else has.
"""

import contextlib
import dis
import enum
import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import logging
import sys
import sysconfig
import threading
import types
import typing
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pyspark
from pyspark import cloudpickle
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

_PLAIN = (str, int, float, bool, complex, type(None), type(Ellipsis), type(NotImplemented))
# They hold nothing that a result depends on.
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_PICKLE_PROTOCOL = 4
_UNIQUE = "unknown-"
# Of what stands for rows that are not here.
_OF_ROWS = ("py4j.", "pyspark.sql.connect.plan")
_UDFS = ("UserDefinedFunction", "UserDefinedTableFunction")
_OF_A_UDF = ("func", "_returnType", "evalType", "deterministic", "_name")
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]
_NO_PART_OF_A_CLASS = frozenset(
    {
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__firstlineno__",
        # Looked at by themselves.
        "__dataclass_fields__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        # What they say is in the methods.
        "__dataclass_params__",
        "__slots__",
        "__static_attributes__",
        # Made as it is used: when the first instance is pickled, when flags are combined.
        "__slotnames__",
        "_value2member_map_",
        "_abc_impl",
    }
)


def digest(*parts: str) -> str:
    """One short text for many, in their order."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(f"{len(part)}:".encode())
        hashed.update(part.encode("utf-8", "surrogatepass"))
    return hashed.hexdigest()[:32]


def unique() -> str:
    """A fingerprint that nothing else has."""
    return f"{_UNIQUE}{uuid.uuid4().hex}"


def is_unique(fingerprint: str) -> bool:
    """Whether it is one of `unique`, and says nothing when it is compared with another."""
    return fingerprint.startswith(_UNIQUE)


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found in a function."""

    fingerprint: str
    """Equal for two functions only if nothing that they run, or name, differs. `unique` where it cannot be compared."""
    world: tuple[str, ...]
    """Reasons why the function's results may differ although its fingerprint is the same: what it reads outside of the
    pipeline, and where. Empty if it reads nothing."""


def look_at(function: Callable[..., Any]) -> Looked:
    """The fingerprint of a function, and what the function reads outside of the pipeline.

    The fingerprint has its code, defaults, closure, and the functions, classes, modules and values that it names. They
    are followed as deep as they go in the user's own files; installed distributions count by their versions. Comments
    and line numbers do not count, except in modules that are named as a whole.
    """
    seen = _Seen()
    try:
        # A function of a pipeline is the user's, even when it was installed.
        found = _function(function, seen) if isinstance(function, types.FunctionType) else _value(function, seen)
    except (_UnknownError, RecursionError) as error:
        reason = str(error) if isinstance(error, _UnknownError) else "code that is nested too deeply to be compared"
        name = getattr(function, "__qualname__", type(function).__qualname__)
        _log.info("the stage of %s is computed in each run: it depends on %s", name, reason)
        return Looked(unique(), (reason,))
    return Looked(found, ())


def function_fingerprint(function: Callable[..., Any]) -> str:
    """The fingerprint of a function: see `look_at`."""
    return look_at(function).fingerprint


class _UnknownError(Exception):
    """A value cannot be compared with what it will be in another process."""

    def __init__(self, value: object) -> None:
        kind = type(value)
        super().__init__(f"an object of {kind.__module__}.{kind.__qualname__}, which cannot be compared")


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


def _value(value: Any, seen: _Seen) -> str:
    """A text for a value that a function depends on."""
    kind = type(value)  # of a subclass the code counts, too
    if kind in _PLAIN:
        return f"{kind.__name__}:{value!r}"
    if kind is bytes:
        return f"bytes:{hashlib.sha256(value).hexdigest()}"
    if isinstance(value, SparkSession) or kind.__module__ == "pyspark.sql.connect.session":
        return "session"
    if isinstance(value, DataFrame) or kind.__module__.startswith(_OF_ROWS):
        raise _UnknownError(value)
    number = seen.number(value)
    if number is not None:
        return f"again:{number}"
    if isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type):
        library = _library(value)
        if library is not None:
            return f"library:{getattr(value, '__qualname__', '')}:{library}"
    if isinstance(value, types.ModuleType):
        return _module(value, seen)
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, type):
        return _class(value, seen)
    if kind in (tuple, list):
        return f"{kind.__name__}:" + digest(*(_value(one, seen) for one in value))
    if kind in (frozenset, set):
        return "set:" + digest(*sorted(_value(one, _Seen()) for one in value))
    if kind in (dict, types.MappingProxyType):
        return "dict:" + digest(*(f"{_value(key, seen)}={_value(one, seen)}" for key, one in value.items()))
    if kind is functools.partial:
        return "partial:" + digest(*(_value(one, seen) for one in (value.func, value.args, value.keywords)))
    if isinstance(value, types.MethodType):
        return "method:" + digest(_value(value.__func__, seen), _value(value.__self__, seen))
    if isinstance(value, Broadcast):
        try:
            return "broadcast:" + _value(value.value, seen)
        except Exception as error:  # it was destroyed
            raise _UnknownError(value) from error
    if kind.__name__ in _UDFS and kind.__module__.startswith("pyspark.sql."):
        # One that was used holds what Spark has made of it, too.
        return "udf:" + digest(*(_value(getattr(value, name, None), seen) for name in _OF_A_UDF))
    if isinstance(value, _LOCKS):
        return f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, enum.Enum):
        return "enum:" + digest(_value(kind, seen), _value(vars(value), seen))
    if isinstance(value, typing.TypeVar | typing.ParamSpec | typing.TypeVarTuple):
        return f"{kind.__name__}:{value.__name__}"
    if isinstance(value, typing.ForwardRef):  # it keeps what it was found to be
        return f"{kind.__name__}:{value.__forward_arg__}"
    return _instance(value, seen)


def _function(function: types.FunctionType, seen: _Seen) -> str:
    code, scope = function.__code__, function.__globals__
    package = scope.get("__package__") or ""
    roots = {f"import {name}": _imported(name) for name in imports_of(code, package)}
    stored = _stored_by(code, "STORE_GLOBAL")
    roots |= {name: scope[name] for name in _names(code) - stored if name in scope}
    roots |= {name: _first_look(_owner(function), scope, name) for name in stored}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            roots[f"cell {name}"] = cell.cell_contents
    return digest(
        "function",
        _code(code),
        _value(function.__defaults__ or (), seen),
        _value(function.__kwdefaults__ or {}, seen),
        # What a decorator wraps, and what `singledispatch` chooses from, may hide in objects of a library.
        *(_value(getattr(function, name, None), seen) for name in ("__wrapped__", "registry")),
        *(f"{name}={_value(one, seen)}" for name, one in sorted(_named(code, roots).items())),
    )


_FIRST_LOOKS: weakref.WeakKeyDictionary[object, dict[str, str]] = weakref.WeakKeyDictionary()
_LOOKING = threading.RLock()


def _first_look(owner: object, scope: Mapping[str, object], name: str) -> str:
    """What a name in an owner's scope stood for when this process first looked; empty if that is unknown.

    For what a function sets itself: it is an input by what it begins with, but not a counter by how far it has come,
    nor a table or a client by whether it was made yet.
    """
    with _LOOKING:
        known = _FIRST_LOOKS.setdefault(owner, {})
        if name not in known:
            known[name] = ""  # a function may come to itself by what it sets
            if scope.get(name) is not None:
                with contextlib.suppress(_UnknownError, RecursionError):
                    known[name] = _value(scope[name], _Seen())
        return known[name]


def _owner(function: types.FunctionType) -> object:
    """Of a function's globals: its module; itself where there is none, as of a function that was pickled."""
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    return module if module is not None and vars(module) is function.__globals__ else function


def _named(code: types.CodeType, roots: Mapping[str, object]) -> dict[str, object]:
    """What names stand for, and each attribute among them of a user's module or function.

    As `from module import name` counts. Whose attribute a name is meant to be is not looked at: a module may be reached
    by other names than its own.
    """
    names, stored = sorted(_names(code)), _stored_by(code, "STORE_ATTR")
    found = dict(roots)
    # In an order that is the same in each process: a module that is found twice is looked into once.
    pending = sorted(roots.items())
    looked_into: set[int] = set()
    for path, one in pending:
        if not isinstance(one, types.ModuleType | types.FunctionType) or id(one) in looked_into:
            continue
        looked_into.add(id(one))
        if _library(one) is not None or _is_extension(one):
            continue
        scope = vars(one)
        kept: set[str] = set()
        if isinstance(one, types.FunctionType):
            kept = stored | _stored_by(one.__code__, "STORE_ATTR")
        attributes = {
            f"{path}.{name}": _first_look(one, scope, name) if name in kept else scope[name]
            for name in names
            # What the first call sets is not there before: to come is not a change either.
            if name in scope or name in kept
        }
        found |= attributes
        pending += attributes.items()
    return found


def _is_part(module: object, package: object) -> bool:
    names = getattr(module, "__name__", ""), getattr(package, "__name__", "")
    return isinstance(module, types.ModuleType) and names[0].startswith(f"{names[1]}.")


def _imported(name: str) -> object:
    """A module by its name, or what is said of it: the user's are imported, as the code does that names them.

    Libraries are not.
    """
    # To find a module, Python imports the package that it is in.
    for one in dict.fromkeys((name.partition(".")[0], name)) if name not in sys.modules else ():
        try:
            spec = importlib.util.find_spec(one)
        except (ImportError, AttributeError, ValueError):
            spec = None
        if spec is None:
            return "missing"
        library = _library_of(spec.name, spec.origin)
        if library is not None:
            return f"library::{library}"
    try:
        return importlib.import_module(name)
    except Exception:  # as in the code that names it
        return "missing"


def _names(code: types.CodeType) -> set[str]:
    """Names that code looks up in its globals, nested functions and lambdas included; attributes are among them."""
    names = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            names |= _names(one)
    return names


def _stored_by(code: types.CodeType, operation: str) -> set[str]:
    """Names that code gives values by an operation, nested functions and lambdas included."""
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname == operation}
    inner = (_stored_by(one, operation) for one in code.co_consts if isinstance(one, types.CodeType))
    return names.union(*inner)


def _code(code: types.CodeType) -> str:
    constants = [_code(one) if isinstance(one, types.CodeType) else _value(one, _Seen()) for one in code.co_consts]
    # What an error is caught in is in a table of its own.
    instructions = code.co_code.hex(), code.co_exceptiontable.hex()
    # Without them `*columns` is `columns`.
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = (*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars)
    return digest("code", *instructions, *map(str, arguments), *constants, "|", *names)


def _module(module: types.ModuleType, seen: _Seen) -> str:
    """A module of the user's: its file, its code as it was imported, and what it takes from others."""
    text = b""
    if module.__file__ is not None or not hasattr(module, "__path__"):  # a folder may do without a file
        try:
            text = Path(module.__file__ or "").read_bytes()
        except OSError as error:
            raise _UnknownError(module) from error
    try:
        imported = module_imports(compile(text, "", "exec", dont_inherit=True), module.__package__ or "")
    except (SyntaxError, ValueError):  # no text: an extension
        imported = []
    taken = (
        # A file may have been edited since then.
        f"{name}={_own_code(one)}" if getattr(one, "__module__", None) == module.__name__ else _value(one, seen)
        for name, one in sorted(vars(module).items())
        # Which modules a package has depends on who has imported them by now.
        if isinstance(one, types.ModuleType | types.FunctionType | type) and not _is_part(one, module)
    )
    imports = (f"{name}={_value(_imported(name), seen)}" for name in imported)
    return digest("module", module.__name__, text.hex(), *imports, *taken)


def _own_code(value: object) -> str:
    """Of a function, or a class with its methods: their code alone, as what they name is in the same file."""
    if isinstance(value, types.FunctionType):
        return _code(value.__code__)
    members = sorted(vars(value).items()) if isinstance(value, type) else ()
    return digest(*(f"{name}={_own_code(one)}" for name, one in members if name != "__class__"))


def _class(value: type, seen: _Seen) -> str:
    fields = vars(value).get("__dataclass_fields__", {}).values()
    parts = [
        _value(type(value), seen),
        *(_value(base, seen) for base in value.__bases__),
        _value(_annotations(value), seen),
        *(_value((one.name, one.type, one.metadata), seen) for one in fields),
    ]
    for name, one in sorted(vars(value).items()):
        if name in _NO_PART_OF_A_CLASS or isinstance(one, types.MemberDescriptorType | types.GetSetDescriptorType):
            continue
        if isinstance(one, staticmethod | classmethod):
            parts.append(f"{name}={_value(one.__func__, seen)}")
        elif isinstance(one, property):
            parts += [f"{name}={_value(part, seen)}" for part in (one.fget, one.fset, one.fdel)]
        elif isinstance(one, functools.cached_property):  # it has a lock
            parts.append(f"{name}={_value(one.func, seen)}")
        else:
            parts.append(f"{name}={_value(one, seen)}")
    return digest("class", value.__qualname__, *parts)


def _annotations(value: type) -> Mapping[str, object]:
    try:
        return inspect.get_annotations(value)
    except Exception as error:
        if sys.version_info < (3, 14):
            raise _UnknownError(value) from error
        # They are evaluated here, and may name what is there for type checkers alone.
        annotationlib: Any = importlib.import_module("annotationlib")
        texts: Mapping[str, object] = annotationlib.get_annotations(value, format=annotationlib.Format.STRING)
        return texts


def _instance(value: Any, seen: _Seen) -> str:
    """An object by what it would be pickled as: whatever refuses that cannot be compared either."""
    try:
        reduce = cloudpickle.CloudPickler.dispatch_table.get(type(value))
        reduced = reduce(value) if reduce is not None else value.__reduce_ex__(_PICKLE_PROTOCOL)
        parts = [list(one) if isinstance(one, Iterator) else one for one in reduced]
    except Exception as error:
        raise _UnknownError(value) from error
    if isinstance(reduced, str):
        return _by_name(value, reduced, seen)
    return digest("instance", _value(type(value), seen), *(_value(one, seen) for one in parts))


def _by_name(value: object, name: str, seen: _Seen) -> str:
    """What is pickled by its name alone: a function with a cache, a new type or an alias of one, a library's object."""
    for stands_for in ("__wrapped__", "__supertype__", "__value__"):
        try:
            behind = getattr(value, stands_for)
        except AttributeError:
            continue
        except Exception as error:  # an alias of what is there for type checkers alone
            raise _UnknownError(value) from error
        return f"{name}:{_value(behind, seen)}"
    module = sys.modules.get(getattr(value, "__module__", None) or type(value).__module__)
    if module is None or (_library(module) is None and not _is_extension(module)):
        raise _UnknownError(value)
    return f"{name}:{_value(module, seen)}"


def _is_extension(module: object) -> bool:
    """Whether it is compiled: all of it counts by its file."""
    return str(getattr(module, "__file__", "")).endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def _library(value: Any) -> str | None:
    """Name and version of what comes with Python or an installed distribution; None for the user's own."""
    module = value if isinstance(value, types.ModuleType) else inspect.getmodule(value)
    if module is None or module.__name__ == "__main__":
        return None
    return _library_of(module.__name__, getattr(module, "__file__", None))


def _library_of(name: str, origin: str | None) -> str | None:
    if name in sys.builtin_module_names or origin in ("built-in", "frozen"):
        return f"{name}@{sys.version}"
    if origin is None:
        return None
    if name.partition(".")[0] == "pyspark":  # it may lie with the rest of Spark
        return f"{name}@{pyspark.__version__}"
    if "site-packages" in origin or "dist-packages" in origin:
        return f"{name}@{_versions().get(name.partition('.')[0], '')}"
    return f"{name}@{sys.version}" if origin.startswith(_STANDARD_LIBRARY) else None


@functools.cache
def _versions() -> dict[str, str]:
    """Versions of the distributions that give a top-level package."""
    return {
        package: ",".join(sorted(f"{name} {metadata.version(name)}" for name in set(distributions)))
        for package, distributions in metadata.packages_distributions().items()
    }


def imports_of(code: types.CodeType, package: str) -> list[str]:
    """Full names of what code imports, nested functions included; of `from a import b` also `a.b`, as it may be one.

    Args:
        code: Of a function.
        package: That relative names are of.
    """
    names: dict[str, None] = {}
    for name, level, from_list in _statements(code):
        try:
            full = importlib.util.resolve_name("." * level + name, package)
        except ImportError:  # when it runs, too
            full = "." * level + name
        names |= dict.fromkeys([full, *(f"{full}.{one}" for one in from_list if one != "*")])
    return sorted(names)


def module_imports(code: types.CodeType, package: str) -> list[str]:
    """Of a module that is imported: what its functions import, and what it did; not what it would for types alone."""
    inner = {name for one in code.co_consts if isinstance(one, types.CodeType) for name in imports_of(one, package)}
    return sorted(inner.union(name for name in imports_of(code, package) if name in sys.modules))


def _statements(code: types.CodeType) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Name, level and what is taken, of each import."""
    values: list[object] = []
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            level, from_list = values[-2:]
            yield (
                str(one.argval),
                level if isinstance(level, int) else 0,
                from_list if isinstance(from_list, tuple) else (),
            )
        elif one.opname != "EXTENDED_ARG":
            values = [*values[-1:], one.argval]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _statements(constant)
