"""Options by their names: those that are known, and those that were meant."""

import difflib

from penstock.spark_plugin._options.foreign import find_foreign, foreign_options
from penstock.spark_plugin._options.spec import OptionSpec
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin.errors import UnknownOptionError

_BY_NAME = {spec.name.lower(): spec for spec in OPTIONS}
_BY_PREFIX = {name + ".": spec for name, spec in _BY_NAME.items() if spec.prefix}


def find_option(key: str) -> tuple[OptionSpec, str] | None:
    """The option of ours that has this name, in any letter case, and the stream that the name ends with."""
    low = key.lower()
    spec = _BY_NAME.get(low)
    if spec is not None and not spec.prefix:
        return spec, ""
    for prefix, prefixed in _BY_PREFIX.items():
        if low.startswith(prefix) and len(low) > len(prefix):
            return prefixed, key[len(prefix) :]
    return None


def spelled(key: str) -> str:
    """A name as it is documented: Spark hands names over in lower case."""
    low = key.lower()
    if low in _BY_NAME:
        return _BY_NAME[low].name
    found = find_foreign(key)
    return found.name if found is not None and found.name.lower() == low else key


def unknown_option(name: str) -> UnknownOptionError:
    """An error that names the option whose name, here or in another connector, resembles `name` most."""
    low = name.lower()
    # An option that takes only a few values would be no help.
    others = {one.name.lower().removesuffix("*"): one for one in foreign_options() if one.option or one.note}
    match = difflib.get_close_matches(low, [*_BY_NAME, *(one for one in others if one not in _BY_NAME)], n=1)
    if not match:
        return UnknownOptionError(name, None)
    if match[0] in _BY_NAME:
        spec = _BY_NAME[match[0]]
        return UnknownOptionError(name, f"{spec.name}.<stream>" if spec.prefix else spec.name)
    foreign = others[match[0]]
    return UnknownOptionError(name, foreign.option or None, foreign.name)
