"""The documentation of the options, generated from their table."""

from itertools import groupby

from penstock.spark_plugin._option_spec import OptionSpec, OptionType
from penstock.spark_plugin._option_table import OPTIONS

_TITLES = {
    "stream": "Stream",
    "credentials": "Credentials",
    "reading": "Reading",
    "services": "Services and identity",
    "writing": "Writing",
    "retries": "Retries (FLIP-128)",
}


def options_table() -> str:
    """All options as Markdown tables, one per group."""
    parts = []
    for group, specs in groupby(OPTIONS, key=lambda spec: spec.group):
        rows = "\n".join(_row(spec) for spec in specs)
        parts.append(
            f"### {_TITLES[group]}\n\n"
            "| option | type | default | meaning | Flink | Databricks | AWS connector |\n"
            "| --- | --- | --- | --- | --- | --- | --- |\n"
            f"{rows}\n"
        )
    return "\n".join(parts)


def _row(spec: OptionSpec) -> str:
    kind = " \\| ".join(spec.choices) if spec.type is OptionType.CHOICE else spec.type.value.replace("|", "\\|")
    name = f"`{spec.name}.<stream>`" if spec.prefix else f"`{spec.name}`"
    flink = f"{spec.flink}.<stream>" if spec.prefix and spec.flink else spec.flink
    aliases = (f"`{alias}`" if alias else "" for alias in (flink, spec.databricks, spec.aws))
    doc = spec.doc + (" A secret: never shown." if spec.secret else "")
    return f"| {name} | {kind} | {spec.default or ''} | {doc} | {' | '.join(aliases)} |"
