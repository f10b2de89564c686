"""Options of other connectors, translated; `foreign.toml` lists them."""

import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin.errors import OptionError

Converter: TypeAlias = Callable[[str, Mapping[str, str]], Mapping[str, str]]
"""From an option's text, and all options that were given, by name in lower case, to options here."""

_LEAST_INTERVAL_MS = 200
"""Kinesis allows 5 reads/s of a shard."""
_ROLES = ("aws.credentials.provider.role", "aws.credentials.role")


def _roles(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Both roles of a chain, whichever of the two is translated."""
    outer = next((given[f"{role}.arn"] for role in _ROLES if f"{role}.arn" in given), None)
    inner = next((given[f"{role}.provider.role.arn"] for role in _ROLES if f"{role}.provider.role.arn" in given), None)
    return {"roleArn": ",".join(arn for arn in (inner, outer) if arn)}


def _role_provider(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """A provider that has keys of its own adds nothing to them."""
    needed = {"assume_role": ("role.arn",), "web_identity_token": ("role.arn", "webidentitytoken.file")}
    keys = needed.get(text.lower(), ())
    if keys and any(all(f"{role}.provider.{key}" in given for key in keys) for role in _ROLES):
        return {}
    return {"roleCredentialsProvider": text}


def _registered_consumers(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Consumers that exist already: ARNs name their streams; a name is looked up in the query's streams."""
    if given.get("registeredconsumeridtype", "name").lower() != "arn":
        return {"efoConsumerName": text}
    return _consumer_arns("registeredConsumerId", text)


def _consumer_arns(option: str, text: str) -> dict[str, str]:
    arns = [one.strip() for one in text.split(",") if one.strip()]
    if any(":stream/" not in arn or "/consumer/" not in arn for arn in arns):
        raise OptionError.invalid(option, text, "the ARN of a stream consumer")
    consumers = {f"efoConsumerArn.{arn.partition(':stream/')[2].partition('/')[0]}": arn for arn in arns}
    return {"efoRegistration": "none", **consumers}


def _registered_consumer_type(text: str, given: Mapping[str, str]) -> dict[str, str]:
    if text.lower() not in ("name", "arn"):
        raise OptionError.invalid("registeredConsumerIdType", text, "name or ARN")
    if text.lower() == "arn" and "registeredconsumerid" not in given:
        raise OptionError.missing("registeredConsumerId", "registeredConsumerIdType=ARN says that it is one")
    return {}


def _region(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """The stream's region has precedence: this one was for the connector's own calls."""
    return {} if "kinesis.kinesisregion" in given else {"region": text}


def _interval(text: str, given: Mapping[str, str]) -> dict[str, str]:
    return {"getRecordsInterval": f"{max(int(text), _LEAST_INTERVAL_MS)}ms" if text.isdecimal() else text}


def _fan_out(text: str, given: Mapping[str, str]) -> dict[str, str]:
    return {"recordPublisher": "efo", **_consumer_arns("fanoutConsumerARN", text)}


CONVERTERS: Mapping[str, Converter] = {
    "fan_out": _fan_out,
    "interval": _interval,
    "region": _region,
    "registered_consumer_type": _registered_consumer_type,
    "registered_consumers": _registered_consumers,
    "role_provider": _role_provider,
    "roles": _roles,
}
"""By the names that `foreign.toml` has for them."""


_log = logging.getLogger(__name__)
_warned: set[str] = set()


class Connector(StrEnum):
    """A connector that users come from."""

    FLINK = "Flink"
    DATABRICKS = "Databricks"
    AWS = "AWS connector"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignOption:
    """An option of another connector, and what it is here: a line of `foreign.toml`, which describes the fields."""

    connector: Connector
    name: str
    """As that connector documents it. A name that ends in `*` means all names that begin with it."""
    option: str = ""
    """The canonical name here. Empty: it is not needed."""
    unit: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    convert: str = ""
    note: str = ""
    """How the value is translated, or why the option is not needed. Empty: only the values in `silent` are accepted."""
    cure: str = ""
    """What to do instead of an option that is an error."""
    silent: tuple[str, ...] = ()
    """Values, in lower case, that are accepted without a warning."""


def _listed(connector: Connector, table: Mapping[str, Any]) -> Iterator[ForeignOption]:
    only = {name: tuple(values) for name, values in table["only"].items()}
    for name, meant in table["means"].items():
        fields = {"option": meant} if isinstance(meant, str) else meant
        yield ForeignOption(connector=connector, name=name, **fields)
    for kind, part in (("note", table["not_needed"]), ("cure", table.get("refused", {}))):
        for why, names in part.items():
            for name in names:
                yield ForeignOption(connector=connector, name=name, silent=only.pop(name, ()), **{kind: why})
    for name, values in only.items():
        yield ForeignOption(connector=connector, name=name, silent=values)


@cache
def foreign_options() -> tuple[ForeignOption, ...]:
    """All options of the three connectors that are accepted."""
    tables = tomllib.loads((files("penstock.spark_plugin._options") / "foreign.toml").read_text())
    return tuple(one for connector in Connector for one in _listed(connector, tables[connector.value]))


@cache
def _exact() -> Mapping[str, ForeignOption]:
    return {one.name.lower(): one for one in foreign_options() if not one.name.endswith("*")}


@cache
def _beginnings() -> Mapping[str, ForeignOption]:
    return {one.name.lower().removesuffix("*"): one for one in foreign_options() if one.name.endswith("*")}


@cache
def _per_stream() -> Mapping[str, ForeignOption]:
    names = {spec.name for spec in OPTIONS if spec.prefix}
    return {f"{one.name.lower()}.": one for one in foreign_options() if one.option in names and not one.convert}


def find_foreign(name: str) -> ForeignOption | None:
    """The option of another connector that has this name, in any letter case."""
    low = name.lower()
    if low in _exact():
        return _exact()[low]
    return next((one for beginning, one in _beginnings().items() if low.startswith(beginning)), None)


def translate(name: str, text: str, given: Mapping[str, str], *, warn: bool = True) -> dict[str, str] | None:
    """The options here that an option of another connector means; None when no connector has such an option.

    Args:
        name: As the user wrote it.
        text: Its value.
        given: All options, by name in lower case.
        warn: Whether an option that is not needed is worth a warning; the first time in this process.

    Raises:
        OptionError: nothing reads the option, and ignoring its value would change something.
        OptionError: the value has no translation.
    """
    low = name.lower()
    for beginning, one in _per_stream().items():
        if low.startswith(beginning) and len(low) > len(beginning):
            return {f"{one.option}.{name[len(beginning) :]}": text}
    found = find_foreign(name)
    if found is None:
        return None
    value = text.strip().lower()
    if not found.option:
        if value not in found.silent:
            _not_here(found, found.name if found.name.lower() == low else name, text, warn=warn)
        return {}
    if found.convert:
        return dict(CONVERTERS[found.convert](text.strip(), given))
    if found.values:
        if value not in found.values:
            raise OptionError.invalid(found.name, text, "one of " + ", ".join(found.values))
        text = found.values[value]
    elif found.unit and value.isdecimal():
        text = value + found.unit
    return {found.option: text}


def _not_here(option: ForeignOption, name: str, text: str, *, warn: bool) -> None:
    """Warn of an option that is not needed, once in this process; refuse one whose value would be ignored."""
    if option.note:
        if warn and name.lower() not in _warned:
            _warned.add(name.lower())
            source = option.connector.value.removesuffix(" connector")
            _log.warning("option %r of the %s connector is not needed here: %s", name, source, option.note)
    elif option.silent or option.cure:
        cure = option.cure or "docs/pages/migration/options.md says what to do instead"
        values = f"{' or '.join(option.silent)}, or " if option.silent else ""
        raise OptionError.invalid(name, text, f"{values}left out: {cure}")
    else:
        raise OptionError.unknown(name, None)
