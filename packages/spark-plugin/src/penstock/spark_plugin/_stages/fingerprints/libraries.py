"""Which code is the user's own, and the versions of code that comes with Python or an installed distribution."""

import functools
import importlib.util
import inspect
import sys
import sysconfig
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pyspark

OF_SPARK = ("pyspark", "penstock")
"""Top-level packages of Spark and its data source."""
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]


def version_of(value: Any) -> str | None:
    """Name and version of what comes with Python or an installed distribution; None for the user's own."""
    module = value if isinstance(value, types.ModuleType) else inspect.getmodule(value)
    if module is None or module.__name__ == "__main__":
        return None
    if isinstance(value, types.FunctionType) and module.__name__ != value.__globals__.get("__name__"):
        # A decorator has given it the name of another function.
        wrapper = sys.modules.get(value.__globals__.get("__name__", ""), module)
        if version_of(wrapper) is None:
            return None
    return version_of_module(module.__name__, getattr(module, "__file__", None))


def is_users(module: types.ModuleType) -> bool:
    """Whether a module is the user's own."""
    return version_of(module) is None


def is_a_librarys(function: types.FunctionType) -> bool:
    """Whether a library has the code, as of a function that its decorator gives."""
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    return module is not None and version_of(module) is not None


def is_foreign(package: str) -> bool:
    """Whether a package is of an installed distribution, other than Spark."""
    if package in OF_SPARK:
        return False
    module: Any = sys.modules.get(package)
    if module is not None:
        return version_of(module) is not None
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, AttributeError, ValueError):
        return False
    return spec is not None and version_of_module(package, spec.origin) is not None


def version_of_module(name: str, origin: str | None) -> str | None:
    """As `version_of`, for a module by its name and file."""
    if name in sys.builtin_module_names or origin in ("built-in", "frozen"):
        return f"{name}@{sys.version}"
    top = name.partition(".")[0]
    if origin is None:
        return f"{name}@{sys.version}" if top in sys.stdlib_module_names else None
    if top == "pyspark":  # it may lie with the rest of Spark
        return f"{name}@{pyspark.__version__}"
    if top == "penstock":
        return f"{name}@{','.join(version for version, _ in _distributions_of(top))}"
    # A file that was copied to where distributions are belongs to none; the files of an editable one are elsewhere.
    is_there = not {"site-packages", "dist-packages"}.isdisjoint(Path(origin).parts)
    versions = [
        version
        for version, folder in _distributions_of(top)
        if is_there or (folder is not None and Path(origin).is_relative_to(folder))
    ]
    if versions:
        return f"{name}@{','.join(versions)}"
    return f"{name}@{sys.version}" if origin.startswith(_STANDARD_LIBRARY) and not is_there else None


_packages = functools.cache(metadata.packages_distributions)


@functools.cache
def _distributions_of(package: str) -> tuple[tuple[str, Path | None], ...]:
    """Name and version of each distribution that has a top-level package, and the folder of its files if it has one."""
    found = []
    for name in sorted(set(_packages().get(package, ()))):
        one = metadata.distribution(name)
        # A distribution that is being developed has no list of its files, or says that they are edited.
        is_edited = one.read_text("RECORD") is None or '"editable": true' in (one.read_text("direct_url.json") or "")
        found.append((f"{name} {one.version}", None if is_edited else Path(str(one.locate_file("")))))
    return tuple(found)
