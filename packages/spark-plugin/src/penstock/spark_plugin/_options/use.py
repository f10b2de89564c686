"""Options where they belong: those of reading on reads, those of writing on writes."""

from collections.abc import Mapping

from penstock.spark_plugin._options.foreign import GivenOption, translate
from penstock.spark_plugin._options.names import find_option, spelled
from penstock.spark_plugin._options.spec import READ, STREAM, WRITE, OptionSpec, Use
from penstock.spark_plugin._options.values import parse_value
from penstock.spark_plugin.errors import MisplacedOptionError

_BELONGS_TO = {
    (READ, STREAM): "reads",
    (READ,): "bounded reads",
    (STREAM,): "streams that are read",
    (STREAM, WRITE): "streams that are read, and to writes",
    (WRITE,): "writes",
}
_FILTERS = frozenset({"shardIds", "filterPushDown"})


def check_use(options: Mapping[str, str], use: Use) -> None:
    """Refuse options that would do nothing where they are.

    Raises:
        MisplacedOptionError: an option belongs elsewhere; the error names it as it was written, and where it belongs.
    """
    given = {key.lower(): text for key, text in options.items()}
    for key, text in options.items():
        meant = [(key, text)] if find_option(key) else [(one.name, one.text) for one in _translated(key, text, given)]
        for name, value in meant:
            found = find_option(name)
            if found is not None:
                _check(found[0], spelled(key), value, use)


def _translated(key: str, text: str, given: Mapping[str, str]) -> list[GivenOption]:
    return translate(key, text, given, warn=False) or []


def _check(spec: OptionSpec, key: str, text: str, use: Use) -> None:
    reads = {READ, STREAM} & set(spec.uses)
    if use in spec.uses or (use is Use.ANY_READ and reads):
        return
    if use is WRITE:
        raise MisplacedOptionError(key, "reads", use.value)
    belongs_to = _BELONGS_TO[spec.uses]
    if not reads:
        raise MisplacedOptionError(key, belongs_to, use.value, "give it to df.write or df.writeStream")
    if spec.elsewhere is not None and parse_value(spec, text) == spec.elsewhere:
        return
    if use is READ:
        cure = "a bounded read polls in tasks of its own. Leave it out here, or use spark.readStream"
    elif spec.name in _FILTERS:
        cure = "use spark.read, or filter the frame"
    else:
        cure = "use spark.read, or end the query by trigger(availableNow=True)"
    raise MisplacedOptionError(key, belongs_to, use.value, cure)
