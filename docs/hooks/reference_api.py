"""The pages of the public Python API: the names in each `__all__`, with their docstrings."""

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from types import ModuleType

from reference_text import prose

import penstock

# Commands, what pytest and OpenTelemetry look for, and generated code are not an API to be called.
_APART = {"errors", "pytest_plugin", "producer", "job", "__main__"}
_PACKAGES_APART = {"proto", "services", "demo"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> list[str]:
    """All public modules of all packages that have something to call."""
    names = []
    for package in pkgutil.iter_modules(penstock.__path__, "penstock."):
        if package.ispkg and package.name.split(".")[1] not in _PACKAGES_APART:
            names.append(package.name)
            path = importlib.import_module(package.name).__path__
            names += [one.name for one in pkgutil.iter_modules(path, f"{package.name}.") if _is_public(one.name)]
    return [name for name in sorted(names) if public_names(importlib.import_module(name))]


def public_names(module: ModuleType) -> list[str]:
    """What `__all__` lists, or else what the module itself defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed, key=str.lower)
    own = (name for name, one in vars(module).items() if getattr(one, "__module__", None) == module.__name__)
    return sorted((name for name in own if not name.startswith("_")), key=str.lower)


def page(name: str) -> str:
    """The page of a module; its errors are on a page of their own."""
    module = importlib.import_module(name)
    parts = [f"# {name}\n", prose(inspect.getdoc(module) or ""), ""]
    for member in public_names(module):
        value = getattr(module, member)
        if inspect.isclass(value) and issubclass(value, Exception):
            continue  # on the page of errors
        parts += [f"## {member}\n", *_member(member, value), ""]
    return "\n".join(parts)


def _is_public(name: str) -> bool:
    last = name.rpartition(".")[2]
    return not last.startswith("_") and last not in _APART


def _member(name: str, value: object) -> Iterator[str]:
    node = _definition(value)
    if isinstance(node, ast.ClassDef):
        yield from _class(node)
    elif isinstance(node, _Function):
        yield from _function(node)
    elif isinstance(value, ModuleType):
        yield f"The module `{value.__name__}`."
    elif isinstance(value, bool | int | float | str):
        yield f"```python\n{name} = {value!r}\n```"
    else:
        yield f"An object of the type `{type(value).__name__}`."


def _definition(value: object) -> ast.AST | None:
    # A cached function is an object of the cache, around the function.
    original = inspect.unwrap(value) if callable(value) else value
    if not (inspect.isclass(original) or inspect.isfunction(original)):
        return None
    try:
        source = inspect.getsource(original)
    except (OSError, TypeError):
        return None
    return ast.parse(textwrap.dedent(source)).body[0]


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"```python\nclass {node.name}{f'({bases})' if bases else ''}\n```\n"
    yield prose(ast.get_docstring(node) or "")
    yield ""
    titled = False
    for number, one in enumerate(node.body):
        if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_"):
            following = node.body[number + 1] if number + 1 < len(node.body) else None
            if not titled:
                yield "**Fields:**\n"
            titled = True
            yield _field(one, following)
        elif isinstance(one, ast.Assign) and not ast.unparse(one.targets[0]).startswith("_") and "Enum" in bases:
            yield f"- `{ast.unparse(one)}`"
    yield ""
    for one in node.body:
        is_init = isinstance(one, _Function) and one.name == "__init__" and len(one.args.args + one.args.kwonlyargs) > 1
        if isinstance(one, _Function) and (is_init or not one.name.startswith("_")) and not _is_overload(one):
            yield from _function(one)


def _field(one: ast.AnnAssign, following: ast.stmt | None) -> str:
    words = ""
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        words = ": " + prose(" ".join(str(following.value.value).split()))
    return f"- `{' '.join(ast.unparse(one).split())}`{words}"


def _function(node: _Function) -> Iterator[str]:
    decorators = [ast.unparse(one) for one in node.decorator_list]
    kept = "".join(f"@{one}\n" for one in decorators if one in {"property", "classmethod", "staticmethod"})
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    arguments = ast.unparse(node.args)
    answer = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    signature = f"{prefix} {node.name}({arguments}){answer}"
    if len(signature) > 100:
        split = ",\n    ".join(_arguments(node.args))
        signature = f"{prefix} {node.name}(\n    {split},\n){answer}"
    yield f"```python\n{kept}{signature}\n```\n"
    yield prose(ast.get_docstring(node) or "")
    yield ""


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Each argument with its annotation and default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = len(positional) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [None] * missing + list(arguments.defaults)
    for number, (one, default) in enumerate(zip(positional, defaults, strict=True), 1):
        yield ast.unparse(one) + (f" = {ast.unparse(default)}" if default else "")
        if number == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield ast.unparse(one) + (f" = {ast.unparse(default)}" if default else "")
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _is_overload(node: _Function) -> bool:
    return any(ast.unparse(one).endswith("overload") for one in node.decorator_list)
