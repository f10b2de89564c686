"""Texts of options to the fields of `KinesisOptions`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.spark_plugin._options.foreign import GivenOption, translate
from penstock.spark_plugin._options.names import find_option, spelled, unknown_option
from penstock.spark_plugin._options.spec import OptionSpec, field_name
from penstock.spark_plugin._options.table import SPARK_OWN
from penstock.spark_plugin._options.values import (
    PositionOption,
    PositionOptionType,
    parse_time_as,
    parse_value,
)
from penstock.spark_plugin.errors import ContradictoryOptionsError, InvalidOptionError, MisplacedOptionError

_OF_TABLES = frozenset({"location", "owner", "provider", "table"})
"""What CREATE TABLE hands over beside the options, which it repeats as `option.<name>`."""


def resolve(key: str, text: str, given: Mapping[str, str]) -> Iterator[tuple[GivenOption, OptionSpec, str]]:
    """What an option means: ours by its name or an alias, or several that one of another connector stands for.

    Args:
        key: as it was written.
        text: its value.
        given: all options, by their names in lower case.

    Returns:
        Each with its spec, and the stream that its name ends with, if any.

    Raises:
        OptionError: the option is unknown; the error says what it is called here, if another connector has it.
    """
    translated = [GivenOption(key, key, text)] if find_option(key) else translate(key, text, given)
    if translated is None:
        if key.lower() in _OF_TABLES or key.lower().startswith("option."):
            cure = "use CREATE TEMPORARY VIEW … USING kinesis OPTIONS (…)"
            raise MisplacedOptionError(key, "tables", "a stream", cure)
        raise unknown_option(key)
    for one in translated:
        found = find_option(one.name)
        if found is None:
            raise unknown_option(one.name)
        yield one, *found


def collect(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], dict[str, str], dict[str, str]]:
    """The values by field, the names that were written by field, the texts by option, and consumers' ARNs by stream.

    Of options per stream the names are there by `option.stream` too.

    Raises:
        OptionError: an option is unknown, its value is invalid, or it is given twice with different values.
    """
    given = {key.lower(): text for key, text in options.items()}
    pattern: str | None = None
    specs: list[tuple[GivenOption, OptionSpec, str]] = []
    for key, text in options.items():
        if key.lower() in SPARK_OWN:
            continue
        for one, spec, suffix in resolve(key, text, given):
            specs.append((one, spec, suffix))
            if spec.name == "initialTimestampFormat":
                pattern = one.text
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    texts: dict[str, str] = {}
    arns: dict[str, str] = {}
    for one, spec, suffix in specs:
        if spec.prefix:
            arns[suffix], texts[spec.name] = parse_value(spec, one.text), one.text
            written[f"{spec.name}.{suffix}"] = written[field_name(spec.name)] = (
                f"{spec.name}.{suffix}" if find_option(one.written) else one.written
            )
            continue
        name = field_name(spec.name)
        is_time = spec.name == "initialTimestamp"
        try:
            value = parse_time_as(spec, one.text, pattern) if is_time else parse_value(spec, one.text)
        except InvalidOptionError as error:
            error.rename({spec.name: spelled(one.written)})
            raise
        if name in values and values[name] != value:
            raise ContradictoryOptionsError(
                (written[name], spelled(one.written)), f"both are {spec.name!r}, with different values"
            )
        values[name], written[name], texts[spec.name] = value, spelled(one.written), one.text
    return values, written, texts, arns


def restore_case(arns: Mapping[str, str], streams: tuple[str, ...]) -> dict[str, str]:
    """Spark hands option keys over in lower case, but stream names have upper case too."""
    restored: dict[str, str] = {}
    for suffix, arn in arns.items():
        matches = [name for name in streams if name == suffix] or [
            name for name in streams if name.lower() == suffix.lower()
        ]
        if len(matches) != 1:
            raise InvalidOptionError(f"efoConsumerArn.{suffix}", arn, "for one of the streams in streamName")
        restored[matches[0]] = arn
    return restored


def merge_initial_timestamp(values: dict[str, Any], written: Mapping[str, str]) -> None:
    """Put `initialTimestamp` into the position."""
    time = values.get("initial_timestamp")
    if time is None:
        return
    position = values.get("initial_position", PositionOption(PositionOptionType.AT_TIMESTAMP))
    if position.type is not PositionOptionType.AT_TIMESTAMP or position.timestamp not in (None, time):
        raise ContradictoryOptionsError(
            (written.get("initial_position", "initialPosition"), written["initial_timestamp"]),
            "the time belongs to AT_TIMESTAMP, and is given once",
        )
    values["initial_position"] = PositionOption(PositionOptionType.AT_TIMESTAMP, time)


def merge_positions(values: dict[str, Any], written: Mapping[str, str]) -> None:
    """Put `continueFrom` and `boundedUntil` into the positions that they stand for."""
    for name, into in (("continue_from", "initial_position"), ("bounded_until", "ending_position")):
        if name in values:
            position = values[name]
            if values.setdefault(into, position) != position:
                # A position that nobody has written was made of a time.
                other = written.get(into) or written["initial_timestamp"]
                raise ContradictoryOptionsError((written[name], other), "they say the same thing")
    ending = values.get("ending_position")
    if ending is not None and "ending_timestamp" in values:
        raise ContradictoryOptionsError(("endingPosition", written["ending_timestamp"]), "a read ends once")


_ARN_RULE = "arn:aws:kinesis:<region>:<account>:stream/<name>, or several with commas"


def name_of_arn(arn: str) -> str:
    """The name of the stream that an ARN stands for."""
    _, slash, name = arn.partition(":stream/")
    if arn.count(":") != 5 or not arn.startswith("arn:") or not slash or not name or "/" in name:
        raise InvalidOptionError("streamArn", arn, _ARN_RULE)
    return name


def names_of_arns(arns: Sequence[str]) -> tuple[str, ...]:
    """The streams' names, in order.

    Rows and offsets tell streams apart by name, and one query has one region.
    """
    names = tuple(name_of_arn(arn) for arn in arns)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidOptionError(
            "streamArn",
            ",".join(arns),
            f"of streams with different names: rows tell streams apart by name. Read {', '.join(doubled)} of each "
            "account by a query of its own",
        )
    regions = sorted({arn.split(":")[3] for arn in arns})
    if len(regions) > 1:
        raise ContradictoryOptionsError(("streamArn", "region"), f"a query reads one region, not {', '.join(regions)}")
    return names


def region_of_arns(arns: Sequence[str], region: str | None) -> str | None:
    """The region of the streams; that of the option must be the same."""
    if not arns:
        return region
    found = arns[0].split(":")[3]
    if region is not None and region != found:
        raise ContradictoryOptionsError(("region", "streamArn"), f"the streams are in {found}, not in {region}")
    return found
