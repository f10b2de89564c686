"""`penstock errors`: what an error means and what cures it, as its class says."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from penstock.terminal import Cell, Column, ExitCode, Form, Parser, Row, Screen, Table, add_json_argument

_CURE: Final = "Cure: "
_COLUMNS: Final = (Column("ERROR"), Column("WHEN"))


@dataclass(frozen=True, kw_only=True)
class KnownError:
    """An error of an installed package.

    Attributes:
        module: where it is defined, such as `penstock.aws.errors`.
        name: of the class, or its code.
        base: the error of the same module that it is a special case of; None at the top.
        depth: how many bases it has in its module.
        when: the first paragraph of its description.
        cure: what to do; empty for a base class that is never raised itself.
        facts: the other paragraphs, such as those on its fields.
    """

    module: str
    name: str
    base: KnownError | None
    depth: int
    when: str
    cure: str
    facts: tuple[str, ...]

    @property
    def full_name(self) -> str:
        """As a traceback has it."""
        return f"{self.module}.{self.name}"


@cache
def known_errors() -> tuple[KnownError, ...]:
    """The errors of all installed packages, by module, each behind its base.

    They are read and not imported: an error is looked up also where what its package needs is missing.
    """
    spaces = ("penstock", "penstock.services")
    packages = [one for name in spaces for one in pkgutil.iter_modules(_folders(name), f"{name}.")]
    return tuple(error for one in packages if one.ispkg for error in _errors_of(one.name))


def _folders(package: str) -> Sequence[str]:
    spec = importlib.util.find_spec(package)
    return (spec.submodule_search_locations if spec is not None else None) or ()


def _errors_of(package: str) -> Iterator[KnownError]:
    file = next((path for one in _folders(package) if (path := Path(one, "errors.py")).is_file()), None)
    if file is None:
        return
    classes = {one.name: one for one in ast.parse(file.read_text()).body if isinstance(one, ast.ClassDef)}
    named = {name: node for name, node in classes.items() if name.endswith("Error")}
    bases = {name: next((one for one in _names(node.bases) if one in named), None) for name, node in named.items()}

    def below(base: KnownError | None) -> Iterator[KnownError]:
        for name, node in named.items():
            if bases[name] == (None if base is None else base.name):
                one = _described(f"{package}.errors", node, base)
                yield one
                yield from _coded(node, one)
                yield from below(one)

    yield from below(None)


def _names(nodes: Sequence[ast.expr]) -> list[str]:
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def _described(module: str, node: ast.ClassDef, base: KnownError | None) -> KnownError:
    when, *others = (ast.get_docstring(node) or "").split("\n\n")
    cure = next((text.removeprefix(_CURE) for text in others if text.startswith(_CURE)), "")
    return KnownError(
        module=module,
        name=node.name,
        base=base,
        depth=0 if base is None else base.depth + 1,
        when=_one_line(when),
        cure=_one_line(cure),
        facts=tuple(text for text in others if not text.startswith(_CURE)),
    )


def _coded(node: ast.ClassDef, base: KnownError) -> Iterator[KnownError]:
    """The errors that have a code instead of a class: `codes = {"CODE": Code(when=..., message=..., cure=...)}`."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict):
            for code, entry in zip(statement.value.keys, statement.value.values, strict=True):
                if isinstance(code, ast.Constant) and isinstance(entry, ast.Call):
                    texts = {one.arg: ast.literal_eval(one.value) for one in entry.keywords}
                    yield KnownError(
                        module=base.module,
                        name=str(code.value),
                        base=base,
                        depth=base.depth + 1,
                        when=texts["when"],
                        cure=texts["cure"],
                        facts=(f"Message: {texts['message']}",),
                    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main(argv: Sequence[str]) -> int:
    """Explain errors by name, or list all of them. Returns 1 when none has the name."""
    parser = Parser(
        prog="penstock errors",
        description="What the errors of the installed packages mean, and what to do about them.",
        epilog="exit codes: 0 shown, 1 no error has the name, 2 wrong usage",
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="a class such as DataLossError, with or without its module, or a code such as STAGE_FAILED; default: all",
    )
    add_json_argument(parser)
    arguments = parser.parse_args(argv)
    screen = Screen(sys.stdout, as_json=arguments.json)
    if arguments.name is None:
        screen.show(Table(columns=_COLUMNS, rows=[_row(one) for one in known_errors()]))
        return ExitCode.OK
    found = _found(arguments.name)
    if not found:
        names = {one.name.lower(): one.name for one in known_errors()}
        close = difflib.get_close_matches(arguments.name.rpartition(".")[2].lower(), names, n=1)
        hint = f"did you mean {names[close[0]]}?" if close else "penstock errors lists all"
        sys.stderr.write(f"penstock errors: no installed package has an error {arguments.name!r}: {hint}\n")
        return ExitCode.FAILED
    if screen.form is Form.JSON:
        screen.show(Table(columns=_COLUMNS, rows=[_row(one) for one in found]))
    else:
        screen.write("\n".join(_page(one) for one in found))
    return ExitCode.OK


def _found(name: str) -> list[KnownError]:
    """Those of the name, in any letter case: several packages may have one."""
    wanted = name.lower()
    return [one for one in known_errors() if wanted in (one.name.lower(), one.full_name.lower())]


def _row(error: KnownError) -> Row:
    document = {
        "error": error.name,
        "module": error.module,
        "base": None if error.base is None else error.base.name,
        "when": error.when,
        "cure": error.cure,
    }
    return Row([Cell(error.name, style="bold cyan"), error.when], document)


def _page(error: KnownError) -> str:
    parts = [error.full_name, error.when]
    parts += [f"What to do: {error.cure}"] if error.cure else []
    parts += error.facts
    parts += [f"It is a {error.base.name}."] if error.base is not None else []
    return "\n\n".join(parts) + "\n"
