"""How the options of other connectors are declared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

Converter: TypeAlias = Callable[[str, Mapping[str, str]], Mapping[str, str]]
"""From an option's text, and all options that were given, by name in lower case, to options of ours."""


class Connector(StrEnum):
    """A connector that users come from."""

    FLINK = "Flink"
    DATABRICKS = "Databricks"
    AWS = "AWS connector"


class Effect(StrEnum):
    """What becomes of an option of another connector."""

    MEANS = "means"
    """It is one of ours by another name; its value is translated."""
    NOT_NEEDED = "not needed"
    """It is accepted, with a warning once: leaving it out changes no rows."""
    REFUSED = "refused"
    """It is an error that says what to do: leaving it out would change the rows, or be dangerous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignOption:
    """An option of another connector, and what becomes of it here."""

    connector: Connector
    name: str
    """As that connector documents it. One that ends in `*` stands for all names that begin so."""
    effect: Effect
    option: str | None = None
    """With MEANS: the canonical name of ours."""
    text: str = ""
    """How the value is translated, why the option is not needed, or what to do instead."""
    values: tuple[tuple[str, str], ...] = ()
    """Values, in lower case, that mean another text here."""
    harmless: tuple[str, ...] = ()
    """Values, in lower case, that are accepted in silence, for they say what is so anyway."""
    bare_unit: str = ""
    """Unit of a number without one."""
    convert: Converter | None = None
    """Where other options have a say in it."""


def means(
    connector: Connector,
    option: str,
    *names: str,
    text: str = "",
    values: tuple[tuple[str, str], ...] = (),
    bare_unit: str = "",
    convert: Converter | None = None,
) -> tuple[ForeignOption, ...]:
    """Names of another connector for one of our options."""
    return tuple(
        ForeignOption(
            connector=connector,
            name=name,
            effect=Effect.MEANS,
            option=option,
            text=text,
            values=values,
            bare_unit=bare_unit,
            convert=convert,
        )
        for name in names
    )


def not_needed(
    connector: Connector, why: str, *names: str, harmless: tuple[str, ...] = ()
) -> tuple[ForeignOption, ...]:
    """Options that are accepted with a warning."""
    return tuple(
        ForeignOption(connector=connector, name=name, effect=Effect.NOT_NEEDED, text=why, harmless=harmless)
        for name in names
    )


def refused(
    connector: Connector, remedy: str, *names: str, harmless: tuple[str, ...] = ()
) -> tuple[ForeignOption, ...]:
    """Options that are errors, unless their value is harmless."""
    return tuple(
        ForeignOption(connector=connector, name=name, effect=Effect.REFUSED, text=remedy, harmless=harmless)
        for name in names
    )
