"""Keeps secrets out of logs that leave a process: those that its environment holds, and what looks like one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

STARS: Final = "***"
_HOLDS_SECRETS: Final = re.compile(
    r"(?i)headers$|secret|token|password|passwd|(?:api|private)_?key|credential|external_?id"
)
_HOLDS_A_PLACE: Final = re.compile(r"(?i)_(?:file|path|uri|url|full_uri|relative_uri|provider)$")
_SHORTEST: Final = 8
"""A shorter value may be a word of any sentence."""
_QUOTE: Final = r"""\\?['"]?"""
_PATTERNS: Final = (
    # Their values have spaces: the scheme, and the signature's parts.
    re.compile(rf"(?i)(\bauthorization{_QUOTE}\s*[:=>]\s*b?{_QUOTE})[^'\"\n}}]+"),
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]+"),
    re.compile(
        r"(?i)((?:secret|passw(?:or)?d|token|api[._-]?key|secret_?access_?key|private[._-]?key|external[._-]?id)"
        rf"[\w.-]*{_QUOTE}\s*[=>:]\s*b?{_QUOTE})[^\s'\"<&,;}}\\]+"
    ),
    re.compile(r"(://)[^/\s'\"@]+(?=@)"),
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
        """The value of an attribute without secrets; what is no plain value becomes its `str`."""
        if _HOLDS_SECRETS.search(name):
            return STARS
        return value if isinstance(value, bool | int | float) else self.text(str(value))


def names_secret(variable: str) -> bool:
    """Whether a variable of the environment is named after what nobody should see, and not after its place."""
    return bool(_HOLDS_SECRETS.search(variable)) and not _HOLDS_A_PLACE.search(variable)


def _secrets_of(name: str, value: str) -> set[str]:
    values = {value}
    if name.lower().endswith("headers"):
        # As the exporter reads them: `name=value,…`, each escaped as in a URL.
        values = {unquote(part.partition("=")[2]).strip() for part in value.split(",")}
        values |= {word for one in values for word in one.split()}
    return {one for one in values if len(one) >= _SHORTEST}
