"""The documentation of the options, generated from their declarations.

`python -m penstock.spark_plugin._options.docs FOLDER ...` writes the tables in the Markdown files that have their
markers: `packages/spark-plugin/docs` and `docs/pages`.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from penstock.spark_plugin._options.foreign import Connector, ForeignOption, foreign_options
from penstock.spark_plugin._options.spec import OptionSpec, OptionType, Use
from penstock.spark_plugin._options.table import BY_NAME, GROUPS, OPTIONS

_FIRST = (
    *("streamName", "region", "endpointUrl", "initialPosition", "recordPublisher", "failOnDataLoss"),
    *("maxRecordsPerBatch", "valueFormat", "deadLetterPath", "roleArn"),
)
"""The options that most users need, which the documentation lists first."""
_ONLY = {
    (Use.READ,): "bounded reads only",
    (Use.READ_STREAM,): "streams only",
    (Use.READ_STREAM, Use.WRITE): "not in bounded reads",
}
_BEGIN, _END = "<!-- generated: {} -->\n", "<!-- end of generated: {} -->\n"


@cache
def documentation() -> dict[str, str]:
    """What each option means, by its field: the docstring that follows it."""
    found = {}
    for _, group in GROUPS.values():
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
        assert isinstance(declared, ast.ClassDef)
        for one, following in pairwise(declared.body):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                assert isinstance(following, ast.Expr), f"{one.target.id} has no docstring"
                found[one.target.id] = " ".join(str(ast.literal_eval(following.value)).split())
    return found


def default(spec: OptionSpec) -> str:
    """What happens without the option."""
    return spec.default or spec.otherwise


def by_task() -> list[tuple[str, list[OptionSpec]]]:
    """The options as the documentation lists them: those that most users need, then the others by task."""
    others = [spec for spec in OPTIONS if spec.name not in _FIRST]
    tasks = [(title, [spec for spec in others if spec.group == group]) for group, (title, _) in GROUPS.items()]
    return [("Most used", [BY_NAME[name] for name in _FIRST]), *tasks]


def options_table() -> str:
    """All options as Markdown tables: those that most users need, then the others by task."""
    head = "| option | type | default | meaning | acts in |\n| --- | --- | --- | --- | --- |"
    parts = []
    for title, specs in by_task():
        parts.append("\n".join([f"### {title}\n", head, *map(_row, specs), ""]))
    return "\n".join(parts)


def migration_table() -> str:
    """All options of other connectors that are accepted, as a Markdown table, by the option here."""
    rows: dict[tuple[str, str], dict[Connector, list[str]]] = {}
    for name, here in (*((spec.name, _name(spec)) for spec in OPTIONS), ("", "not needed")):
        for one in foreign_options():
            if one.option == name and (name or one.note):
                per_stream = ".<stream>" if here.endswith(".<stream>`") and not one.convert else ""
                names = rows.setdefault((here, _note(one)), {}).setdefault(one.connector, [])
                names.append(f"`{one.name}{per_stream}`")
    lines = [f"| here | {' | '.join(Connector)} | |", f"| --- |{' --- |' * len(Connector)} --- |"]
    for (here, note), found in rows.items():
        theirs = " | ".join(", ".join(found.get(connector, ())) for connector in Connector)
        lines.append(f"| {here} | {theirs} | {_escaped(note)} |")
    return "\n".join(lines) + "\n"


def _note(one: ForeignOption) -> str:
    notes = ["a number without a unit is milliseconds"] if one.unit else []
    return "; ".join([*notes, one.note] if one.note else notes)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _name(spec: OptionSpec) -> str:
    return f"`{spec.name}.<stream>`" if spec.prefix else f"`{spec.name}`"


def _row(spec: OptionSpec) -> str:
    own = (spec.type.value,) if spec.type is not OptionType.CHOICE else ()
    kind = _escaped(" | ".join((*own, *spec.choices)))
    doc = _escaped(documentation()[spec.field]) + (" A secret: never shown." if spec.secret else "")
    return f"| {_name(spec)} | {kind} | {default(spec)} | {doc} | {places(spec)} |"


def places(spec: OptionSpec) -> str:
    """Where an option acts, in which uses if its group does not say so, what it needs, and what excludes it."""
    used = f"; {_ONLY[spec.uses]}" if spec.uses in _ONLY else ""
    needs = f"; with `{spec.needs}`" if spec.needs else ""
    return ", ".join(spec.acts) + used + needs + "".join(f"; not with `{name}`" for name in spec.not_with)


def generated() -> Iterator[tuple[str, str]]:
    """Name of the marker, and text of each generated part."""
    yield "options", options_table()
    yield "migration", migration_table()


def fill(document: str) -> str:
    """A document with the generated parts that it has markers of, up to date.

    Raises:
        ValueError: a marker of a generated part has no end.
    """
    for name, text in generated():
        begin, end = _BEGIN.format(name), _END.format(name)
        head, begin_found, rest = document.partition(begin)
        if begin_found:
            _, end_found, tail = rest.partition(end)
            if not end_found:
                raise ValueError(f"no {end.strip()}")
            document = f"{head}{begin}\n{text}\n{end}{tail}"
    return document


def write(folder: Path) -> None:
    """Generate all parts of a folder's documents."""
    for path in folder.rglob("*.md"):
        old = path.read_text()
        if (new := fill(old)) != old:
            path.write_text(new)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        write(Path(given))
