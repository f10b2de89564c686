"""Options of other connectors, translated into ours."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.spark_plugin._options.foreign.aws import AWS
from penstock.spark_plugin._options.foreign.databricks import DATABRICKS
from penstock.spark_plugin._options.foreign.flink import FLINK
from penstock.spark_plugin._options.foreign.spec import Connector, Effect, ForeignOption, means
from penstock.spark_plugin._options.spec import OptionSpec
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin.errors import ForeignOptionError, InvalidOptionError

_log = logging.getLogger(__name__)
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class GivenOption:
    """An option of ours, as it was given."""

    written: str
    """The name that the user wrote."""
    name: str
    """Canonical, with `.<stream>` where there is one per stream."""
    text: str


def _by_other_names(spec: OptionSpec) -> Iterator[ForeignOption]:
    for connector, name in (
        (Connector.FLINK, spec.flink),
        (Connector.DATABRICKS, spec.databricks),
        (Connector.AWS, spec.aws),
    ):
        if name is None:
            continue
        yield from means(connector, spec.name, name)
        if connector is Connector.FLINK and (in_sql := _sql_name(name)) not in (None, *_LISTED):
            yield from means(connector, spec.name, in_sql or "")


def _sql_name(name: str) -> str | None:
    """What a property of Flink's is called in its SQL tables, where that is something else."""
    if name.startswith("flink."):
        return "scan." + name.removeprefix("flink.")
    if name.startswith("aws.credentials.provider."):
        return "aws.credentials." + name.removeprefix("aws.credentials.provider.")
    return None


_LISTED = {"scan.stream.initpos.timestamp", "scan.stream.initpos.timestamp.format"}
"""Names that the rule gives and Flink does not have: it writes a dash there."""

FOREIGN_OPTIONS: tuple[ForeignOption, ...] = (
    *(one for spec in OPTIONS for one in _by_other_names(spec)),
    *FLINK,
    *DATABRICKS,
    *AWS,
)
"""All options of the three connectors."""

_EXACT = {one.name.lower(): one for one in FOREIGN_OPTIONS if not one.name.endswith("*")}
_BEGINNINGS = {one.name.lower().removesuffix("*"): one for one in FOREIGN_OPTIONS if one.name.endswith("*")}
_PER_STREAM = {
    f"{one.name.lower()}.": one
    for one in FOREIGN_OPTIONS
    for spec in OPTIONS
    if spec.prefix and one.option == spec.name and one.convert is None
}


def find_foreign(name: str) -> ForeignOption | None:
    """The option of another connector that has this name, in any letter case."""
    low = name.lower()
    if low in _EXACT:
        return _EXACT[low]
    return next((one for beginning, one in _BEGINNINGS.items() if low.startswith(beginning)), None)


def translate(name: str, text: str, given: Mapping[str, str], *, warn: bool = True) -> list[GivenOption] | None:
    """What an option of another connector is here; None when no connector has such an option.

    Args:
        name: As the user wrote it.
        text: Its value.
        given: All options, by name in lower case.
        warn: Whether an option that is not needed is worth a warning; the first time in this process.

    Raises:
        ForeignOptionError: the option cannot be left out, and has no equivalent here.
        InvalidOptionError: the value has no translation.
    """
    low = name.lower()
    for beginning, one in _PER_STREAM.items():
        if low.startswith(beginning) and len(low) > len(beginning):
            return [GivenOption(name, f"{one.option}.{name[len(beginning) :]}", text)]
    found = find_foreign(name)
    if found is None:
        return None
    value = text.strip().lower()
    if found.effect is not Effect.MEANS:
        if value not in found.harmless:
            _tell(found, name, warn=warn)
        return []
    if found.convert is not None:
        return [GivenOption(name, key, one) for key, one in found.convert(text.strip(), given).items()]
    if found.values:
        if value not in dict(found.values):
            raise InvalidOptionError(name, text, "one of " + ", ".join(key for key, _ in found.values))
        text = dict(found.values)[value]
    elif found.bare_unit and value.isdecimal():
        text = value + found.bare_unit
    return [GivenOption(name, found.option or "", text)]


def _tell(option: ForeignOption, name: str, *, warn: bool) -> None:
    if option.name.lower() == name.lower():
        name = option.name
    if option.effect is Effect.REFUSED:
        raise ForeignOptionError(name, option.connector.value, option.text)
    if warn and name.lower() not in _warned:
        _warned.add(name.lower())
        _log.warning("option %r of the %s is not needed here: %s", name, _spell(option.connector), option.text)


def _spell(connector: Connector) -> str:
    return connector.value if connector is Connector.AWS else f"{connector.value} connector"
