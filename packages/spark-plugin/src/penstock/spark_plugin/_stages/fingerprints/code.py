"""Fingerprints of functions: equal only where nothing that they run, or name, has changed.

They err on the safe side: what cannot be distinguished reliably gets a fingerprint that nothing else has.
"""

import contextlib
import enum
import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import logging
import sys
import threading
import types
import typing
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession

from penstock.spark_plugin._stages.fingerprints.libraries import OF_SPARK, is_a_librarys, version_of, version_of_module
from penstock.spark_plugin._stages.fingerprints.names import Names, names_in
from penstock.spark_plugin._stages.fingerprints.world import Part, World, place_of

_log = logging.getLogger(__name__)

_PLAIN = (str, int, float, bool, complex, type(None), type(Ellipsis), type(NotImplemented))
# They hold nothing that a result depends on.
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_PICKLE_PROTOCOL = 4
_MISSING = "missing"
_UNIQUE = "unknown-"
# Methods of a function of tables, and of a writer of rows.
_CALLED_BY_SPARK = frozenset({"eval", "terminate", "analyze", "open", "process", "close"})
# Their classes call only methods that they have themselves.
_WITHOUT_CALLS = frozenset({"builtins", "abc", "collections", "collections.abc", "enum", "typing"})
# Modules of objects that represent rows elsewhere.
_OF_ROWS = ("py4j.", "pyspark.sql.connect.plan")
_UDFS = ("UserDefinedFunction", "UserDefinedTableFunction")
_OF_A_UDF = ("func", "_returnType", "evalType", "deterministic", "_name")
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


def look_at(function: Callable[..., Any], *, shows_in_plan: bool = False) -> Looked:
    """The fingerprint of a function, and what the function reads outside of the pipeline.

    The fingerprint has its code, defaults, closure, and the functions, classes, modules and values that it names. They
    are followed as deep as they go in the user's own files; installed distributions count by their versions. Comments
    and line numbers do not count, except in modules that are named as a whole.

    Args:
        function: The function.
        shows_in_plan: Whether the function runs on the driver, and all that it does is in the plan that it gives. Then
            objects that cannot be compared, such as a client or a Column, count by their class.
    """
    world = World()
    seen = _Seen(world, shows_in_plan=shows_in_plan)
    try:
        if isinstance(function, types.FunctionType):
            # A function of a pipeline is the user's, even when it was installed.
            of_spark = str(function.__globals__.get("__name__", "")).partition(".")[0] in OF_SPARK
            found = _function(function, seen, reads=not of_spark)
        else:
            found = _value(function, seen)
    except (_UnknownError, RecursionError) as error:
        reason = str(error) if isinstance(error, _UnknownError) else "code that is nested too deeply to be compared"
        name = getattr(function, "__qualname__", type(function).__qualname__)
        _log.info("the stage of %s is computed in each run: it depends on %s", name, reason)
        world.unknown(reason)
        found = unique()
    return Looked(found, world.reasons)


class _UnknownError(Exception):
    """A value cannot be compared with what it will be in another process."""

    def __init__(self, value: object) -> None:
        kind = type(value)
        super().__init__(f"an object of {kind.__module__}.{kind.__qualname__}, which cannot be compared")


class _Seen:
    """Numbers objects in the order of meeting them; keeps them alive, so that no other gets their id."""

    def __init__(self, world: World | None = None, *, shows_in_plan: bool = False) -> None:
        self._numbers: dict[int, tuple[int, object]] = {}
        self.shows_in_plan = shows_in_plan
        self.world = world if world is not None else World()
        """What is read outside by what was met."""

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
    try:
        return _compared(value, seen)
    except _UnknownError:
        if not seen.shows_in_plan:
            raise
        return f"{kind.__module__}.{kind.__qualname__}"


def _compared(value: Any, seen: _Seen) -> str:
    if isinstance(value, DataFrame) or type(value).__module__.startswith(_OF_ROWS):
        raise _UnknownError(value)
    if isinstance(value, types.ModuleType):
        seen.world.hand_over(value)
        return _root(value, seen)
    if any(value is one for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
        return "stream"
    number = seen.number(value)
    if number is not None:
        seen.world.again(value)
        return f"again:{number}"
    with seen.world.inside(value):
        return _described(value, seen)


def _described(value: Any, seen: _Seen) -> str:
    kind = type(value)
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        library = version_of(value)
        if library is not None or isinstance(value, types.BuiltinFunctionType):
            read = seen.world.meet(value)
            if library is not None or read is not None:
                return f"library:{read or value.__qualname__}:{library}"
    if isinstance(value, types.FunctionType):
        return _function(value, seen, reads=not is_a_librarys(value))
    if isinstance(value, type):
        return _class(value, seen)
    if kind in (tuple, list):
        return f"{kind.__name__}:" + digest(*(_value(one, seen) for one in value))
    if kind in (frozenset, set):
        return "set:" + digest(
            *sorted(_value(one, _Seen(seen.world, shows_in_plan=seen.shows_in_plan)) for one in value)
        )
    if kind in (dict, types.MappingProxyType):
        return "dict:" + digest(*(f"{_value(key, seen)}={_value(one, seen)}" for key, one in value.items()))
    if kind is functools.partial:
        return "partial:" + digest(*(_value(one, seen) for one in (value.func, value.args, value.keywords)))
    if isinstance(value, types.MethodType):
        if version_of(value.__func__) is not None and (read := seen.world.meet(value)) is not None:
            return f"library:{read}"
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
    if version_of(kind) is not None and (read := seen.world.meet(value)) is not None:
        return f"library:{read}"
    return _instance(value, seen)


def _root(value: Any, seen: _Seen) -> str:
    """As `_value`, for what code names: which names of a module it takes is known."""
    if not isinstance(value, types.ModuleType):
        return _value(value, seen)
    number = seen.number(value)
    if number is not None:
        return f"again:{number}"
    library = version_of(value)
    if library is not None:
        return f"library::{library}"
    with seen.world.aside():  # what is used of it is looked at where it is named
        return _module(value, seen)


def _function(function: types.FunctionType, seen: _Seen, *, reads: bool) -> str:
    code, scope, names = function.__code__, function.__globals__, names_in(function.__code__)
    modules = {name: _imported(name) for name in sorted(names.modules(scope.get("__package__") or ""))}
    roots = {f"import {name}": one for name, one in modules.items()}
    stored = names.stored_globals
    roots |= {name: scope[name] for name in names.all - stored if name in scope}
    roots |= {name: _first_look(_owner(function), scope, name, seen.world) for name in stored}
    cells: dict[str, object] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            cells[name] = cell.cell_contents
    roots |= {f"cell {name}": value for name, value in cells.items()}
    place, seen.world.place = seen.world.place, place_of(function)
    if reads:
        seen.world.read(function, names, cells)
        for name, is_module in names.modules(scope.get("__package__") or "").items():
            if is_module and modules[name] == _MISSING:
                seen.world.missing(name)
    found = digest(
        "function",
        _code(code),
        _value(function.__defaults__ or (), seen),
        _value(function.__kwdefaults__ or {}, seen),
        # What a decorator wraps, and what `singledispatch` chooses from, may hide in objects of a library.
        *(_value(getattr(function, name, None), seen) for name in ("__wrapped__", "registry")),
        *(f"{name}={_root(one, seen)}" for name, one in sorted(_named(names, roots, seen.world).items())),
    )
    seen.world.place = place
    return found


_FIRST_LOOKS: weakref.WeakKeyDictionary[object, dict[str, tuple[str, Part]]] = weakref.WeakKeyDictionary()
_LOOKING = threading.RLock()


def _first_look(owner: object, scope: Mapping[str, object], name: str, world: World) -> str:
    """What a name in an owner's scope stood for when this process first looked; empty if that is unknown.

    For what a function sets itself: it is an input by what it begins with, but not a counter by how far it has come,
    nor a table or a client by whether it was made yet.
    """
    with _LOOKING, world.aside() as part:
        known = _FIRST_LOOKS.setdefault(owner, {})
        if name not in known:
            known[name] = "", part  # a function may come to itself by what it sets
            if scope.get(name) is not None:
                with contextlib.suppress(_UnknownError, RecursionError):
                    known[name] = _root(scope[name], _Seen(world)), part
        found, part = known[name]
    world.add(part)
    return found


def _owner(function: types.FunctionType) -> object:
    """The owner of a function's globals: its module, or the function itself if it has none, as after unpickling."""
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    return module if module is not None and vars(module) is function.__globals__ else function


def _named(names: Names, roots: Mapping[str, object], world: World) -> dict[str, object]:
    """The values of names, and of each attribute of a user's module or function among them.

    As `from module import name` counts. Whose attribute a name is meant to be is not looked at: a module may be reached
    by other names than its own.
    """
    found = dict(roots)
    # In an order that is the same in each process: a module that is found twice is looked into once.
    pending = sorted(roots.items())
    looked_into: set[int] = set()
    for path, one in pending:
        if not isinstance(one, types.ModuleType | types.FunctionType) or id(one) in looked_into:
            continue
        looked_into.add(id(one))
        if version_of(one) is not None or _is_extension(one):
            continue
        scope = vars(one)
        kept: set[str] = set()
        if isinstance(one, types.FunctionType):
            kept = names.stored_attributes | names_in(one.__code__).stored_attributes
        attributes = {
            f"{path}.{name}": _first_look(one, scope, name, world) if name in kept else scope[name]
            for name in sorted(names.all)
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
            return _MISSING
        library = version_of_module(spec.name, spec.origin)
        if library is not None:
            return f"library::{library}"
    try:
        return importlib.import_module(name)
    except Exception:  # as in the code that names it
        return _MISSING


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
    """The code of a function, or of a class with its methods, alone: what they name is in the same file."""
    if isinstance(value, types.FunctionType):
        return _code(value.__code__)
    members = sorted(vars(value).items()) if isinstance(value, type) else ()
    return digest(*(f"{name}={_own_code(one)}" for name, one in members if name != "__class__"))


def _class(value: type, seen: _Seen) -> str:
    fields = vars(value).get("__dataclass_fields__", {}).values()
    parts = [_value(type(value), seen), *(_value(base, seen) for base in value.__bases__)]
    with seen.world.aside():  # types that annotations name do not run
        parts += [_value(_annotations(value), seen), *(_value((one.name, one.type), seen) for one in fields)]
    parts += [_value(one.metadata, seen) for one in fields]
    for name, one in sorted(vars(value).items()):
        if name in _NO_PART_OF_A_CLASS or isinstance(one, types.MemberDescriptorType | types.GetSetDescriptorType):
            continue
        with seen.world.inside(one, "" if _is_called_by_others(value, name) else name):
            if isinstance(one, staticmethod | classmethod):
                parts.append(f"{name}={_value(one.__func__, seen)}")
            elif isinstance(one, property):
                parts += [f"{name}={_value(part, seen)}" for part in (one.fget, one.fset, one.fdel)]
            elif isinstance(one, functools.cached_property):  # it has a lock
                parts.append(f"{name}={_value(one.func, seen)}")
            else:
                parts.append(f"{name}={_value(one, seen)}")
    return digest("class", value.__qualname__, *parts)


def _is_called_by_others(value: type, name: str) -> bool:
    """Whether a method may be called by code that is not followed: Python's, Spark's, or the library of a base class.

    A library may call more than its base class has: scikit-learn calls `transform`, which `BaseEstimator` lacks.
    """
    bases = [base for base in value.__mro__ if base is not object and version_of(base) is not None]
    return (
        name.startswith("__")
        or name in _CALLED_BY_SPARK
        or any(name in vars(base) or base.__module__ not in _WITHOUT_CALLS for base in bases)
    )


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
    if module is None or (version_of(module) is None and not _is_extension(module)):
        raise _UnknownError(value)
    return f"{name}:{_root(module, seen)}"


def _is_extension(module: object) -> bool:
    """Whether it is compiled: all of it counts by its file."""
    return str(getattr(module, "__file__", "")).endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def module_imports(code: types.CodeType, package: str) -> list[str]:
    """What the functions of a module import, and what the module itself imported; not imports for types alone."""
    inner: set[str] = set()
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            inner |= names_in(one).modules(package).keys()
    return sorted(inner.union(name for name in names_in(code, nested=False).modules(package) if name in sys.modules))
