"""Times in the date patterns of Java, which Flink and Databricks take beside a time."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

_TOKEN = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letter>[A-Za-z])(?P=letter)*|(?P<other>.)", re.DOTALL)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# The names that RFC 822 has, and so Java's patterns take everywhere.
_ZONES = {
    "UT": 0,
    "UTC": 0,
    "GMT": 0,
    "EST": -5,
    "EDT": -4,
    "CST": -6,
    "CDT": -5,
    "MST": -7,
    "MDT": -6,
    "PST": -8,
    "PDT": -7,
}

_NUMBERS = {"y": "year", "u": "year", "d": "day", "H": "hour", "h": "half_day_hour", "m": "minute", "s": "second"}
# Which stand without anything between them in `yyyyMMdd`: each then has as many digits as letters, but for the last.
_DIGITS = re.compile(r"[yudHhmsS]|(?P<month>[ML])(?!(?P=month){2})")


def parse_time_in(text: str, pattern: str) -> datetime:
    """The time that a text says in a pattern of `java.text.SimpleDateFormat`; in UTC where the pattern has no zone.

    Raises:
        ValueError: the pattern has an unknown letter, or the text does not fit it.
    """
    expression, readers = [], []
    for match in _TOKEN.finditer(pattern):
        quoted, letter = match["quoted"], match["letter"]
        if quoted is not None:
            expression.append(re.escape(quoted.replace("''", "'") or "'"))
        elif letter is None:
            expression.append(r"\s+" if match[0] == " " else re.escape(match[0]))
        else:
            part, reader = _field(letter, len(match[0]))
            if part.startswith(r"\d") and _DIGITS.match(pattern, match.end()):
                part = rf"\d{{{len(match[0])}}}"
            expression.append(f"({part})")
            readers.append(reader)
    found = re.fullmatch("".join(expression), text.strip())
    if found is None:
        raise ValueError(f"{text!r} does not fit {pattern!r}")
    fields: dict[str, int] = {}
    zone: tzinfo = UTC
    for reader, value in zip(readers, found.groups(), strict=True):
        one = reader(value)
        if isinstance(one, tzinfo):
            zone = one
        else:
            fields.update(one)
    if "half_day_hour" in fields:
        fields["hour"] = fields.pop("half_day_hour") % 12 + fields.pop("half_day", 0)
    year, month, day = fields.get("year", 1970), fields.get("month", 1), fields.get("day", 1)
    hour, minute, second = (fields.get(name, 0) for name in ("hour", "minute", "second"))
    return datetime(year, month, day, hour, minute, second, fields.get("microsecond", 0), zone)


def _field(letter: str, count: int) -> tuple[str, Callable[[str], dict[str, int] | tzinfo]]:
    if letter in _NUMBERS:
        name = _NUMBERS[letter]
        if name == "year" and count == 2:
            return r"\d\d", lambda text: {"year": 2000 + int(text)}
        return (rf"\d{{{count},}}" if name == "year" else r"\d{1,2}"), lambda text: {name: int(text)}
    if letter in "ML":
        if count < 3:
            return r"\d{1,2}", lambda text: {"month": int(text)}
        return r"[A-Za-z]{3,}", lambda text: {"month": _MONTHS.index(text[:3].lower()) + 1}
    if letter == "S":
        return r"\d{1,9}", lambda text: {"microsecond": int(text.ljust(6, "0")[:6])}
    if letter == "a":
        return "[AaPp][Mm]", lambda text: {"half_day": 12 if text[0] in "Pp" else 0}
    if letter == "E":
        return r"[A-Za-z]{3,}", lambda text: {}
    if letter in "XZzVO":
        return r"[A-Za-z/_]*(?:[+-]\d{1,2}(?::?\d\d)?)?", _zone
    raise ValueError(f"the letter {letter!r} of the pattern is not known")


def _zone(text: str) -> tzinfo:
    match = re.fullmatch(r"(?:GMT|UTC)?([+-])(\d{1,2}):?(\d\d)?", text)
    if match is not None:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        return timezone(-offset if match[1] == "-" else offset)
    if text in ("Z", "z"):
        return UTC
    if text.upper() in _ZONES:
        return timezone(timedelta(hours=_ZONES[text.upper()]))
    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"the zone {text!r} is not known") from None
