"""Keeps secrets out of logs that leave a process: those that its environment holds, and what looks like one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

STARS: Final = "***"
_NAMES: Final = "secret|passw(?:or)?d|token|(?:api|private)[._-]?key|external[._-]?id"
# In a text, what follows "credentials" is mostly a sentence about them.
_HOLDS_SECRETS: Final = re.compile(rf"(?i)headers$|authorization|credential|{_NAMES}")
_HOLDS_A_PLACE: Final = re.compile(r"(?i)_(?:file|path|uri|url|full_uri|relative_uri|provider)$")
_SHORTEST: Final = 8
"""A shorter value may be a word of any sentence."""


def _after(name: str, unquoted: str) -> re.Pattern[str]:
    """A name, and the value after it: `unquoted`, or up to the quote that closes it, or to the end where none does.

    A closing quote has as many backslashes before it as the opening one: a text may be quoted in a quoted text.
    Nothing is looked at twice, so that the time grows with the length of a text, whatever is in it.
    """
    opened = rf"{name}\\*+['\"]?\s*+-?[=>:]{{1,2}}+\s*+(?:b?(\\*+)(['\"]))?"
    return re.compile(rf"(?i)({opened})(?(3)(?:(?!\2\3)\\*+[^\\])+|{unquoted})")


_USER_OF_URL: Final = re.compile(r"(://)[^/?#\s\"<>]+(?=@)")
_PATTERNS: Final = (
    # Their values have spaces, commas and quotes. A number says how many there are.
    _after("(?:authorization|headers)", r"(?!\d+\b)(?:\{[^{}\n]*+\}|[^\n]+)"),
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]+"),
    _after(
        rf"(?<![\w.-])(?=[\w.-]*?(?:{_NAMES}))[\w.-]++",
        # A quote or a backslash within a word is a part of it.
        r"(?:[^\s'\"<&,;}\\]|['\"\\](?=\w))+",
    ),
    _USER_OF_URL,
)


class LogRedaction:
    """Puts stars in the place of secrets.

    Args:
        environment: of the process; the values of its variables of secrets are starred wherever they stand.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        found: set[str] = set()
        for name, value in environment.items():
            if names_secret(name):
                found |= _secrets_of(name, value)
        longest_first = sorted(found, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __repr__(self) -> str:
        return "LogRedaction()"

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(STARS, text)
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\1{STARS}", text)
        return text

    def attribute(self, name: str, value: object) -> str | bool | int | float:
        """The value of an attribute without secrets; what is not a plain value becomes its `str`."""
        if _HOLDS_SECRETS.search(name):
            return STARS
        return value if isinstance(value, bool | int | float) else self.text(str(value))


def names_secret(variable: str) -> bool:
    """Whether a variable of the environment is named after a secret, and not after the place of a secret."""
    return bool(_HOLDS_SECRETS.search(variable)) and not _HOLDS_A_PLACE.search(variable)


def holds_secret(variable: str, value: str) -> bool:
    """Whether a variable of the environment is named after a secret, or holds a URL with a user or a query."""
    # An endpoint may be a URL without its scheme.
    is_url_with_more = variable.endswith("_ENDPOINT") and ("@" in value or "?" in value)
    return names_secret(variable) or is_url_with_more or _USER_OF_URL.search(value) is not None


def _secrets_of(name: str, value: str) -> set[str]:
    values = {value}
    if name.lower().endswith("headers"):
        # As the exporter reads them: `name=value,…`, each escaped as in a URL.
        values = {unquote(part.partition("=")[2]).strip() for part in value.split(",")}
        values |= {word for one in values for word in one.split()}
    return {one for one in values if len(one) >= _SHORTEST}
