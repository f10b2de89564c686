"""Which modules code imports as it runs: `def daily(weather): from rates import clean`."""

import dis
import importlib.util
import sys
import types
from collections.abc import Iterator


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
