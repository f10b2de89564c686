"""Options where they belong: those of reading on reads, those of writing on writes."""

from collections.abc import Mapping
from enum import StrEnum

from penstock.spark_plugin._options._migration import translate
from penstock.spark_plugin._options._option_names import find_option, spelled
from penstock.spark_plugin._options._option_spec import OptionSpec
from penstock.spark_plugin.errors import MisplacedOptionError

_BOUNDED = frozenset({"endingPosition", "endingTimestamp", "boundedUntil"})
_READING_SERVICES = frozenset(
    {"readerEndpoint", "readerHost", "readerBindAddress", "readerPort", "registryEndpoint", "registryStore"}
)
_BOUNDED_ALONE = frozenset({"shardIds", "filterPushDown"})


class Use(StrEnum):
    """What a data source is used for."""

    ANY_READ = "a read"
    READ = "a bounded read"
    READ_STREAM = "a stream that is read"
    WRITE = "a write"


def check_use(options: Mapping[str, str], use: Use) -> None:
    """Refuse options that would do nothing where they are.

    Raises:
        MisplacedOptionError: Naming the option as it was written, and what it belongs to.
    """
    given = {key.lower(): text for key, text in options.items()}
    for key, text in options.items():
        names = [key] if find_option(key) else [one.name for one in translate(key, text, given, warn=False) or ()]
        for name in names:
            found = find_option(name)
            if found is not None:
                _check(found[0], spelled(key), use)


def _check(spec: OptionSpec, key: str, use: Use) -> None:
    if use is Use.WRITE and (spec.group == "reading" or spec.group == "retries"):
        raise MisplacedOptionError(key, "reads", use.value)
    if use is Use.WRITE and spec.name in _READING_SERVICES:
        raise MisplacedOptionError(key, "reads", use.value)
    if use is not Use.WRITE and (spec.group == "writing" or spec.name == "sinkEndpoint"):
        raise MisplacedOptionError(key, "writes", use.value, "give it to df.write or df.writeStream")
    if use is Use.READ_STREAM and spec.name in _BOUNDED:
        raise MisplacedOptionError(
            key, "bounded reads", use.value, "use spark.read, or end the query by trigger(availableNow=True)"
        )
    if use is Use.READ_STREAM and spec.name in _BOUNDED_ALONE:
        raise MisplacedOptionError(key, "bounded reads", use.value, "use spark.read, or filter the frame")
