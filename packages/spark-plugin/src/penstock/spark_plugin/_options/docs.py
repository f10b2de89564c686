"""The documentation of the options, generated from their tables.

`python -m penstock.spark_plugin._options.docs FOLDER ...` writes the tables anew in the Markdown files that have their
markers: `packages/spark-plugin/docs` and `docs/pages`.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from penstock.spark_plugin._options.foreign.elsewhere import elsewhere_remedies
from penstock.spark_plugin._options.foreign.migration import FOREIGN_OPTIONS
from penstock.spark_plugin._options.foreign.spec import Connector, Effect, ForeignOption
from penstock.spark_plugin._options.spec import READ, STREAM, WRITE, OptionSpec, OptionType
from penstock.spark_plugin._options.table import OPTIONS

_TITLES = {
    "stream": "Stream",
    "credentials": "Credentials",
    "reading": "Reading",
    "services": "Services and identity",
    "writing": "Writing",
    "retries": "Retries (FLIP-128)",
}
_ONLY = {(READ,): "bounded reads alone", (STREAM,): "streams alone", (STREAM, WRITE): "not in bounded reads"}
_BEGIN, _END = "<!-- generated: {} -->\n", "<!-- end of generated: {} -->\n"


def options_table() -> str:
    """All options as Markdown tables, one per group."""
    parts = []
    for group, specs in groupby(OPTIONS, key=lambda spec: spec.group):
        rows = "\n".join(_row(spec) for spec in specs)
        parts.append(
            f"### {_TITLES[group]}\n\n"
            "| option | type | default | meaning | acts in | Flink | Databricks | AWS connector |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
            f"{rows}\n"
        )
    return "\n".join(parts)


def migration_table(connector: Connector) -> str:
    """All options of another connector as a Markdown table: what each one is here, or why it is nothing."""
    return _migration(_foreign_row(one) for one in FOREIGN_OPTIONS if one.connector is connector)


def migration_tables() -> dict[str, str]:
    """By connector, all of its options as a Markdown table; those of Kafka and Spark that are written out of habit."""
    tables = {one.value: migration_table(one) for one in Connector}
    for source, remedies in groupby(elsewhere_remedies(), key=lambda one: one[0]):
        tables[source] = _migration(f"| `{name}` | an error | {_escaped(remedy)} |" for _, name, remedy in remedies)
    return tables


def _migration(rows: Iterable[str]) -> str:
    return "| option | here | |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _row(spec: OptionSpec) -> str:
    own = (spec.type.value,) if spec.type is not OptionType.CHOICE else ()
    kind = _escaped(" | ".join((*own, *spec.choices)))
    name = f"`{spec.name}.<stream>`" if spec.prefix else f"`{spec.name}`"
    aliases = (_alias(spec, connector) for connector in Connector)
    doc = _escaped(spec.doc) + (" A secret: never shown." if spec.secret else "")
    return f"| {name} | {kind} | {spec.default or ''} | {doc} | {places(spec)} | {' | '.join(aliases)} |"


def places(spec: OptionSpec) -> str:
    """Where an option acts, in which uses where its group does not say it, and what it is an error with."""
    used = f"; {_ONLY[spec.uses]}" if spec.uses in _ONLY else ""
    refused = "".join(f"; not with `{one.with_option}{'=' if one.when else ''}{one.when}`" for one in spec.refused_with)
    return ", ".join(place.value for place in spec.acts) + used + refused


def _alias(spec: OptionSpec, connector: Connector) -> str:
    """The first name of the option in a connector; the tables of migration have the others."""
    for one in FOREIGN_OPTIONS:
        if one.connector is connector and one.option == spec.name:
            return f"`{one.name}{'.<stream>' if spec.prefix and not one.convert else ''}`"
    return ""


def _foreign_row(one: ForeignOption) -> str:
    per_stream = next(
        (".<stream>" for spec in OPTIONS if spec.prefix and spec.name == one.option and not one.convert), ""
    )
    if one.effect is Effect.MEANS:
        here = f"`{one.option}{per_stream}`"
        text = one.text or ("a number without a unit is milliseconds" if one.bare_unit == "ms" else "")
    elif one.effect is Effect.NOT_NEEDED:
        here, text = "not needed", one.text
    else:
        here, text = "an error", one.text + (f" (`{one.harmless[0]}` is accepted)" if one.harmless else "")
    return f"| `{one.name}{per_stream}` | {here} | {_escaped(text)} |"


def generated() -> Iterator[tuple[str, str]]:
    """Name of the marker, and text of each generated part."""
    yield "options", options_table()
    for connector in Connector:
        yield connector.name.lower(), migration_table(connector)


def fill(document: str) -> str:
    """A document with the generated parts that it has markers of, written anew.

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
    """Generate all parts of a folder's documents anew."""
    for path in folder.rglob("*.md"):
        old = path.read_text()
        if (new := fill(old)) != old:
            path.write_text(new)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        write(Path(given))
