"""Fingerprints of functions: equal only where nothing that they run, or name, has changed.

They err on the safe side: what cannot be told apart reliably gets a fingerprint that nothing else has.
"""

import dis
import functools
import hashlib
import importlib.util
import inspect
import io
import sys
import sysconfig
import types
import uuid
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

_PLAIN = (str, int, float, bool, bytes, complex, type(None), type(Ellipsis))
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
        # Of dataclasses: what they say is in the methods that are made of them.
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
        "__annotations__",
        "__slots__",
        # Made when the first instance is pickled.
        "__slotnames__",
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
    return f"unknown-{uuid.uuid4().hex}"


def function_fingerprint(function: Callable[..., Any]) -> str:
    """Of a function: its code, defaults, closure, and the functions, classes, modules and values that it names.

    They are followed as deep as they go in the user's own files; installed distributions count by their versions.
    Comments and line numbers do not count, except in modules that are named as a whole.
    """
    seen = _Seen()
    # A function of a pipeline is the user's, even when it was installed.
    return _function(function, seen) if isinstance(function, types.FunctionType) else _value(function, seen)


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
    if isinstance(value, SparkSession) or type(value).__module__ == "pyspark.sql.connect.session":
        return "session"
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
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}:" + digest(*(_value(one, seen) for one in value))
    if isinstance(value, frozenset | set):
        return "set:" + digest(*sorted(_value(one, _Seen()) for one in value))
    if isinstance(value, dict):
        return "dict:" + digest(*(f"{_value(key, seen)}={_value(one, seen)}" for key, one in value.items()))
    if isinstance(value, functools.partial):
        return "partial:" + digest(*(_value(one, seen) for one in (value.func, value.args, value.keywords)))
    if isinstance(value, types.MethodType):
        return "method:" + digest(_value(value.__func__, seen), _value(value.__self__, seen))
    if isinstance(value, Broadcast):
        try:
            return "broadcast:" + _value(value.value, seen)
        except Exception:  # it was destroyed
            return unique()
    if type(value).__name__ in _UDFS and type(value).__module__.startswith("pyspark.sql."):
        # One that was used holds what Spark has made of it, too.
        return "udf:" + digest(*(_value(getattr(value, name, None), seen) for name in _OF_A_UDF))
    return _instance(value, seen)


def _function(function: types.FunctionType, seen: _Seen) -> str:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    named = _named(_names(function.__code__), function.__globals__)
    package = function.__globals__.get("__package__") or ""
    return digest(
        "function",
        _code(function.__code__),
        _value(function.__defaults__ or (), seen),
        _value(function.__kwdefaults__ or {}, seen),
        # A decorated function: what it wraps may hide in an object that is pickled by its name alone.
        _value(getattr(function, "__wrapped__", None), seen),
        *(f"{name}={_cell(cell, seen)}" for name, cell in sorted(cells.items())),
        *(f"{name}={_value(one, seen)}" for name, one in sorted(named.items())),
        *(f"{name}={_imported(name, seen)}" for name in imports_of(function.__code__, package)),
    )


def _named(names: set[str], scope: dict[str, Any]) -> dict[str, object]:
    """What names stand for, and the modules of packages among that which are named, too: `package.module.function`."""
    found = {name: scope[name] for name in names if name in scope}
    pending = list(found.items())
    while pending:
        path, package = pending.pop()
        for name in names if isinstance(package, types.ModuleType) and _library(package) is None else ():
            module = vars(package).get(name)
            if _is_part(module, package):
                found[f"{path}.{name}"] = module
                pending.append((f"{path}.{name}", module))
    return found


def _is_part(module: object, package: object) -> bool:
    names = getattr(module, "__name__", ""), getattr(package, "__name__", "")
    return isinstance(module, types.ModuleType) and names[0].startswith(f"{names[1]}.")


def _imported(name: str, seen: _Seen) -> str:
    """A module by its name. The user's are imported for it, as the code does that names them; libraries are not."""
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
        module = importlib.import_module(name)
    except Exception:  # as in the code that names it
        return "missing"
    return _value(module, seen)


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
    # What an error is caught in is in a table of its own.
    instructions = code.co_code.hex(), code.co_exceptiontable.hex()
    return digest("code", *instructions, *constants, "|", *code.co_names, "|", *code.co_varnames)


def _module(module: types.ModuleType, seen: _Seen) -> str:
    """A module of the user's: its file, its code as it was imported, and what it takes from others."""
    text = b""
    if module.__file__ is not None or not hasattr(module, "__path__"):  # a folder may do without a file
        try:
            text = Path(module.__file__ or "").read_bytes()
        except OSError:
            return unique()
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
    imports = (f"{name}={_imported(name, seen)}" for name in imported)
    return digest("module", module.__name__, text.hex(), *imports, *taken)


def _own_code(value: object) -> str:
    """Of a function, or a class with its methods: their code alone, as what they name is in the same file."""
    if isinstance(value, types.FunctionType):
        return _code(value.__code__)
    members = sorted(vars(value).items()) if isinstance(value, type) else ()
    return digest(*(f"{name}={_own_code(one)}" for name, one in members if name != "__class__"))


def _class(value: type, seen: _Seen) -> str:
    parts = []
    for name, one in sorted(vars(value).items()):
        if name in _NO_PART_OF_A_CLASS or isinstance(one, types.MemberDescriptorType | types.GetSetDescriptorType):
            continue
        if isinstance(one, staticmethod | classmethod):
            parts.append(f"{name}={_value(one.__func__, seen)}")
        elif isinstance(one, property):
            parts += [f"{name}={_value(part, seen)}" for part in (one.fget, one.fset)]
        else:
            parts.append(f"{name}={_value(one, seen)}")
    return digest("class", value.__qualname__, *(_value(base, seen) for base in value.__bases__), *parts)


def _instance(value: object, seen: _Seen) -> str:
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        try:
            pickler.dump(value)  # type: ignore[no-untyped-call]  # has no types
        except Exception:
            # Whatever refuses to be pickled cannot be compared either.
            return unique()
        pickled = file.getvalue().hex()
    return digest("instance", _value(type(value), seen), pickled, *(_value(one, seen) for one in pickler.met))


class _Pickler(cloudpickle.CloudPickler):
    """Notes what it meets and pickles by a name or number: functions and classes that can be imported, broadcasts."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]  # has no types
        self.met: list[object] = []

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, types.FunctionType | type | Broadcast):
            self.met.append(obj)
        if isinstance(obj, Broadcast):
            return str, ()
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]  # has no types


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
