"""Options of other connectors, translated into ours; `foreign.toml` lists them."""

import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

from penstock.spark_plugin._options.spec import OptionSpec
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin.errors import OptionError

Converter: TypeAlias = Callable[[str, Mapping[str, str]], Mapping[str, str]]
"""From an option's text, and all options that were given, by name in lower case, to options of ours."""

_LEAST_INTERVAL_MS = 200
"""Kinesis allows 5 reads/s of a shard."""
_ROLES = ("aws.credentials.provider.role", "aws.credentials.role")


def _producer_endpoint(text: str, given: Mapping[str, str]) -> dict[str, str]:
    port = given.get("sink.producer.kinesis-port")
    return {"endpointUrl": f"https://{text}" + (f":{port}" if port else "")}


def _producer_port(text: str, given: Mapping[str, str]) -> dict[str, str]:
    if "sink.producer.kinesis-endpoint" not in given:
        raise OptionError.missing(
            "sink.producer.kinesis-endpoint", "sink.producer.kinesis-port is the port of that host"
        )
    return {}


def _roles(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Both roles of a chain, whichever of the two is translated."""
    outer = next((given[f"{role}.arn"] for role in _ROLES if f"{role}.arn" in given), None)
    inner = next((given[f"{role}.provider.role.arn"] for role in _ROLES if f"{role}.provider.role.arn" in given), None)
    return {"roleArn": ",".join(arn for arn in (inner, outer) if arn)}


def _role_provider(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """What has its own keys below it says no more than these do."""
    needed = {"assume_role": ("role.arn",), "web_identity_token": ("role.arn", "webidentitytoken.file")}
    keys = needed.get(text.lower(), ())
    if keys and any(all(f"{role}.provider.{key}" in given for key in keys) for role in _ROLES):
        return {}
    return {"roleCredentialsProvider": text}


def _attempts(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """How often a call is made in all."""
    return {"getRecordsMaxRetries": str(int(text) - 1) if text.isdecimal() and int(text) > 0 else text}


def _first_delay(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Where the longest delay is not given, it is 10 s there."""
    longest = ("kinesis.clientmaxretryintervalms", "kinesis.client.maxretryintervalms")
    default = {} if any(name in given for name in longest) else {"getRecordsBackoffMax": "10s"}
    return {"getRecordsBackoffBase": text} | default


def _registered_consumers(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """ARNs name their streams; names need the stream to hold one of that name, which is used and left."""
    if given.get("registeredconsumeridtype", "name").lower() != "arn":
        return {"efoConsumerName": text}
    arns = [one.strip() for one in text.split(",") if one.strip()]
    consumers = {f"efoConsumerArn.{arn.partition(':stream/')[2].partition('/')[0]}": arn for arn in arns}
    return {"efoRegistration": "none", **consumers}


def _registered_consumer_type(text: str, given: Mapping[str, str]) -> dict[str, str]:
    if text.lower() not in ("name", "arn"):
        raise OptionError.invalid("registeredConsumerIdType", text, "name or ARN")
    if text.lower() == "arn" and "registeredconsumerid" not in given:
        raise OptionError.missing("registeredConsumerId", "registeredConsumerIdType=ARN says that it is one")
    return {}


def _region(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """The stream's region goes first: the other one was that of the connector's own calls."""
    return {} if "kinesis.kinesisregion" in given else {"region": text}


def _interval(text: str, given: Mapping[str, str]) -> dict[str, str]:
    return {"getRecordsInterval": f"{max(int(text), _LEAST_INTERVAL_MS)}ms" if text.isdecimal() else text}


def _fan_out(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """A consumer that is there already: its ARN names the stream."""
    _, is_arn, rest = text.partition(":stream/")
    stream = rest.partition("/consumer/")[0]
    if not is_arn or "/consumer/" not in rest:
        raise OptionError.invalid("fanoutConsumerARN", text, "the ARN of a stream consumer")
    return {"recordPublisher": "efo", "efoRegistration": "none", f"efoConsumerArn.{stream}": text}


CONVERTERS: Mapping[str, Converter] = {
    "attempts": _attempts,
    "fan_out": _fan_out,
    "first_delay": _first_delay,
    "interval": _interval,
    "producer_endpoint": _producer_endpoint,
    "producer_port": _producer_port,
    "region": _region,
    "registered_consumer_type": _registered_consumer_type,
    "registered_consumers": _registered_consumers,
    "role_provider": _role_provider,
    "roles": _roles,
}
"""By the names that `foreign.toml` has for them."""


_log = logging.getLogger(__name__)
_warned: set[str] = set()
_ABSENT_IN_SQL = {"scan.stream.initpos.timestamp", "scan.stream.initpos.timestamp.format"}
"""Names that `_sql_name` gives and Flink does not have: it writes a dash there."""


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
    """As that connector documents it. One that ends in `*` stands for all names that begin so."""
    option: str = ""
    """The canonical name of ours. Empty: it is not needed."""
    unit: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    convert: str = ""
    note: str = ""
    """How the value is translated, or why the option is not needed. Empty: only the values in `silent` are accepted."""
    silent: tuple[str, ...] = ()
    """Values, in lower case, that are accepted without a warning."""


@dataclass(frozen=True, slots=True)
class GivenOption:
    """An option of ours, as it was given."""

    written: str
    """The name that the user wrote."""
    name: str
    """Canonical, with `.<stream>` where there is one per stream."""
    text: str


def _by_other_names(spec: OptionSpec) -> Iterator[ForeignOption]:
    names = ((Connector.FLINK, spec.flink), (Connector.DATABRICKS, spec.databricks), (Connector.AWS, spec.aws))
    for connector, name in names:
        if name is None:
            continue
        yield ForeignOption(connector=connector, name=name, option=spec.name)
        if connector is Connector.FLINK and (in_sql := _sql_name(name)) is not None and in_sql not in _ABSENT_IN_SQL:
            yield ForeignOption(connector=connector, name=in_sql, option=spec.name)


def _sql_name(name: str) -> str | None:
    """What a property of Flink's is called in its SQL tables, where that is something else."""
    if name.startswith("flink."):
        return "scan." + name.removeprefix("flink.")
    if name.startswith("aws.credentials.provider."):
        return "aws.credentials." + name.removeprefix("aws.credentials.provider.")
    return None


def _listed(connector: Connector, table: Mapping[str, Any]) -> Iterator[ForeignOption]:
    only = {name: tuple(values) for name, values in table["only"].items()}
    for name, meant in table["means"].items():
        fields = {"option": meant} if isinstance(meant, str) else meant
        yield ForeignOption(connector=connector, name=name, **fields)
    for why, names in table["not_needed"].items():
        for name in names:
            yield ForeignOption(connector=connector, name=name, note=why, silent=only.pop(name, ()))
    for name, values in only.items():
        yield ForeignOption(connector=connector, name=name, silent=values)


@cache
def foreign_options() -> tuple[ForeignOption, ...]:
    """All options of the three connectors that are accepted."""
    tables = tomllib.loads((files("penstock.spark_plugin._options") / "foreign.toml").read_text())
    listed = (one for connector in Connector for one in _listed(connector, tables[connector.value]))
    return (*(one for spec in OPTIONS for one in _by_other_names(spec)), *listed)


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


def translate(name: str, text: str, given: Mapping[str, str], *, warn: bool = True) -> list[GivenOption] | None:
    """What an option of another connector is here; None when no connector has such an option.

    Args:
        name: As the user wrote it.
        text: Its value.
        given: All options, by name in lower case.
        warn: Whether an option that is not needed is worth a warning; the first time in this process.

    Raises:
        OptionError: nothing reads the option, and its value is not what is so anyway.
        OptionError: the value has no translation.
    """
    low = name.lower()
    for beginning, one in _per_stream().items():
        if low.startswith(beginning) and len(low) > len(beginning):
            return [GivenOption(name, f"{one.option}.{name[len(beginning) :]}", text)]
    found = find_foreign(name)
    if found is None:
        return None
    value = text.strip().lower()
    if not found.option:
        if value not in found.silent:
            _tell(found, found.name if found.name.lower() == low else name, text, warn=warn)
        return []
    if found.convert:
        return [GivenOption(name, key, one) for key, one in CONVERTERS[found.convert](text.strip(), given).items()]
    if found.values:
        if value not in found.values:
            raise OptionError.invalid(name, text, "one of " + ", ".join(found.values))
        text = found.values[value]
    elif found.unit and value.isdecimal():
        text = value + found.unit
    return [GivenOption(name, found.option, text)]


def _tell(option: ForeignOption, name: str, text: str, *, warn: bool) -> None:
    if option.note:
        if warn and name.lower() not in _warned:
            _warned.add(name.lower())
            source = option.connector.value.removesuffix(" connector")
            _log.warning("option %r of the %s connector is not needed here: %s", name, source, option.note)
    elif option.silent:
        rule = f"{' or '.join(option.silent)}, or left out: docs/pages/migration/options.md says what to do instead"
        raise OptionError.invalid(name, text, rule)
    else:
        raise OptionError.unknown(name, None)
