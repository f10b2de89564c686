"""Options as users write them: found by their names, and parsed to the fields of `KinesisOptions`."""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from penstock.spark_plugin._options.foreign import GivenOption, find_foreign, foreign_options, translate
from penstock.spark_plugin._options.spec import READ, STREAM, WRITE, OptionSpec, Use
from penstock.spark_plugin._options.table import OPTIONS, SPARK_OWN
from penstock.spark_plugin._options.values import (
    PositionOption,
    PositionOptionType,
    parse_time_as,
    parse_value,
)
from penstock.spark_plugin.errors import OptionError

_BY_LOWER_CASE = {spec.name.lower(): spec for spec in OPTIONS}
_BY_PREFIX = {name + ".": spec for name, spec in _BY_LOWER_CASE.items() if spec.prefix}
_OF_TABLES = frozenset({"location", "owner", "provider", "table"})
"""What CREATE TABLE hands over beside the options, which it repeats as `option.<name>`."""


def find_option(key: str) -> tuple[OptionSpec, str] | None:
    """The option of ours that has this name, in any letter case, and the stream that the name ends with."""
    low = key.lower()
    spec = _BY_LOWER_CASE.get(low)
    if spec is not None and not spec.prefix:
        return spec, ""
    for prefix, prefixed in _BY_PREFIX.items():
        if low.startswith(prefix) and len(low) > len(prefix):
            return prefixed, key[len(prefix) :]
    return None


def spelled(key: str) -> str:
    """A name as it is documented: Spark hands names over in lower case."""
    low = key.lower()
    if low in _BY_LOWER_CASE:
        return _BY_LOWER_CASE[low].name
    found = find_foreign(key)
    return found.name if found is not None and found.name.lower() == low else key


def nearest(name: str, names: Collection[str]) -> str | None:
    """The one of some names that another name resembles most, in any letter case."""
    by_lower_case = {one.lower(): one for one in names}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[close[0]] if close else None


def unknown_option(name: str) -> OptionError:
    """An error that names the option whose name, here or in another connector, resembles `name` most."""
    # An option that takes only a few values would be no help.
    others = {one.name.removesuffix("*"): one for one in foreign_options() if one.option or one.note}
    # Our own names go first where another connector has the same.
    match = nearest(name, [*others, *(spec.name for spec in OPTIONS)])
    if match is None:
        return OptionError.unknown(name, None)
    spec = _BY_LOWER_CASE.get(match.lower())
    if spec is not None:
        return OptionError.unknown(name, f"{spec.name}.<stream>" if spec.prefix else spec.name)
    foreign = others[match]
    return OptionError.unknown(name, foreign.option or None, foreign.name)


def resolve(
    key: str, text: str, given: Mapping[str, str], *, warn: bool = True
) -> Iterator[tuple[GivenOption, OptionSpec, str]]:
    """What an option means: ours by its name or an alias, or several that one of another connector stands for.

    Args:
        key: as it was written.
        text: its value.
        given: all options, by their names in lower case.
        warn: whether an option that is not needed is worth a warning.

    Returns:
        Each with its spec, and the stream that its name ends with, if any.

    Raises:
        OptionError: the option is unknown; the error says what it is called here, if another connector has it.
    """
    translated = [GivenOption(key, key, text)] if find_option(key) else translate(key, text, given, warn=warn)
    if translated is None:
        if key.lower() in _OF_TABLES or key.lower().startswith("option."):
            cure = "use CREATE TEMPORARY VIEW … USING kinesis OPTIONS (…)"
            raise OptionError.misplaced(key, "tables", "a stream", cure)
        raise unknown_option(key)
    for one in translated:
        found = find_option(one.name)
        if found is None:
            raise unknown_option(one.name)
        yield one, *found


def resolve_all(options: Mapping[str, str], *, warn: bool = True) -> Iterator[tuple[GivenOption, OptionSpec, str]]:
    """What all options mean, but for those that are Spark's own. See `resolve`."""
    given = {key.lower(): text for key, text in options.items()}
    for key, text in options.items():
        if key.lower() not in SPARK_OWN:
            yield from resolve(key, text, given, warn=warn)


def collect(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The values by field, the names that were written by those of ours, and consumers' ARNs by stream.

    Options per stream are among the names by `option.stream` too.

    Raises:
        OptionError: an option is unknown, its value is invalid, or it is given twice with different values.
    """
    found = list(resolve_all(options))
    pattern = next((one.text for one, spec, _ in found if spec.name == "initialTimestampFormat"), None)
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    arns: dict[str, str] = {}
    for one, spec, suffix in found:
        if spec.prefix:
            name = f"{spec.name}.{suffix}"
            arns[suffix] = parse_value(spec, one.text)
            written[name] = written[spec.name] = name if find_option(one.written) else one.written
            continue
        own = spelled(one.written)
        is_time = spec.name == "initialTimestamp"
        try:
            value = parse_time_as(spec, one.text, pattern) if is_time else parse_value(spec, one.text)
        except OptionError as error:
            error.rename({spec.name: own})
            raise
        if spec.field in values and values[spec.field] != value:
            raise OptionError.contradictory(written[spec.name], own, f"both are {spec.name!r}, with different values")
        values[spec.field], written[spec.name] = value, own
    return values, written, arns


def restore_case(arns: Mapping[str, str], streams: tuple[str, ...]) -> dict[str, str]:
    """Consumers' ARNs by the streams' own names: Spark hands option keys over in lower case."""
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
    """The name of the stream that an ARN stands for."""
    _, slash, name = arn.partition(":stream/")
    if arn.count(":") != 5 or not arn.startswith("arn:") or not slash or not name or "/" in name:
        raise OptionError.invalid("streamArn", arn, _ARN_RULE)
    return name


def names_of_arns(arns: Sequence[str]) -> tuple[str, ...]:
    """The streams' names, in order.

    Rows and offsets tell streams apart by name, and one query has one region.
    """
    names = tuple(name_of_arn(arn) for arn in arns)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise OptionError.invalid(
            "streamArn",
            ",".join(arns),
            f"of streams with different names: rows tell streams apart by name. Read {', '.join(doubled)} of each "
            "account by a query of its own",
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
    (READ, STREAM): "reads",
    (READ,): "bounded reads",
    (STREAM,): "streams that are read",
    (STREAM, WRITE): "streams that are read, and to writes",
    (WRITE,): "writes",
}


def check_use(options: Mapping[str, str], use: Use) -> None:
    """Refuse options that would do nothing where they are.

    Raises:
        OptionError: an option belongs elsewhere; the error names it as it was written, and where it belongs.
        OptionError: an option is unknown.
    """
    for one, spec, _ in resolve_all(options, warn=False):
        _check(spec, spelled(one.written), one.text, use)


def _check(spec: OptionSpec, key: str, text: str, use: Use) -> None:
    reads = {READ, STREAM} & set(spec.uses)
    if use in spec.uses or (use is Use.ANY_READ and reads):
        return
    if use is WRITE:
        raise OptionError.misplaced(key, "reads", use.value)
    belongs_to = _BELONGS_TO[spec.uses]
    if not reads:
        raise OptionError.misplaced(key, belongs_to, use.value, "give it to df.write or df.writeStream")
    if spec.elsewhere is not None and parse_value(spec, text) == spec.elsewhere:
        return
    if use is READ:
        cure = "a bounded read polls in tasks of its own. Leave it out here, or use spark.readStream"
    elif spec.name == "shardIds":
        cure = "use spark.read, or filter the frame"
    else:
        cure = "use spark.read, or end the query by trigger(availableNow=True)"
    raise OptionError.misplaced(key, belongs_to, use.value, cure)
