"""The templates of pictures and pages: whatever the user named is text in them, never markup."""

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from penstock.operator_attributes._render.theme import STATES, variables
from penstock.operator_attributes._render.words import bytes_text, count, place_text, role_text, seconds_text

# What XML 1.0 cannot hold, not even escaped.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


def render(name: str, **values: object) -> str:
    """A template of `templates/`, filled in."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("penstock.operator_attributes._render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    environment.filters.update(bytes=bytes_text, count=count, place=place_text, role=role_text, seconds=seconds_text)
    environment.globals.update(states=STATES, variables=variables)
    return environment


def _finalize(value: object) -> object:
    """Coordinates to a tenth of a pixel; text without what a page cannot hold."""
    if isinstance(value, float):
        return f"{value:.1f}"
    return _UNPRINTABLE.sub("\ufffd", value) if type(value) is str else value
