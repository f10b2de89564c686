"""Options as users write them: found by their names, and parsed to the fields of `KinesisOptions`."""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from penstock.aws import region_of_endpoint
from penstock.spark_plugin._options.foreign import find_foreign, foreign_options, translate
from penstock.spark_plugin._options.spec import READS, OptionSpec, Use
from penstock.spark_plugin._options.table import OPTIONS, SPARK_OWN
from penstock.spark_plugin._options.values import PositionOption, PositionOptionType, parse_value
from penstock.spark_plugin.errors import OptionError

_BY_LOWER_CASE = {spec.name.lower(): spec for spec in OPTIONS}
_BY_PREFIX = {name + ".": spec for name, spec in _BY_LOWER_CASE.items() if spec.prefix}
_OF_TABLES = frozenset({"location", "owner", "provider", "table"})
"""What CREATE TABLE passes beside the options, which it repeats as `option.<name>`."""


def find_option(key: str) -> tuple[OptionSpec, str] | None:
    """The option that has this name here, in any letter case, and the stream that the name ends with."""
    low = key.lower()
    spec = _BY_LOWER_CASE.get(low)
    if spec is not None and not spec.prefix:
        return spec, ""
    for prefix, prefixed in _BY_PREFIX.items():
        if low.startswith(prefix) and len(low) > len(prefix):
            return prefixed, key[len(prefix) :]
    return None


def spelled(key: str) -> str:
    """A name as it is documented: Spark passes names in lower case."""
    low = key.lower()
    if low in _BY_LOWER_CASE:
        return _BY_LOWER_CASE[low].name
    found = find_foreign(key)
    return found.name if found is not None and found.name.lower() == low else key


def nearest(name: str, names: Collection[str]) -> str | None:
    """The name among `names` that resembles `name` most, in any letter case."""
    by_lower_case = {one.lower(): one for one in names}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[close[0]] if close else None


def unknown_option(name: str) -> OptionError:
    """An error that names the option whose name, here or in another connector, resembles `name` most."""
    # An option that takes only a few values would not help.
    others = {one.name.removesuffix("*"): one for one in foreign_options() if one.option or one.note}
    # Names of this package have precedence where another connector has the same.
    match = nearest(name, [*others, *(spec.name for spec in OPTIONS)])
    if match is None:
        return OptionError.unknown(name, None)
    spec = _BY_LOWER_CASE.get(match.lower())
    if spec is not None:
        return OptionError.unknown(name, f"{spec.name}.<stream>" if spec.prefix else spec.name)
    foreign = others[match]
    return OptionError.unknown(name, foreign.option or None, foreign.name)


def resolve(options: Mapping[str, str], *, warn: bool = True) -> Iterator[tuple[str, str, str, OptionSpec]]:
    """What options mean: by the names here, or by the names of other connectors, each of which may mean several.

    Options of Spark itself are left out.

    Args:
        options: as they were written, names in any letter case.
        warn: whether an option that is not needed is worth a warning.

    Returns:
        For each option: the name as it was written, the name here (with `.<stream>` if there is one per stream), the
        text, and the declaration.

    Raises:
        OptionError: an option is unknown; the error says what it is called here, if another connector has it.
    """
    given = {key.lower(): text for key, text in options.items()}
    for key, text in options.items():
        if key.lower() in SPARK_OWN:
            continue
        translated = {key: text} if find_option(key) else translate(key, text, given, warn=warn)
        if translated is None and (key.lower() in _OF_TABLES or key.lower().startswith("option.")):
            cure = "use CREATE TEMPORARY VIEW … USING kinesis OPTIONS (…)"
            raise OptionError.misplaced(key, "tables", "a stream", cure)
        if translated is None:
            raise unknown_option(key)
        for name, meant in translated.items():
            found = find_option(name)
            if found is None:
                raise unknown_option(name)
            spec, stream = found
            yield key, f"{spec.name}.{stream}" if stream else spec.name, meant, spec


def collect(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values by field, and the names that were written by the names here.

    Options per stream are among the names by `option.stream` too.

    Raises:
        OptionError: an option is unknown, its value is invalid, or it is given twice with different values.
    """
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    for key, name, text, spec in resolve(options):
        if spec.prefix:
            values.setdefault(spec.field, {})[name.partition(".")[2]] = parse_value(spec, text)
            written[name] = written[spec.name] = name if find_option(key) else key
            continue
        own = spelled(key)
        try:
            value = parse_value(spec, text)
        except OptionError as error:
            error.rename({spec.name: own})
            raise
        if spec.field in values and values[spec.field] != value:
            raise OptionError.contradictory(written[spec.name], own, f"both are {spec.name!r}, with different values")
        values[spec.field], written[spec.name] = value, own
    return values, written


def combine(values: dict[str, Any]) -> None:
    """Complete values that depend on each other: names, ARNs and regions of streams, and the time of the position.

    Raises:
        OptionError: two of them contradict each other, or an ARN is not the ARN of a stream.
    """
    stream_arns = values.get("stream_arn", ())
    if stream_arns:
        names, region = _streams_of(stream_arns)
        if values.setdefault("stream_name", names) != names:
            raise OptionError.contradictory("streamName", "streamArn", "they name different streams")
        if values.setdefault("region", region) != region:
            reason = f"the streams are in {region}, not in {values['region']}"
            raise OptionError.contradictory("region", "streamArn", reason)
    values.setdefault("region", region_of_endpoint(values.get("endpoint_url")))
    consumers: dict[str, str] = {}
    for suffix, arn in values.get("efo_consumer_arn", {}).items():
        # Spark passes option keys in lower case.
        streams = values.get("stream_name", ())
        found = [one for one in streams if one == suffix] or [one for one in streams if one.lower() == suffix.lower()]
        if len(found) != 1:
            raise OptionError.invalid(f"efoConsumerArn.{suffix}", arn, "for one of the streams in $streamName")
        consumers[found[0]] = arn
    values["efo_consumer_arn"] = consumers
    if "efo_consumer_name" in values:
        values["efo_consumer_name"] = values.get("efo_consumer_name_prefix", "") + values["efo_consumer_name"]
    if "initial_timestamp" in values:
        merged = PositionOption(PositionOptionType.AT_TIMESTAMP, values["initial_timestamp"])
        if values.setdefault("initial_position", merged) not in (merged, PositionOption(merged.type)):
            reason = "the time belongs to AT_TIMESTAMP, and is given once"
            raise OptionError.contradictory("initialPosition", "initialTimestamp", reason)
        values["initial_position"] = merged


def _streams_of(arns: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The names of streams, and their region: rows have only the names, and one query has one region."""
    found = [re.fullmatch(r"arn:[^:]*:[^:]*:([^:]*):[^:]*:stream/([^:/]+)", arn) for arn in arns]
    names = tuple(one[2] for one in found if one is not None)
    if len(names) < len(arns):
        wrong = arns[found.index(None)]
        rule = "arn:aws:kinesis:<region>:<account>:stream/<name>, or several with commas"
        raise OptionError.invalid("streamArn", wrong, rule)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        rule = (
            f"of streams with different names: rows have only the name. Read {', '.join(doubled)} of each account with "
            "a separate query"
        )
        raise OptionError.invalid("streamArn", ",".join(arns), rule)
    regions = sorted({one[1] for one in found if one is not None})
    if len(regions) > 1:
        raise OptionError.contradictory("streamArn", "region", f"a query reads one region, not {', '.join(regions)}")
    return names, regions[0]


_BELONGS_TO = {
    READS: "reads",
    (Use.READ,): "bounded reads",
    (Use.READ_STREAM,): "streams that are read",
    (Use.READ_STREAM, Use.WRITE): "streams that are read, and to writes",
    (Use.WRITE,): "writes",
}


def check_use(options: Mapping[str, str], use: Use) -> None:
    """Refuse options that would have no effect in a use.

    Raises:
        OptionError: an option belongs elsewhere; the error names it as it was written, and where it belongs.
        OptionError: an option is unknown.
    """
    for key, _, text, spec in resolve(options, warn=False):
        is_read = any(one in spec.uses for one in READS)
        if use in spec.uses or (use is Use.ANY_READ and is_read):
            continue
        belongs_to, cure = _BELONGS_TO[spec.uses], "use spark.read, or trigger(availableNow=True) without it"
        if use is Use.WRITE:
            belongs_to, cure = "reads", "leave it out here"
        elif not is_read:
            cure = "give it to df.write or df.writeStream"
        elif spec.harmless and str(parse_value(spec, text)).lower() == spec.harmless:
            continue
        elif use is Use.READ:
            cure = "a bounded read polls in its own tasks. Leave it out here, or use spark.readStream"
        raise OptionError.misplaced(spelled(key), belongs_to, use.value, cure)
