"""All errors of all packages: what each means, and what cures it."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from reference_text import cell

import penstock.services

_CURE = "Cure: "


def error_modules() -> list[str]:
    """The modules `errors` of all installed packages."""
    packages = [*pkgutil.iter_modules(penstock.__path__, "penstock.")]
    packages += pkgutil.iter_modules(penstock.services.__path__, "penstock.services.")
    return [name for package in packages if package.ispkg and _exists(name := f"{package.name}.errors")]


def errors_of(module: str) -> list[type[Exception]]:
    """The errors of a module, in the order of their definition, each behind its base."""
    found = [
        one
        for one in vars(importlib.import_module(module)).values()
        if inspect.isclass(one) and issubclass(one, Exception) and one.__module__ == module
    ]
    return list(_ordered(found, [one for one in found if one.__base__ not in found]))


def meaning_and_cure(error: type[Exception]) -> tuple[str, str]:
    """The first paragraph of its description, and its cure; that of its base where it has none of its own."""
    paragraphs = inspect.cleandoc(error.__doc__ or "").split("\n\n")
    cure = next((text.removeprefix(_CURE) for text in paragraphs if text.startswith(_CURE)), "")
    base = error.__base__
    if not cure and base is not None and base.__module__ == error.__module__:
        cure = meaning_and_cure(base)[1]
    return paragraphs[0], cure


def page() -> str:
    """The page."""
    parts = [
        "# Errors\n",
        "Each error carries its facts as fields, and its message says what to do. Spark shows an error as the last "
        "line of a traceback. Errors that are indented are special cases of the one above.\n",
    ]
    for module in error_modules():
        parts += [f"## {module}\n", "| error | when | what to do |", "| --- | --- | --- |"]
        errors = errors_of(module)
        for error in errors:
            depth = sum(1 for base in error.__mro__[1:] if base in errors)
            meaning, cure = meaning_and_cure(error)
            name = "&nbsp;&nbsp;" * depth + f"<span id='{module}.{error.__name__}'></span>`{error.__name__}`"
            parts.append(f"| {name} | {cell(meaning)} | {cell(cure)} |")
        parts.append("")
    return "\n".join(parts)


def _ordered(found: list[type[Exception]], level: list[type[Exception]]) -> Iterator[type[Exception]]:
    for error in level:
        yield error
        yield from _ordered(found, [one for one in found if one.__base__ is error])


def _exists(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    return True
