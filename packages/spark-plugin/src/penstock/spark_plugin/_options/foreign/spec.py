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


def client_retries(
    connector: Connector,
    attempts: str,
    least_delay: str,
    longest_delay: str,
    *,
    longest_by_default: str | None = None,
    counts_the_first: bool = False,
) -> tuple[ForeignOption, ...]:
    """Retries of a connector's whole client, as those of the calls that read: GetRecords and GetShardIterator.

    Args:
        connector: whose they are.
        attempts: its option for how often a call is made again.
        least_delay: its option for the first delay.
        longest_delay: its option for the longest one.
        longest_by_default: that delay where only the first one is given; None: our own default.
        counts_the_first: whether `attempts` is how often a call is made in all.
    """

    def retries(text: str, given: Mapping[str, str]) -> dict[str, str]:
        is_number = text.isdecimal() and int(text) > 0
        return _of_both("MaxRetries", str(int(text) - 1) if counts_the_first and is_number else text)

    def least(text: str, given: Mapping[str, str]) -> dict[str, str]:
        found = _of_both("BackoffBase", text)
        if longest_by_default is not None and longest_delay.lower() not in given:
            found |= _of_both("BackoffMax", longest_by_default)
        return found

    def longest(text: str, given: Mapping[str, str]) -> dict[str, str]:
        return _of_both("BackoffMax", text)

    waits = "the calls that list shards are retried for `retryPatience`"
    return tuple(
        one
        for name, suffix, convert in (
            (attempts, "MaxRetries", retries),
            (least_delay, "BackoffBase", least),
            (longest_delay, "BackoffMax", longest),
        )
        for one in means(
            connector, f"getRecords{suffix}", name, text=f"and `getShardIterator{suffix}`; {waits}", convert=convert
        )
    )


def _of_both(suffix: str, text: str) -> dict[str, str]:
    return {f"getRecords{suffix}": text, f"getShardIterator{suffix}": text}
