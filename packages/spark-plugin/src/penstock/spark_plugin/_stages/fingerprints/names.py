"""Which names code uses, read from its bytecode: its source may be unavailable, as in a notebook."""

import dis
import importlib.util
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_LOADS = frozenset(
    {
        "LOAD_GLOBAL",
        "LOAD_NAME",
        "LOAD_FAST",
        "LOAD_FAST_CHECK",
        "LOAD_FAST_BORROW",
        "LOAD_DEREF",
        "LOAD_CLASSDEREF",
        "LOAD_FROM_DICT_OR_GLOBALS",
        "LOAD_FROM_DICT_OR_DEREF",
    }
)
# Two in one, since Python 3.13.
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME")
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
# They come between a name and its attribute, or between a function and its arguments.
_NOTHING = ("EXTENDED_ARG", "PUSH_NULL", "PRECALL", "NOP", "CACHE")
_TAKES_A_NAME = frozenset({"getattr", "hasattr"})
# With them code may take any attribute.
_TAKES_ANY = frozenset({"dir", "vars", "attrgetter", "methodcaller", "getmembers", "__dict__", "__getattribute__"})
_IMPORTS = frozenset({"import_module", "__import__"})


@dataclass(frozen=True, slots=True)
class Use:
    """A name that code loads, and the attributes that it takes from it: `os.environ.get`."""

    name: str
    """Empty where the attributes are taken from a value that is computed."""
    is_global: bool
    attributes: tuple[str, ...]
    line: int
    is_called_bare: bool
    """Whether it is called without arguments."""
    constant: str | None
    """The first argument, where it is called with a text."""


@dataclass(slots=True)
class Names:
    """What code names, including its nested functions and lambdas."""

    all: set[str] = field(default_factory=set)
    """Names of globals and attributes."""
    stored_globals: set[str] = field(default_factory=set)
    stored_attributes: set[str] = field(default_factory=set)
    imports: list[tuple[str, int, tuple[str, ...]]] = field(default_factory=list)
    """Name, level and what is taken, for each import."""
    bound: dict[str, set[str]] = field(default_factory=dict)
    """What imports give a name to: `{"np": {"numpy"}}`."""
    uses: list[Use] = field(default_factory=list)
    takes_any: bool = False
    """Whether it takes attributes by names that it computes."""

    def modules(self, package: str) -> dict[str, bool]:
        """Full names of what is imported, and whether it has to be a module: of `from a import b`, `a.b` may be one.

        Args:
            package: The package that relative names refer to.
        """
        found: dict[str, bool] = {}
        for name, level, from_list in self.imports:
            try:
                full = importlib.util.resolve_name("." * level + name, package)
            except ImportError:  # when it runs, too
                full = "." * level + name
            found = {f"{full}.{one}": False for one in from_list if one != "*"} | found | {full: True}
        return found


def names_in(code: types.CodeType, *, nested: bool = True) -> Names:
    """What code names; with `nested=False` without its nested functions."""
    found = Names()
    for one in _codes(code) if nested else (code,):
        _read(one, found)
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    # The code of annotations, since Python 3.14, does not run with the function.
    if code.co_name != "__annotate__":
        yield code
        for one in code.co_consts:
            if isinstance(one, types.CodeType):
                yield from _codes(one)


def _read(code: types.CodeType, found: Names) -> None:
    found.all |= set(code.co_names)
    found.takes_any = found.takes_any or not _TAKES_ANY.isdisjoint(code.co_names)
    steps = [*_steps(code), ("", None, 0)]
    taken: tuple[str, tuple[str, ...]] = "", ()
    module = ""
    index = 0
    while index < len(steps):
        kind, value, _ = steps[index]
        index += 1
        if kind == "STORE_GLOBAL":
            found.stored_globals.add(value)
        elif kind == "STORE_ATTR":
            found.stored_attributes.add(value)
        if kind == "IMPORT_NAME":
            level, from_list = (one[1] for one in steps[index - 3 : index - 1])
            taken = value, from_list if isinstance(from_list, tuple) else ()
            found.imports.append((value, level if isinstance(level, int) else 0, taken[1]))
            module = value if taken[1] else value.partition(".")[0]
        elif kind == "IMPORT_FROM":
            # `import a.b as c` takes `b` of `a`.
            module = f"{taken[0] if taken[1] else module}.{value}"
        elif kind in _STORES and module:
            found.bound.setdefault(value, set()).add(module)
            module = ""
        elif kind in _LOADS or kind in _ATTRIBUTES:
            first = index - 1
            while index < len(steps) and steps[index][0] in _ATTRIBUTES:
                index += 1
            if kind in _LOADS and value in (*code.co_cellvars, *code.co_freevars) and kind.startswith("LOAD_FAST"):
                continue  # it is handed to a nested function, which names it
            _add_use(steps, first, index, found)
        elif kind not in ("SWAP", "POP_TOP"):
            module = ""


def _add_use(steps: Sequence[tuple[str, Any, int]], first: int, end: int, found: Names) -> None:
    kind, name, line = steps[first]
    if kind in _LOADS and steps[end][0] in ("STORE_ATTR", "DELETE_ATTR"):
        return  # it is given an attribute
    attributes = [str(one[1]) for one in steps[first + (kind in _LOADS) : end]]
    constant = _text(steps[end])
    before = steps[first - 1][:2] if first else ("", "")
    if before[0] in ("LOAD_GLOBAL", "LOAD_NAME") and before[1] in _TAKES_A_NAME:
        if constant is None:
            found.takes_any = True
        else:
            attributes.append(constant)
            found.all.add(constant)
    called = attributes[-1] if attributes else name
    if called in _IMPORTS and constant is not None:
        found.imports.append((constant.lstrip("."), len(constant) - len(constant.lstrip(".")), ()))
    found.uses.append(
        Use(
            name=name if kind in _LOADS else "",
            is_global=kind in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"),
            attributes=tuple(attributes),
            line=line,
            is_called_bare=steps[end][:2] == ("CALL", 0),
            constant=constant,
        )
    )


def _text(step: tuple[str, Any, int]) -> str | None:
    return step[1] if step[0] in _CONSTANTS and isinstance(step[1], str) else None


def _steps(code: types.CodeType) -> Iterator[tuple[str, Any, int]]:
    """Operation, argument and line, for each instruction that matters here."""
    line = code.co_firstlineno
    instructions = list(dis.get_instructions(code))
    annotations = _annotations(instructions)
    for index, one in enumerate(instructions):
        line = (one.positions.lineno if one.positions is not None else None) or line
        if index in annotations or one.opname in _NOTHING:
            continue
        if one.opname in _PAIRS:
            for operation, name in zip(_PAIRS[one.opname], one.argval, strict=True):
                yield operation, name, line
        else:
            yield one.opname, one.argval, line


def _annotations(instructions: Sequence[dis.Instruction]) -> set[int]:
    """Places of the instructions that compute the annotations of nested functions: no rows are computed with them."""
    found: set[int] = set()
    for index, one in enumerate(instructions):
        following = instructions[index + 1 : index + 4]
        given = [after.arg for after in following if after.opname in ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE")]
        if (
            one.opname == "LOAD_CONST"
            and isinstance(one.argval, types.CodeType)
            and any((arg or 0) & 4 for arg in given)
        ):
            last = index - 1
            if any((arg or 0) & 8 for arg in given):  # the tuple of its cells comes between
                last -= 1 + (instructions[last].arg or 0)
            found |= _operand(instructions, last)
    return found


def _operand(instructions: Sequence[dis.Instruction], last: int) -> set[int]:
    """Places of the instructions that compute what the last of them leaves on the stack."""
    found, effect = set(), 0
    while last >= 0 and effect < 1:
        one = instructions[last]
        effect += dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        found.add(last)
        last -= 1
    return found
