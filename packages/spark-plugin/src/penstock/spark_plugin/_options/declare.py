"""How an option is declared: as a field of a dataclass, from which everything else follows."""

from dataclasses import field, fields, replace
from typing import Any

from penstock.spark_plugin._options.spec import CHOICE, STRING, STRINGS, OptionSpec, OptionType, option_name
from penstock.spark_plugin._options.values import parse_value

_SPEC = "option"


def option(kind: OptionType = STRING, default: str | None = None, **declared: Any) -> Any:
    """The field of an option.

    Args:
        kind: how its text is understood.
        default: the text of its default; without one the field is None, or empty where it takes several values.
        declared: further fields of `OptionSpec`.
    """
    if kind is STRING and "choices" in declared:
        kind = CHOICE
    spec = OptionSpec(type=kind, default=default, **declared)
    if spec.prefix:
        return field(default_factory=dict, metadata={_SPEC: replace(spec, value={})})
    value = () if kind is STRINGS else None if default is None else parse_value(spec, default)
    return field(default=value, repr=not spec.secret, metadata={_SPEC: replace(spec, value=value)})


def declared(options: type, group: str) -> tuple[OptionSpec, ...]:
    """The options that a dataclass declares, in its order."""
    return tuple(
        replace(one.metadata[_SPEC], name=option_name(one.name), field=one.name, group=group) for one in fields(options)
    )
