"""Options as users write them: found by their names, and parsed to the fields of `KinesisOptions`."""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

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
    """What options mean: by the names here, or by the names of other connectors, each of which may stand for several.

    Options of Spark itself are left out.

    Args:
        options: as they were written, names in any letter case.
        warn: whether an option that is not needed is worth a warning.

    Returns:
        Of each: the name as it was written, the name here (with `.<stream>` where there is one per stream), the text,
        and the declaration.

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


def collect(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The values by field, the names that were written by the names here, and consumers' ARNs by stream.

    Options per stream are among the names by `option.stream` too.

    Raises:
        OptionError: an option is unknown, its value is invalid, or it is given twice with different values.
    """
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    arns: dict[str, str] = {}
    for key, name, text, spec in resolve(options):
        if spec.prefix:
            arns[name.partition(".")[2]] = parse_value(spec, text)
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
    return values, written, arns


def restore_case(arns: Mapping[str, str], streams: tuple[str, ...]) -> dict[str, str]:
    """Consumers' ARNs by the streams' own names: Spark passes option keys in lower case."""
    restored: dict[str, str] = {}
    for suffix, arn in arns.items():
        matches = [name for name in streams if name == suffix] or [
            name for name in streams if name.lower() == suffix.lower()
        ]
        if len(matches) != 1:
            raise OptionError.invalid(f"efoConsumerArn.{suffix}", arn, "for one of the streams in $streamName")
        restored[matches[0]] = arn
    return restored


def merge_initial_timestamp(values: dict[str, Any]) -> None:
    """Put `initialTimestamp` into the position."""
    time = values.get("initial_timestamp")
    if time is None:
        return
    position = values.get("initial_position", PositionOption(PositionOptionType.AT_TIMESTAMP))
    if position.type is not PositionOptionType.AT_TIMESTAMP or position.timestamp not in (None, time):
        raise OptionError.contradictory(
            "initialPosition", "initialTimestamp", "the time belongs to AT_TIMESTAMP, and is given once"
        )
    values["initial_position"] = PositionOption(PositionOptionType.AT_TIMESTAMP, time)


_ARN_RULE = "arn:aws:kinesis:<region>:<account>:stream/<name>, or several with commas"


def name_of_arn(arn: str) -> str:
    """The name of the stream in an ARN."""
    _, slash, name = arn.partition(":stream/")
    if arn.count(":") != 5 or not arn.startswith("arn:") or not slash or not name or "/" in name:
        raise OptionError.invalid("streamArn", arn, _ARN_RULE)
    return name


def names_of_arns(arns: Sequence[str]) -> tuple[str, ...]:
    """The streams' names, in order.

    Rows and offsets have only the name of a stream, and one query has one region.
    """
    names = tuple(name_of_arn(arn) for arn in arns)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise OptionError.invalid(
            "streamArn",
            ",".join(arns),
            f"of streams with different names: rows have only the name. Read {', '.join(doubled)} of each account with "
            "a separate query",
        )
    regions = sorted({arn.split(":")[3] for arn in arns})
    if len(regions) > 1:
        raise OptionError.contradictory("streamArn", "region", f"a query reads one region, not {', '.join(regions)}")
    return names


def region_of_arns(arns: Sequence[str], region: str | None) -> str | None:
    """The region of the streams; the option's must be the same."""
    if not arns:
        return region
    found = arns[0].split(":")[3]
    if region is not None and region != found:
        raise OptionError.contradictory("region", "streamArn", f"the streams are in {found}, not in {region}")
    return found


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
